"""Opponents: the pool of historical opponents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.rollouts import opponents


def player(x):
    return {"model": {"w": jnp.full((2, 3), float(x))}}


@pytest.fixture
def pool():
    """Four places: the start, and past selves of steps 10 and 20."""
    pool = opponents.new_pool(player(0), 4, jnp.float32)
    return opponents.add(opponents.add(pool, player(1), 10), player(2), 20)


def test_the_oldest_gives_way(pool):
    assert pool.step.tolist() == [0, 10, 20, -1]
    pool = opponents.add(opponents.add(pool, player(3), 30), player(4), 40)
    assert pool.step.tolist() == [40, 10, 20, 30]
    assert pool.weights["model"]["w"][:, 0, 0].tolist() == [4, 1, 2, 3]


def test_a_new_past_self_starts_without_results(pool):
    pool = opponents.record(pool, 0, 3.0, 4.0)
    pool = opponents.add(opponents.add(pool, player(3), 30), player(4), 40)
    assert pool.games.tolist() == [0] * 4 and pool.points.tolist() == [0] * 4


def test_past_selves_that_win_are_met_more_often(pool):
    pool = opponents.record(pool, jnp.int32(0), 19.5, 20.0)  # beaten
    pool = opponents.record(pool, jnp.int32(1), 4.5, 19.0)  # strong
    chances = np.asarray(opponents.chances(pool, prioritised=True))
    weight = np.array([opponents.FLOOR, (1 - 5 / 20) ** 2, 0.25, 0.0])
    np.testing.assert_allclose(chances, weight / weight.sum(), rtol=1e-5)
    np.testing.assert_allclose(opponents.chances(pool, prioritised=False), [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)


def test_meeting_follows_the_chances_and_brings_the_weights(pool):
    places, weights = jax.vmap(lambda k: opponents.meet(pool, k, True))(jax.random.split(jax.random.key(0), 300))
    counts = np.bincount(np.asarray(places), minlength=4)
    assert counts[3] == 0 and counts[:3].min() > 60
    np.testing.assert_array_equal(weights["model"]["w"][:, 0, 0], places)


def test_old_results_fade_when_new_ones_come(pool):
    pool = opponents.record(pool, 1, 10.0, 10.0)
    same = opponents.record(pool, 1, 0.0, 0.0)
    assert float(same.games[1]) == 10
    later = opponents.record(pool, 1, 0.0, 1.0)
    assert float(later.games[1]) == pytest.approx(10 * opponents.MEMORY + 1)
