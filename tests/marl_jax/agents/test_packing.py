"""Packed rows: the placement of samples, and the same loss and gradients as padded rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults
from marl_jax.agents import packing, scoring
from marl_jax.algorithms.algorithm import score_in_parts
from marl_jax.errors import ConfigError
from marl_jax.schema import validate
from tests.marl_jax import tiny_play, tiny_samples
from tests.marl_jax.agents.test_scoring import agree, gradients
from tests.models.tiny_models import quick_jit

WIDTH = 6


def check_places(samples, rows):
    """Check that every contributing sample is in one row, complete and without overlap."""
    found = sorted(int(i) for i in rows.table.ravel() if i >= 0)
    assert found == list(np.flatnonzero(samples.active())), "each that contributes to the loss, once"
    for starts, length, room in (
        (rows.starts, np.asarray(packing.sizes(samples)), rows.room),
        (rows.answer_starts, np.asarray(packing.answer_sizes(samples)), rows.answer_room),
    ):
        for row, first in zip(np.asarray(rows.table), np.asarray(starts), strict=True):
            spans = sorted((int(first[s]), int(length[i])) for s, i in enumerate(row) if i >= 0)
            ends = [start + size for start, size in spans]
            assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
            assert not ends or ends[-1] <= room


@pytest.mark.parametrize("seed", range(4))
def test_every_sample_lies_in_one_row_and_none_over_another(seed):
    rng = np.random.default_rng(seed)
    samples = tiny_samples.make(40, 20, WIDTH, seed=seed, kept=True)
    samples = samples.replace(loss_weights=jnp.asarray(rng.random((40, 1)) < 0.8, jnp.float32))
    skip, pack = len(tiny_samples.PREFIX), 3
    sizes = (samples.context_len + samples.completion_lengths)[:, 0] - skip - 1
    np.testing.assert_array_equal(packing.sizes(samples), sizes, "of the last token nothing is read")
    np.testing.assert_array_equal(packing.answer_sizes(samples), samples.completion_lengths[:, 0])
    rows = jax.jit(lambda s: packing.plan(s, pack, s.active(), multiple=2))(samples)
    assert rows.table.shape[0] == 14 and int(rows.used()) < 14, "uneven lengths must need fewer rows"
    check_places(samples, rows)


@pytest.mark.nightly
def test_samples_of_full_length_always_fit():
    samples = tiny_samples.make(8, 5, WIDTH)
    time = samples.tokens.shape[1]
    full = samples.replace(
        completion_of=jnp.zeros((8, WIDTH), jnp.int32), completion_lengths=jnp.full((8, 1), WIDTH),
        logits_index=jnp.broadcast_to(time - WIDTH + jnp.arange(WIDTH), (8, WIDTH)),
    )  # fmt: skip
    rows = packing.plan(full, 2, full.active())
    assert int(rows.used()) == 4 and (np.sort(np.asarray(rows.table[:4]).ravel())[-8:] == np.arange(8)).all()
    check_places(full, rows)


@pytest.mark.nightly_for("adapter and prefix")
@pytest.mark.parametrize(
    ("settings", "prefix", "algo"),
    [
        (dict(critic="head"), (), dict(loss_agg="token")),
        (dict(critic="none", lora=1), tiny_samples.PREFIX, dict(loss_agg="sequence", ratio="sequence", kl_coef=0.0)),
    ],
    ids=["value head", "adapter and prefix"],
)
def test_loss_and_gradients_are_those_of_padded_rows(settings, prefix, algo):
    policy = dataclasses.replace(tiny_play.policy(free=WIDTH, **settings), rules=prefix)
    samples = tiny_samples.make(16, 12, WIDTH, kept=bool(prefix))
    samples = samples.replace(loss_weights=samples.loss_weights.at[3].set(0.0))
    agree(gradients(policy, samples, grad_accum_steps=2, pack=2, **algo), gradients(policy, samples, **algo))


@pytest.mark.nightly_for("adapter")
@pytest.mark.parametrize("settings", [dict(critic="head"), dict(critic="head", lora=1)], ids=["full", "adapter"])
def test_values_and_references_are_read_from_packed_rows_too(settings):
    """Also of rows that are not trained; rows without a completion score zero."""
    policy = tiny_play.policy(free=WIDTH, **settings)
    samples = tiny_samples.make(16, 12, WIDTH, kept=bool(policy.prefix))
    samples = samples.replace(loss_weights=samples.loss_weights.at[3].set(0.0))
    trained, frozen = tiny_play.weights(policy)
    reference = {} if policy.lora else {"reference": trained["model"]}

    def found(samples, **algo):
        weights, algo = {**frozen, **trained, **reference}, tiny_play.ppo(minibatches=2, grad_accum_steps=2, **algo)
        scores = score_in_parts(lambda *part: scoring.score(policy, weights, *part), samples, algo)
        return scores, score_in_parts(lambda *part: scoring.reference_logps(policy, weights, *part), samples, algo)

    packed = quick_jit(lambda s: found(s, pack=2))(samples)
    said = samples.mask() > 0
    for x, y in zip(jax.tree.leaves(packed), jax.tree.leaves(quick_jit(found)(samples)), strict=True):
        np.testing.assert_allclose(jnp.where(said, x, 0), jnp.where(said, y, 0), atol=1e-5)
        assert np.abs(x[said]).max() > 1e-3


def test_candidates_that_share_a_prompt_are_not_packed():
    policy = tiny_play.policy(free=WIDTH, critic="none")
    samples = tiny_samples.make(16, 12, WIDTH, kept=False)
    samples = samples.replace(branch=jnp.zeros_like(samples.positions))
    with pytest.raises(ValueError, match="have branches or several conversations per row"):
        gradients(policy, samples, grad_accum_steps=2, pack=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.completion": "constrained"}, "config.algo.pack is 2 with rollout.completion 'constrained'"),
        ({"algo.grad_accum_steps": 1}, "config.algo.pack is 2 with algo.grad_accum_steps 1"),
        ({"algo.critic": "separate"}, "config.algo.pack is 2 with algo.critic 'separate'"),
    ],
)
def test_what_cannot_be_packed_is_refused(changes, message):
    config = defaults.get_config()
    config.update_from_flattened_dict({"algo.pack": 2, "rollout.completion": "free", "algo.grad_accum_steps": 2})
    validate.check(config)
    config.update_from_flattened_dict(changes)
    with pytest.raises(ConfigError, match=message):
        validate.check(config)
