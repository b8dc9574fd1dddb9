"""Group-relative advantages against hand-computed numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.learning import groups

pytestmark = pytest.mark.quick

REWARDS = np.array([[1.0, 2.0, 3.0, 6.0], [0.0, 0.0, 0.0, 4.0], [5.0, 5.0, 5.0, 5.0]], np.float32)
# means 3, 1, 5; sums of squares 14, 12, 0


@pytest.mark.parametrize(
    "settings, expected",
    [
        # GRPO: deviations sqrt(14/4) = 1.8708, sqrt(3) = 1.7321
        ({}, [[-1.06904, -0.53452, 0.0, 1.60357], [-0.57735, -0.57735, -0.57735, 1.73205], [0, 0, 0, 0]]),
        # Dr.GRPO
        (dict(std=False), [[-2, -1, 0, 3], [-1, -1, -1, 3], [0, 0, 0, 0]]),
        # RLOO: the first against (2 + 3 + 6) / 3 = 11/3, the last against 2
        (
            dict(std=False, baseline="leave_one_out"),
            [[-8 / 3, -4 / 3, 0, 4], [-4 / 3, -4 / 3, -4 / 3, 4], [0, 0, 0, 0]],
        ),
        # Dr. MAS: groups 0 and 2 belong to agent 0, whose deviation is that of group 0, since group 2 is uninformative
        (
            dict(normalize="agent", agents=jnp.array([0, 1, 0]), n_agents=2),
            [[-1.06904, -0.53452, 0.0, 1.60357], [-0.57735, -0.57735, -0.57735, 1.73205], [0, 0, 0, 0]],
        ),
        # The same with one agent for all, sqrt((14 + 12) / 8) = 1.80278
        (
            dict(normalize="agent", agents=jnp.array([0, 0, 0]), n_agents=1),
            [[-1.10940, -0.55470, 0.0, 1.66410], [-0.55470, -0.55470, -0.55470, 1.66410], [0, 0, 0, 0]],
        ),
    ],
)
def test_by_hand(settings, expected):
    found = jax.jit(lambda rewards: groups.advantages(rewards, **settings))(REWARDS)
    np.testing.assert_allclose(found.advantages, np.array(expected), atol=1e-4)
    assert found.informative.tolist() == [True, True, False]


def test_only_members_count():
    advantages = jax.jit(groups.advantages, static_argnames=("std", "baseline"))
    members = np.array([[True, True, False, False], [False, False, False, True], [False] * 4])
    found = jax.device_get(advantages(REWARDS, members, std=False))
    np.testing.assert_allclose(found.advantages, [[-0.5, 0.5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert found.informative.tolist() == [True, False, False]
    alone = jax.device_get(advantages(REWARDS, members, std=False, baseline="leave_one_out"))
    np.testing.assert_allclose(alone.advantages[0], [-1, 1, 0, 0])  # each against the other
    spread = jax.device_get(advantages(REWARDS, members))
    np.testing.assert_allclose(spread.advantages[0], [-1, 1, 0, 0], atol=1e-5)


def test_equal_rewards_give_no_advantage_whatever_the_rounding():
    # The float32 mean of three times 0.1 is not 0.1; divided by a deviation near 0 it would look like a signal.
    rewards = np.full((1, 3), 0.1, np.float32) + np.array([[0.0, 1e-8, 0.0]], np.float32)
    found = jax.device_get(jax.jit(groups.advantages)(rewards))
    assert found.advantages.tolist() == [[0, 0, 0]] and not bool(found.informative[0])


def test_differences_within_the_rounding_of_large_rewards_are_none():
    rewards = np.array([[1e6, 1e6 + 1.0], [1e6, 1e6 + 100.0], [0.0, 1e-5]], np.float32)
    assert groups.differ(rewards, np.ones((3, 2), bool)).tolist() == [False, True, True]


def test_any_leading_axes_and_shift_and_scale():
    rewards = np.random.default_rng(0).standard_normal((2, 3, 5), np.float32)
    advantages = jax.jit(groups.advantages, static_argnames="normalize")
    once = np.asarray(advantages(rewards).advantages)
    np.testing.assert_allclose(np.mean(once, axis=-1), 0, atol=1e-6)
    np.testing.assert_allclose(np.std(once, axis=-1), 1, atol=1e-4)
    np.testing.assert_allclose(advantages(7 + 3 * rewards).advantages, once, atol=1e-4)
    of_agent = advantages(rewards, normalize="agent", agents=np.zeros((2, 3), np.int32)).advantages
    assert np.sqrt(np.mean(np.square(of_agent))) == pytest.approx(1.0, abs=1e-4)


def test_unknown_baseline_is_refused():
    with pytest.raises(ValueError, match="baseline is 'median', but must be one of: mean, leave_one_out"):
        groups.advantages(REWARDS, baseline="median")
