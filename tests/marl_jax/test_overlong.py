"""Answers that reach the limit of their length, by hand: DAPO's mask and penalty."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import algorithms
from marl_jax.learning import grpo, losses, overlong
from marl_jax.learning import update as updates
from tests.marl_jax.test_grpo import TableOfLogps, two_answers

STOP = 9


class Writes(TableOfLogps):
    """Free answers of at most four tokens."""

    free = types.SimpleNamespace(stop_ids=(STOP,), max_new=4)


def samples(lengths, last, rewards=(4.0, 0.0)):
    """A group of two answers of these lengths, `last` in the fourth place."""
    answers = jnp.zeros((1, 2, 4), jnp.int32).at[0, :, 3].set(jnp.asarray(last))
    rewards = jnp.asarray(rewards)[None, :, None]
    return two_answers().replace(answers=answers, answer_lengths=jnp.asarray([lengths]), rewards=rewards)


def settings(kind, **changes):
    algo = algorithms.dapo(2)
    algo.update(dict(name="at_grpo", tis_clip=0.0, overlong=kind) | changes)
    return algo


def test_only_answers_that_were_cut_count_as_such():
    cut = lambda lengths, last: overlong.truncated(samples(lengths, last), (STOP, 8)).tolist()[0]  # noqa: E731
    assert cut([4, 3], [1, 1]) == [True, False]
    assert cut([4, 4], [STOP, 8]) == [False, False]  # the stop was the last token


@pytest.mark.parametrize(
    "longest, buffer, expected",
    [(10, 4, [0, 0, -0.25, -0.75, -1]), (10, 1, [0, 0, 0, 0, -1]), (20, 4, [0, 0, 0, 0, 0])],
)
def test_the_penalty_grows_over_the_last_tokens(longest, buffer, expected):
    lengths = jnp.array([1, 6, 7, 9, 10])
    np.testing.assert_allclose(overlong.penalty(lengths, longest, buffer), expected, atol=1e-6)


def test_none_changes_nothing_and_counts():
    given = samples([4, 1], [1, 0])
    same, figures = overlong.handle(Writes(), given, settings("none"))
    assert same is given and float(figures["truncated_answers"]) == 0.5
    named = TableOfLogps()
    named.free = None
    same, figures = overlong.handle(named, given, settings("mask"))
    assert same is given and float(figures["truncated_answers"]) == 0


def learn(algo, given):
    """(advantages, loss, gradient) at ratio 1."""
    given, _ = overlong.handle(Writes(), given, algo)
    rows, _ = grpo.prepare(Writes(), {}, given, algo, 1)
    weights = losses.token_weights(rows.mask(), rows.weights, algo.loss_agg, rows.width)
    objective = jax.value_and_grad(updates._objective, argnums=2, has_aux=True)
    (loss, _), grads = objective(Writes(), algo, {"model": rows.logps}, {}, rows, weights, weights)
    return rows.advantages[:, 0], float(loss), grads["model"]


def test_masked_answers_have_no_loss_but_stay_in_the_mean():
    # Rewards 4 and 0: advantages 1 and -1 as ever; the first answer was cut, so only the second, of two tokens, counts.
    advantages, loss, gradient = learn(settings("mask"), samples([4, 2], [1, 0]))
    np.testing.assert_allclose(advantages, [1, -1], atol=1e-5)
    assert loss == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(gradient, [[0, 0, 0, 0], [1 / 2, 1 / 2, 0, 0]], atol=1e-5)
    # Not cut, it counts: a mean over six tokens, four of advantage 1 and two of -1.
    _, loss, gradient = learn(settings("mask"), samples([4, 2], [STOP, 0]))
    assert loss == pytest.approx((-4 + 2) / 6, abs=1e-5)
    np.testing.assert_allclose(gradient, [[-1 / 6] * 4, [1 / 6, 1 / 6, 0, 0]], atol=1e-5)


def test_the_penalty_is_part_of_the_reward():
    # Rewards 4 and 4 with lengths 4 and 3, limit 4, buffer 2: 4 - 1 and 4 - 1/2; without a spread, -1/4 and 1/4.
    algo = settings("penalty", overlong_buffer=2, group_std=False)
    advantages, loss, gradient = learn(algo, samples([4, 3], [1, 0], rewards=(4.0, 4.0)))
    np.testing.assert_allclose(advantages, [-0.25, 0.25], atol=1e-6)
    assert loss == pytest.approx((4 * 0.25 - 3 * 0.25) / 7, abs=1e-6)
    np.testing.assert_allclose(gradient, [[0.25 / 7] * 4, [-0.25 / 7] * 3 + [0]], atol=1e-6)
    assert settings("penalty").overlong == algorithms.dapo().overlong


def test_bots_pay_no_penalty():
    given = samples([4, 4], [1, 1]).replace(policy=jnp.array([[0, -1]]))
    found, _ = overlong.handle(Writes(), given, settings("penalty"))
    np.testing.assert_allclose(found.rewards[0, :, 0], [3, 0])
