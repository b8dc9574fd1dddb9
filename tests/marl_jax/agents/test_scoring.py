"""Shared computation in the learner: same loss and gradients as separate, complete rows."""

import dataclasses

import jax
import numpy as np
import pytest

from marl_jax.agents import scoring
from marl_jax.algorithms import ALGORITHMS
from marl_jax.learning import update
from models.model import build
from tests.marl_jax import tiny_play, tiny_samples
from tests.models.tiny_models import largest, largest_difference, quick_jit

pytestmark = [pytest.mark.quick, pytest.mark.long]

WIDTH, GROUP = 4, 3


def gradients(policy, samples, **settings):
    """Return gradients and metrics of one minibatch."""
    trained, frozen = tiny_play.weights(policy)
    algo = tiny_play.ppo(value_clip=0.0, **settings)
    train_state = update.TrainState(trained, frozen, None, np.int32(0))
    objective = ALGORITHMS.get("ppo").objective
    scheduled = update.Scheduled(algo.entropy_coef)
    return quick_jit(
        lambda state, samples: update.summed_gradients(policy, objective, algo, scheduled, state, samples)
    )(train_state, samples)


def agree(found, expected):
    (grads, metrics), (expected_grads, expected_metrics) = found, expected
    assert largest_difference(grads, expected_grads) < 1e-5 * largest(expected_grads)
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.nightly_for("adapters and candidates of one prompt", "separate critic")
@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "group"),
    [(dict(), 1), (dict(critic="separate"), 1), (dict(lora=2, critic="none"), GROUP)],
    ids=["all weights", "separate critic", "adapters and candidates of one prompt"],
)
def test_a_prefix_that_is_read_once_changes_nothing(settings, group):
    whole = dataclasses.replace(tiny_play.policy(free=WIDTH, **settings), rules=())
    once = dataclasses.replace(whole, rules=tiny_samples.PREFIX)
    assert once.prefix and not whole.prefix
    samples, behind = (tiny_samples.make(12, 7, WIDTH, group=group, adapters=2, kept=kept) for kept in (False, True))
    agree(gradients(once, behind), gradients(whole, samples))


@pytest.mark.nightly
@pytest.mark.long
def test_unrolled_layers_follow_a_prefix_that_is_read_in_a_loop():
    """With layers unrolled as on a GPU, the program contains the layers once, not twice."""
    policy = tiny_play.policy(free=WIDTH)
    deeper = build(dataclasses.replace(policy.model.cfg, n_layers=2))
    loop = dataclasses.replace(policy, model=deeper, rules=tiny_samples.PREFIX, unroll=1)
    unrolled = dataclasses.replace(loop, unroll=2)
    samples = tiny_samples.make(12, 7, WIDTH, kept=True)
    agree(gradients(unrolled, samples), gradients(loop, samples))
    trained, _ = tiny_play.weights(loop)
    programs = [
        jax.jit(lambda p, s, policy=policy: scoring.before_answers(policy, p, s, None))
        .lower(trained["model"], samples)
        .as_text()
        for policy in (loop, unrolled, dataclasses.replace(unrolled, rules=()))
    ]
    assert [text.count("stablehlo.while") for text in programs] == [2, 1, 0]


def test_fewer_tokens_are_read():
    """No activation of the compiled program is as long as a complete row."""
    policy = dataclasses.replace(tiny_play.policy(free=WIDTH), rules=tiny_samples.PREFIX)
    samples = tiny_samples.make(12, 7, WIDTH, kept=True)
    trained, _ = tiny_play.weights(policy)
    read = jax.jit(lambda p, s: scoring.before_answers(policy, p, s, None))
    program = read.lower(trained["model"], samples).as_text()
    time, size = len(tiny_samples.PREFIX) + samples.tokens.shape[1], policy.model.cfg.d_model
    assert f"tensor<12x{time - len(tiny_samples.PREFIX)}x{size}xf32>" in program
    assert f"tensor<12x{time}x{size}xf32>" not in program


def test_a_prompt_is_read_once_for_all_its_candidates():
    """No activation has room for a prompt per candidate, except in attention."""
    policy = dataclasses.replace(tiny_play.policy(free=WIDTH), rules=())
    samples = tiny_samples.make(4, 7, WIDTH, group=GROUP)
    trained, _ = tiny_play.weights(policy)
    read = jax.jit(lambda p, s: scoring.before_answers(policy, p, s, None))
    program = read.lower(trained["model"], samples).as_text()
    time, size = samples.tokens.shape[1], policy.model.cfg.d_model
    assert time == len(tiny_samples.PREFIX) + 7 + GROUP * (WIDTH - 1)
    assert f"tensor<4x{time}x{size}xf32>" in program
    assert f"tensor<{4 * GROUP}x{time}x{size}xf32>" not in program


@pytest.mark.nightly_for("full")
@pytest.mark.parametrize(("lora", "warm"), [(None, False), (2, False), (2, True)], ids=["full", "base", "warm"])
def test_the_reference_is_the_policy_at_the_start(lora, warm):
    """The reference does not change in training: a copy, the base without adapters, or the first adapters."""
    policy = dataclasses.replace(tiny_play.policy(free=WIDTH, lora=lora), rules=(), warm=warm)
    key = jax.random.key(3)
    at_start, frozen = policy.init(policy.model.init(key), key, reference=True)
    if warm:  # adapters of another run, which are not zero
        adapters = jax.tree.map(lambda x: x + 0.1, at_start["adapters"])
        at_start, frozen = policy.init(frozen["model"], key, reference=True, adapters=adapters)
    moved = {**at_start, **{k: jax.tree.map(lambda x: x + 0.05, v) for k, v in at_start.items() if k != "critic"}}
    samples = tiny_samples.make(6, 7, WIDTH, adapters=2)
    score = quick_jit(lambda w, s: scoring.score(policy, w, s).logps)
    reference = quick_jit(lambda w, s: scoring.reference_logps(policy, w, s))({**frozen, **moved}, samples)
    expected = score({**frozen, **at_start}, samples)
    np.testing.assert_allclose(reference, expected, atol=1e-5)
    assert np.abs(score({**frozen, **moved}, samples) - expected).max() > 1e-3
