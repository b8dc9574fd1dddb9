"""Overlong completions: DAPO's mask and penalty, by hand."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from configs import published
from marl_jax.algorithms import settings_from
from marl_jax.learning.advantages import handle_overlong, overlong_penalty
from tests.marl_jax.algorithms import test_grpo

pytestmark = pytest.mark.quick

WRITES = types.SimpleNamespace(width=4, critic="none")  # free text of at most four tokens


def samples(lengths, cut, rewards=(4.0, 0.0), name="dapo"):
    """Build a group of two completions of these lengths; `cut` says which were truncated."""
    given = test_grpo.two_answers(name, rewards, lengths)
    return given.replace(truncated=jnp.asarray(cut, bool).reshape(given.truncated.shape))


def settings(kind, **changes):
    algo = published.dapo(2, max_new_tokens=10, std_ddof=0)
    algo.update(dict(tis_clip=0.0, overlong=kind) | changes)
    return settings_from(algo)


@pytest.mark.parametrize(
    "longest, buffer, expected",
    [(10, 4, [0, 0, -0.25, -0.75, -1]), (10, 1, [0, 0, 0, 0, -1]), (20, 4, [0, 0, 0, 0, 0])],
)
def test_the_penalty_grows_over_the_last_tokens(longest, buffer, expected):
    lengths = jnp.array([1, 6, 7, 9, 10])
    np.testing.assert_allclose(overlong_penalty(lengths, longest, buffer), expected, atol=1e-6)


def test_none_changes_nothing_and_counts():
    given = samples([4, 1], [1, 0])
    same, metrics = handle_overlong(WRITES, given, settings("none"))
    assert same is given and float(metrics["truncated_completions"]) == 0.5
    # Completions without weight in the loss do not count here either.
    one = given.replace(loss_weights=jnp.array([[0.0], [1.0]]))
    assert float(handle_overlong(WRITES, one, settings("none"))[1]["truncated_completions"]) == 0


def learn(algo, given):
    """Return advantages, loss and gradient at ratio 1."""
    given, _ = handle_overlong(WRITES, given, algo)
    rows, _, loss, gradient = test_grpo.learn(given, algo)
    return rows.at_first(rows.advantages)[:, 0], loss, gradient


def test_masked_answers_have_no_loss_but_stay_in_the_mean():
    # Rewards 4 and 0 give advantages 1 and -1. The first completion was truncated, so only the second counts.
    advantages, loss, gradient = learn(settings("mask"), samples([4, 2], [1, 0]))
    np.testing.assert_allclose(advantages, [1, -1], atol=1e-5)
    assert loss == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(gradient, [[0, 0, 0, 0], [1 / 2, 1 / 2, 0, 0]], atol=1e-5)
    # Without truncation it counts: the mean over six tokens, four with advantage 1 and two with -1.
    _, loss, gradient = learn(settings("mask"), samples([4, 2], [0, 0]))
    assert loss == pytest.approx((-4 + 2) / 6, abs=1e-5)
    np.testing.assert_allclose(gradient, [[-1 / 6] * 4, [1 / 6, 1 / 6, 0, 0]], atol=1e-5)


def test_the_penalty_is_part_of_the_reward():
    # Rewards 4 and 4 with lengths 4 and 3, limit 4, buffer 2: 4 - 1 and 4 - 1/2; without normalization, -1/4 and 1/4.
    algo = settings("penalty", overlong_buffer=2, group_std=False)
    advantages, loss, gradient = learn(algo, samples([4, 3], [1, 0], rewards=(4.0, 4.0)))
    np.testing.assert_allclose(advantages, [-0.25, 0.25], atol=1e-6)
    assert loss == pytest.approx((4 * 0.25 - 3 * 0.25) / 7, abs=1e-6)
    np.testing.assert_allclose(gradient, [[0.25 / 7] * 4, [-0.25 / 7] * 3 + [0]], atol=1e-6)
    assert settings("penalty").overlong == published.dapo().overlong


def test_a_truncated_completion_gets_the_full_penalty():
    """It has two of four tokens: its own limit, or the room left in its conversation, was lower."""
    found, _ = handle_overlong(WRITES, samples([2, 2], [1, 0]), settings("penalty"))
    np.testing.assert_allclose(found.rewards[:, 0, 0], [3, 0])


def test_bots_pay_no_penalty():
    given = samples([4, 4], [1, 1]).replace(policy=jnp.array([0, -1]))
    found, _ = handle_overlong(WRITES, given, settings("penalty"))
    np.testing.assert_allclose(found.rewards[:, 0, 0], [3, 0])


def test_only_the_seat_that_answered_pays_the_penalty():
    given = samples([4, 1], [1, 0], name="at_grpo")
    given = given.replace(rewards=jnp.ones((1, 2, 2)), seat=jnp.array([[1, 0]]))
    found, _ = handle_overlong(WRITES, given, settings("penalty"))
    assert found.rewards.tolist() == [[[1, 0], [1, 1]]]
