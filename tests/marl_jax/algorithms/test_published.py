"""The published forms of the GRPO family against their papers' formulas, written as loops over answers and tokens."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import published
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import ALGORITHMS, grpo, settings_from
from marl_jax.learning import groups
from marl_jax.learning.update import Scheduled
from tests.marl_jax.tiny_samples import by_hand

K, LONGEST = 3, 4
LENGTHS = [[1, 3, 4], [2, 2, 1], [4, 1, 3]]
REWARDS = [[1.0, 0.0, 0.5], [2.0, 2.0, 2.0], [-1.0, 3.0, 0.25]]  # the second group says nothing
RNG = np.random.default_rng(0)
OLD = RNG.uniform(-2.0, -0.1, (3, K, LONGEST))
NEW = OLD + RNG.uniform(-0.3, 0.3, OLD.shape)
REF = OLD + RNG.uniform(-0.3, 0.3, OLD.shape)


def clipped(ratio, advantage, low, high):
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - low, 1 + high) * advantage)


def answers():
    return [(g, i, range(n)) for g, lengths in enumerate(LENGTHS) for i, n in enumerate(lengths)]


def standardised(g, i):
    return (REWARDS[g][i] - np.mean(REWARDS[g])) / (np.std(REWARDS[g], ddof=1) + 1e-6)


def grpo_paper(new):
    """(1/G) Σ (1/|o|) Σ min(…) - 0.04 KL, equation 3 with estimator 4 of DeepSeekMath."""
    total = 0.0
    for g, i, tokens in answers():
        for t in tokens:
            off = REF[g, i, t] - new[g, i, t]
            gain = clipped(jnp.exp(new[g, i, t] - OLD[g, i, t]), standardised(g, i), 0.2, 0.2)
            total += (gain - 0.04 * (jnp.exp(off) - off - 1)) / len(tokens)
    return -total / 9


def dr_grpo_paper(new):
    total = 0.0
    for g, i, tokens in answers():
        advantage = REWARDS[g][i] - np.mean(REWARDS[g])
        total += sum(clipped(jnp.exp(new[g, i, t] - OLD[g, i, t]), advantage, 0.2, 0.2) for t in tokens)
    return -total / 9 / LONGEST


def dapo_paper(new):
    total, count = 0.0, 0
    for g, i, tokens in answers():
        if len(set(REWARDS[g])) > 1:
            count += len(tokens)
            total += sum(clipped(jnp.exp(new[g, i, t] - OLD[g, i, t]), standardised(g, i), 0.2, 0.28) for t in tokens)
    return -total / count


def gspo_paper(new):
    total = 0.0
    for g, i, tokens in answers():
        ratio = jnp.exp(sum(new[g, i, t] - OLD[g, i, t] for t in tokens) / len(tokens))
        total += clipped(ratio, standardised(g, i), 3e-4, 4e-4)
    return -total / 9


def rloo_paper(new):
    """Each answer's reward less 0.03 KL of the answer, against the mean of the others; the ratio of whole answers."""
    total = 0.0
    paid = [list(row) for row in REWARDS]
    for g, i, tokens in answers():
        paid[g][i] -= 0.03 * sum(OLD[g, i, t] - REF[g, i, t] for t in tokens)
    for g, i, tokens in answers():
        others = [paid[g][j] for j in range(K) if j != i]
        ratio = jnp.exp(sum(new[g, i, t] - OLD[g, i, t] for t in tokens))
        total += clipped(ratio, paid[g][i] - np.mean(others), 0.2, 0.2)
    return -total / 9


@pytest.mark.parametrize("paper", [grpo_paper, dr_grpo_paper, dapo_paper, gspo_paper, rloo_paper])
def test_loss_and_gradient_are_those_of_the_paper(paper, monkeypatch):
    limit = dict(max_new_tokens=10) if paper is dapo_paper else {}
    algo = settings_from(getattr(published, paper.__name__.removesuffix("_paper"))(K, **limit))
    flat = lambda x: np.reshape(x, (9, LONGEST)).astype(np.float32)  # noqa: E731
    inside = np.arange(LONGEST) < np.reshape(LENGTHS, (9, 1))
    samples = by_hand(
        np.where(inside, 0, -1), logps=flat(OLD), n_groups=3, group_size=K, ends=np.ones((9, 1), bool),
        group=np.repeat(np.arange(3), K)[:, None], member=np.tile(np.arange(K), 3)[:, None],
        rewards=np.asarray(REWARDS, np.float32).reshape(9, 1, 1),
    )  # fmt: skip
    monkeypatch.setattr("marl_jax.algorithms.algorithm.score_in_parts", lambda *a: flat(REF))
    algorithm = ALGORITHMS.get("grpo")

    def loss(logps):
        rows, _ = algorithm.compute_advantages(types.SimpleNamespace(critic="none"), {}, samples, algo)
        weighed = algorithm.objective.loss_weights_for(rows, algo)
        return algorithm.objective.loss(rows, weighed, Scores(logps, 0 * logps, 0 * logps), algo, Scheduled())[0]

    found, gradient = jax.jit(jax.value_and_grad(loss))(flat(NEW))
    expected, slow = jax.jit(jax.value_and_grad(paper))(NEW.astype(np.float32))
    assert float(found) == pytest.approx(float(expected), rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(np.reshape(gradient, slow.shape), slow, rtol=1e-3, atol=1e-6)


def test_returns_that_differ_by_rounding_are_equal_at_any_scale():
    """Episodes that earn the same steps in another order: their float32 sums differ in the last bits."""
    rng = np.random.default_rng(0)
    steps = np.where(rng.random((2000, 1, 40)) < 0.7, -0.01, 0.1) + 0.0
    steps[..., -1] = 20.0
    shuffled = rng.permuted(np.repeat(steps, 4, axis=1), axis=2).astype(np.float32)
    returns = functools.reduce(np.add, np.moveaxis(shuffled, 2, 0))
    assert (np.ptp(returns, axis=1) > groups.EQUAL).sum() > 20  # the sums do differ, by more than the absolute limit
    advantages = jax.jit(groups.advantages)
    found = jax.device_get(advantages(returns))
    assert not found.informative.any() and not found.advantages.any()
    one_step_more = returns - np.array([0.01, 0, 0, 0], np.float32)
    assert np.all(advantages(one_step_more).informative)


def test_group_settings_pass_the_divisor():
    assert grpo.group_settings(published.grpo())["ddof"] == 1
