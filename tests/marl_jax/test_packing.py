"""Packed rows: where samples go, and that loss and gradients are those of padded rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults
from marl_jax.agents import packing
from marl_jax.config import validate
from marl_jax.errors import ConfigError
from tests.marl_jax import tiny_play, tiny_samples
from tests.marl_jax.test_reading import agree, gradients

WIDTH = 6


@pytest.mark.parametrize("seed", range(4))
def test_every_sample_lies_in_one_row_and_none_over_another(seed):
    rng = np.random.default_rng(seed)
    samples = tiny_samples.make(40, 20, WIDTH, seed=seed)
    samples = samples.replace(weights=jnp.asarray(rng.random(40) < 0.8, jnp.float32))
    skip, pack = len(tiny_samples.PREFIX), 3
    rows = jax.jit(lambda s: packing.plan(s, pack, skip, multiple=2))(samples)
    assert rows.table.shape[0] == 14 and int(rows.used()) < 14, "uneven lengths must need fewer rows"
    found = sorted(int(i) for i in rows.table.ravel() if i >= 0)
    assert found == list(np.flatnonzero(samples.weights)), "each that teaches something, once"
    sizes = np.asarray(samples.prompt_lengths + samples.answer_lengths) - skip - 1
    for starts, length, room in (
        (rows.starts, sizes, rows.room),
        (rows.answer_starts, np.asarray(samples.answer_lengths), rows.answer_room),
    ):
        for row, first in zip(np.asarray(rows.table), np.asarray(starts), strict=True):
            spans = sorted((int(first[s]), int(length[i])) for s, i in enumerate(row) if i >= 0)
            ends = [start + size for start, size in spans]
            assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
            assert not ends or ends[-1] <= room


def test_samples_of_full_length_always_fit():
    samples = tiny_samples.make(8, 5, WIDTH)
    full = samples.replace(
        prompt_lengths=jnp.full((8,), samples.tokens.shape[1] - WIDTH + 1), answer_lengths=jnp.full((8,), WIDTH)
    )
    rows = packing.plan(full, 2)
    assert int(rows.used()) == 4 and (np.sort(np.asarray(rows.table[:4]).ravel())[-8:] == np.arange(8)).all()


@pytest.mark.parametrize(
    ("settings", "prefix"),
    [(dict(critic="head"), ()), (dict(critic="none", lora=1), tiny_samples.PREFIX)],
    ids=["value head", "adapter and prefix"],
)
def test_loss_and_gradients_are_those_of_padded_rows(settings, prefix):
    policy = dataclasses.replace(tiny_play.policy(free=WIDTH, **settings), prefix=prefix)
    samples = tiny_samples.make(16, 12, WIDTH)
    samples = samples.replace(weights=samples.weights.at[3].set(0.0))
    for algo in (dict(loss_agg="token"), dict(loss_agg="sequence", ratio="sequence", kl_coef=0.0)):
        agree(gradients(policy, samples, grad_accum_steps=2, pack=2, **algo), gradients(policy, samples, **algo))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.answer": "constrained"}, "config.algo.pack is 2 with rollout.answer 'constrained'"),
        ({"algo.grad_accum_steps": 1}, "config.algo.pack is 2 with algo.grad_accum_steps 1"),
        ({"algo.critic": "separate"}, "config.algo.pack is 2 with algo.critic 'separate'"),
    ],
)
def test_what_cannot_be_packed_is_refused(changes, message):
    config = defaults.get_config()
    config.update_from_flattened_dict({"algo.pack": 2, "rollout.answer": "free", "algo.grad_accum_steps": 2})
    validate.check(config)
    config.update_from_flattened_dict(changes)
    with pytest.raises(ConfigError, match=message):
        validate.check(config)
