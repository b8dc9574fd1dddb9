"""Losses against hand-computed numbers and a slow reference."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.learning import losses
from tests.marl_jax.tiny_samples import by_hand

pytestmark = pytest.mark.quick

TWO = by_hand([[0, 0, 0], [0, -1, -1]])  # completions of three tokens and of one
TOGETHER = by_hand([[0, 0, 0, 1]])  # the same in one row
ONE = by_hand([[0]])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token", [[1 / 4] * 3, [1 / 4, 0, 0]]),
        ("sequence", [[1 / 6] * 3, [1 / 2, 0, 0]]),
        ("constant", [[1 / 20] * 3, [1 / 20, 0, 0]]),
    ],
)
def test_token_weights(kind, expected):
    found = losses.token_weights(TWO, kind, length=10)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    together = losses.token_weights(TOGETHER, kind, length=10)
    np.testing.assert_allclose(together, found[TWO.completion_of >= 0][None], rtol=1e-6)


def test_tokens_that_do_not_count_are_not_part_of_any_mean():
    first = TOGETHER.first()
    np.testing.assert_allclose(losses.token_weights(TOGETHER, "token", mask=first), [[1 / 2, 0, 0, 1 / 2]])
    np.testing.assert_allclose(losses.token_weights(TOGETHER, "sequence", mask=first), [[1 / 2, 0, 0, 1 / 2]])
    none = first.at[0, 3].set(0.0)  # a completion without unmasked tokens does not count
    np.testing.assert_allclose(losses.token_weights(TOGETHER, "sequence", mask=none), [[1, 0, 0, 0]])


def test_an_answer_of_weight_zero_is_as_if_it_were_not_there():
    for kind in ("token", "sequence", "constant"):
        both = losses.token_weights(TWO.replace(loss_weights=jnp.array([[1.0], [0.0]])), kind, 10)
        alone = losses.token_weights(by_hand([[0, 0, 0]]), kind, 10)
        np.testing.assert_allclose(both[:1], alone, rtol=1e-6)
        assert float(jnp.sum(both[1])) == 0
        in_one_row = losses.token_weights(TOGETHER.replace(loss_weights=jnp.array([[1.0, 0.0]])), kind, 10)
        np.testing.assert_allclose(in_one_row, np.pad(alone, ((0, 0), (0, 1))), rtol=1e-6)


def clip(ratio, advantage, **kwargs):
    """Return the loss of a single token with this ratio."""
    settings = dict(clip_low=0.2, clip_high=0.3) | kwargs
    one = jnp.ones((1, 1))
    return losses.policy_loss(ONE.replace(advantages=one * advantage), one * math.log(ratio), 0 * one, **settings)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "low", "high"),
    [
        (1.1, 2.0, -2.2, 0, 0),
        (1.5, 2.0, -2.6, 0, 1),  # may rise to 1.3
        (0.5, 2.0, -1.0, 0, 0),  # a decrease with a positive advantage is not clipped
        (0.9, -2.0, 1.8, 0, 0),
        (0.5, -2.0, 1.6, 1, 0),  # may fall to 0.8
        (5.0, -2.0, 10.0, 0, 0),
    ],
)
def test_clip(ratio, advantage, expected, low, high):
    result = clip(ratio, advantage)
    assert float(result.loss[0, 0]) == pytest.approx(expected, rel=1e-5)
    assert (float(result.clip_frac_low[0, 0]), float(result.clip_frac_high[0, 0])) == (low, high)


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    assert float(clip(5.0, -2.0, dual_clip=3.0).loss[0, 0]) == pytest.approx(6.0)
    assert float(clip(1.2, -2.0, dual_clip=3.0).loss[0, 0]) == pytest.approx(2.4)
    assert float(clip(1.5, 2.0, dual_clip=3.0).loss[0, 0]) == pytest.approx(-2.6)


def test_gspo_ratio_is_the_geometric_mean_of_the_answer():
    logps = jnp.log(jnp.array([[0.2, 0.4, 0.8], [0.5, 0.9, 0.9]]))
    old = jnp.log(jnp.array([[0.1, 0.4, 0.4], [0.25, 0.1, 0.1]]))
    settings = dict(clip_low=0.9, clip_high=9.0, ratio="sequence")
    result = losses.policy_loss(TWO.replace(advantages=jnp.ones((2, 3))), logps, old, **settings)
    np.testing.assert_allclose(result.ratio[0], [4 ** (1 / 3)] * 3, rtol=1e-5)
    assert float(result.ratio[1, 0]) == pytest.approx(2.0, rel=1e-5)
    both = [x[TWO.completion_of >= 0][None] for x in (logps, old)]
    result = losses.policy_loss(TOGETHER.replace(advantages=jnp.ones((1, 4))), *both, **settings)
    np.testing.assert_allclose(result.ratio, [[4 ** (1 / 3)] * 3 + [2.0]], rtol=1e-5)


def test_gradient_at_ratio_one_is_the_policy_gradient():
    logps = jnp.array([[-1.0, -2.0]])
    advantages = jnp.array([[0.5, -3.0]])
    samples = by_hand([[0, 0]], advantages=advantages)
    gradient = jax.grad(lambda x: jnp.sum(losses.policy_loss(samples, x, logps, clip_low=0.2, clip_high=0.2).loss))(
        logps
    )
    np.testing.assert_allclose(gradient, -advantages, rtol=1e-6)


def test_truncated_importance_weighs_stale_samples():
    weight = losses.truncated_importance(jnp.log(jnp.array([0.1, 0.3, 0.9])), jnp.log(jnp.array([0.2, 0.3, 0.1])), 2.0)
    np.testing.assert_allclose(weight, [0.5, 1.0, 2.0], rtol=1e-5)
    assert float(clip(1.1, 2.0, correction=0.5).loss[0, 0]) == pytest.approx(-1.1)


@pytest.mark.parametrize(
    ("kind", "expected"), [("k1", math.log(2)), ("k2", 0.5 * math.log(2) ** 2), ("k3", 0.5 - 1 + math.log(2))]
)
def test_kl_estimates(kind, expected):
    assert float(losses.kl(jnp.log(0.5), jnp.log(0.25), kind)) == pytest.approx(expected, rel=1e-5)
    assert float(losses.kl(jnp.log(0.5), jnp.log(0.5), kind)) == 0


def test_k1_and_k3_have_the_kl_as_their_mean():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.25, 0.25])
    exact = (p * np.log(p / q)).sum()
    for kind in ("k1", "k3"):
        assert (p * np.asarray(losses.kl(jnp.log(p), jnp.log(q), kind))).sum() == pytest.approx(exact, rel=1e-5)


def test_value_loss_and_its_clip():
    value, old, target = jnp.array([1.0, 1.0]), jnp.array([0.0, 0.0]), jnp.array([2.0, 0.5])
    np.testing.assert_allclose(losses.value_loss(value, old, target), [0.5, 0.125])
    # With clip 0.2 the new value counts as 0.2, which gives ½·1.8² and ½·0.3². The larger of the two losses is used.
    np.testing.assert_allclose(losses.value_loss(value, old, target, clip=0.2), [1.62, 0.125], rtol=1e-6)


def test_explained_variance():
    returns, ones = jnp.array([1.0, 2.0, 3.0, 99.0]), jnp.array([1.0, 1.0, 1.0, 0.0])
    assert float(losses.explained_variance(returns, returns, ones)) == pytest.approx(1.0)
    assert float(losses.explained_variance(jnp.zeros(4), returns, ones)) == pytest.approx(0.0, abs=1e-6)
    assert float(losses.explained_variance(-returns, returns, ones)) == pytest.approx(-3.0, rel=1e-5)


def test_whole_loss_against_a_loop_over_tokens():
    rng = np.random.default_rng(0)
    completion_of = np.array([[0, 0, 1, 1, 1, -1], [0, -1, 1, 2, 2, 2]])
    logps, old, reference = (-rng.random((3, *completion_of.shape)) * 2).astype(np.float32)
    advantages = rng.normal(size=completion_of.shape).astype(np.float32)
    weights = np.array([[1, 1, 0], [1, 0, 1]], np.float32)

    expected, tokens = 0.0, 0
    for i, t in zip(*np.nonzero(completion_of >= 0), strict=True):
        if weights[i, completion_of[i, t]]:
            r = math.exp(logps[i, t] - old[i, t])
            held = min(max(r, 0.8), 1.28)
            ppo = max(-r * advantages[i, t], -held * advantages[i, t])
            ppo = min(ppo, -3 * advantages[i, t]) if advantages[i, t] < 0 else ppo
            k = math.exp(reference[i, t] - logps[i, t]) - 1 - (reference[i, t] - logps[i, t])
            expected += ppo + 0.1 * k
            tokens += 1
    assert tokens == 9
    samples = by_hand(completion_of, advantages=jnp.asarray(advantages), loss_weights=jnp.asarray(weights))
    result = losses.policy_loss(samples, logps, old, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    token_weights = losses.token_weights(samples, "token")
    loss = jnp.sum(token_weights * (result.loss + 0.1 * losses.kl(logps, reference, "k3")))
    assert float(loss) == pytest.approx(expected / tokens, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.token_weights(TWO, "mean"), "loss_agg is 'mean'"),
        (lambda: losses.log_ratio(TWO, TWO.logps, TWO.logps, "word"), "ratio is 'word'"),
        (lambda: losses.kl(TWO.logps, TWO.logps, "k4"), "the KL estimator is 'k4'"),
    ],
)
def test_unknown_kinds_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
