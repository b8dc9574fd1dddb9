"""Opponents: the pool of historical ones, and that they play with the weights they had."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import registry as games
from marl_jax.rollouts import opponents
from marl_jax.rollouts.games import row_keys
from marl_jax.rollouts.opponents import Opponents, Sections
from tests.marl_jax import tiny_play

GAME = games.make("tic_tac_toe")


def snapshot(x):
    return {"model": {"w": jnp.full((2, 3), float(x))}}


@pytest.fixture
def pool():
    """Four places: the start, and historical opponents of steps 10 and 20."""
    pool = opponents.new_pool(snapshot(0), 4, jnp.float32)
    return opponents.add(opponents.add(pool, snapshot(1), 10), snapshot(2), 20)


def test_the_oldest_gives_way(pool):
    assert pool.step.tolist() == [0, 10, 20, -1]
    pool = opponents.add(opponents.add(pool, snapshot(3), 30), snapshot(4), 40)
    assert pool.step.tolist() == [40, 10, 20, 30]
    assert pool.snapshots["model"]["w"][:, 0, 0].tolist() == [4, 1, 2, 3]


def test_a_new_one_starts_without_results(pool):
    pool = opponents.record(pool, 0, 3.0, 4.0)
    pool = opponents.add(opponents.add(pool, snapshot(3), 30), snapshot(4), 40)
    assert pool.games.tolist() == [0] * 4 and pool.points.tolist() == [0] * 4


def test_historical_opponents_that_win_are_met_more_often(pool):
    pool = opponents.record(pool, jnp.int32(0), 19.5, 20.0)  # beaten
    pool = opponents.record(pool, jnp.int32(1), 4.5, 19.0)  # strong
    chances = np.asarray(opponents.chances(pool, prioritized=True))
    weight = np.array([opponents.FLOOR, (1 - 5 / 20) ** 2, 0.25, 0.0])
    np.testing.assert_allclose(chances, weight / weight.sum(), rtol=1e-5)
    np.testing.assert_allclose(opponents.chances(pool, prioritized=False), [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)


def test_meeting_follows_the_chances_and_brings_the_weights(pool):
    meet = Opponents(Sections(1, 1), pool_size=4).meet
    places, weights = jax.vmap(lambda k: meet(pool, k))(jax.random.split(jax.random.key(0), 300))
    counts = np.bincount(np.asarray(places), minlength=4)
    assert counts[3] == 0 and counts[:3].min() > 60
    np.testing.assert_array_equal(weights["model"]["w"][:, 0, 0], places)


def test_old_results_fade_when_new_ones_come(pool):
    pool = opponents.record(pool, 1, 10.0, 10.0)
    same = opponents.record(pool, 1, 0.0, 0.0)
    assert float(same.games[1]) == 10
    later = opponents.record(pool, 1, 0.0, 1.0)
    assert float(later.games[1]) == pytest.approx(10 * opponents.MEMORY + 1)


# ------------------------------------------------------------------------------------------------ as they play


def stubborn(policy, order):
    """Weights that prefer the highest cell that is free (order 1), or the lowest (-1), whatever they read.

    Nothing is attended to, all tokens but the digits have one embedding, and the digits are longer ones of the same
    direction, the longest that of the preferred cell.
    """
    trained, _ = tiny_play.weights(policy)
    model = jax.tree.map(jnp.zeros_like, trained["model"])
    lengths = jnp.ones((model["embed"].shape[0], 1)).at[jnp.arange(9) + ord("1"), 0].set(5 + order * jnp.arange(9) / 2)
    embed = 10 * jnp.broadcast_to(lengths, model["embed"].shape)
    return {"main": {**trained, "model": {**model, "embed": embed, "norm": jnp.ones_like(model["norm"])}}}


@pytest.mark.long
def test_historical_opponents_play_with_the_weights_they_had():
    sections = Sections(own=2, historical=6)
    policy = tiny_play.policy()
    roll = tiny_play.rollout(GAME, policy, 8, 1, opponents=Opponents(sections, pool_size=2))
    then, now = stubborn(policy, 1), stubborn(policy, -1)
    state = roll.init(jax.random.key(0), then)
    play, player = jax.jit(roll.__call__), jax.jit(jax.vmap(GAME.player))
    met = 0
    for turn in range(12):
        before = state.games
        _, state, _ = play(now, state, jax.random.key(turn))
        board, after = (np.bitwise_or(s.crosses, s.noughts) for s in (before.state, state.games.state))
        mover = np.asarray(player(before.state))
        for row in range(8):
            if int(after[row]) == 0:
                continue  # the game ended with this move
            cell = int(after[row] ^ board[row]).bit_length() - 1
            free = [c for c in range(9) if not board[row] >> c & 1]
            old = row >= sections.own and mover[row] != before.seat[row]
            assert cell == (max(free) if old else min(free)), (turn, row)
            met += old
    assert met > 20


def test_a_snapshot_of_the_present_weights_joins_the_pool():
    policy = tiny_play.policy()
    roll = tiny_play.rollout(GAME, policy, 4, 1, opponents=Opponents(Sections(2, 2), pool_size=2, snapshot_every=3))
    first, second = stubborn(policy, 1), stubborn(policy, -1)
    state = roll.init(jax.random.key(0), first)
    assert [step for step in range(1, 8) if roll.changes_after(step)] == [3, 6]
    state = jax.jit(roll.after_update)(state, second, 3)
    assert state.pool.step.tolist() == [0, 3] and "critic" not in state.pool.snapshots["main"]
    for place, params in enumerate((first, second)):
        kept = jax.tree.map(lambda x, place=place: x[place], state.pool.snapshots["main"]["model"])
        jax.tree.map(np.testing.assert_array_equal, kept, params["main"]["model"])


@pytest.mark.nightly
@pytest.mark.long
def test_adapters_of_historical_opponents_are_their_own_on_the_same_base():
    """With LoRA a snapshot is the adapters alone: the moves are those of the same base with the old adapters."""
    policy = tiny_play.policy(lora=2)
    sections = Sections(own=2, historical=30)
    roll = tiny_play.rollout(GAME, policy, 32, 1, opponents=Opponents(sections, pool_size=1))
    trained, frozen = tiny_play.weights(policy)
    frozen = {"model": {**frozen["model"], "embed": 40 * frozen["model"]["embed"]}}  # not all cells alike
    old = {"main": {**frozen, "adapters": tiny_play.weights(policy, seed=1)[0]["adapters"]}}
    now = {"main": {**frozen, **trained}}
    state, key = roll.init(jax.random.key(0), old), jax.random.key(3)
    assert set(state.pool.snapshots["main"]) == {"adapters"}
    later = dataclasses.replace(state.games, episode=state.games.episode + 1)  # the first may be given up
    _, after, _ = jax.jit(roll.__call__)(now, dataclasses.replace(state, games=later), key)

    # What the old and the present adapters answer to the same prompts with the same keys.
    seen = roll._look(state.games)
    keys = row_keys(jax.random.fold_in(jax.random.split(key)[0], 0), roll.rows)
    act_keys = jax.vmap(lambda k: jax.random.split(k, 3)[0])(keys)

    @jax.jit
    def answers(params):
        ready = roll.team.prepare_for_sampling(params)
        return roll.team.act(ready, seen.prompts, seen.lengths, seen.legal, act_keys, seen.policy).action

    theirs, ours = np.asarray(answers(old)), np.asarray(answers(now))
    opposite = (np.arange(32) >= sections.own) & (np.asarray(seen.seat) != np.asarray(state.games.seat))
    assert (theirs != ours)[opposite].any()  # or the test cannot fail
    cells = np.log2(np.asarray(after.games.state.crosses)).astype(int)
    np.testing.assert_array_equal(cells, np.where(opposite, theirs, ours))


def test_members_of_a_population_are_met_by_their_shares(pool):
    mixed = opponents.with_members(pool, [(snapshot(7), 0.75), (snapshot(8), 0.25)])
    assert mixed.step.tolist() == [0, 1, -1, -1] and mixed.snapshots["model"]["w"][:2, 0, 0].tolist() == [7, 8]
    np.testing.assert_allclose(opponents.chances(mixed, prioritized=False), [0.75, 0.25, 0, 0])
    strong = opponents.record(mixed, 1, 0.0, 99.0)  # weights (1 - 0.5)² and (1 - 0.005)²
    odds = 0.75 * 0.25, 0.25 * (1 - 0.005) ** 2
    np.testing.assert_allclose(opponents.chances(strong, prioritized=True)[:2], np.array(odds) / sum(odds), rtol=1e-5)
    assert not Opponents(Sections(1, 1), pool_size=4, fixed=True).snapshot_due(25)
