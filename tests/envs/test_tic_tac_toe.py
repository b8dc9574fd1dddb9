"""Tic-tac-toe against OpenSpiel on every position, its perfect bot, its symmetries and its drawings."""

from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import UniformBot
from envs.games.game import check_action
from envs.games.tic_tac_toe import draw
from envs.games.tic_tac_toe.bots import MinimaxBot, index, tables
from envs.games.tic_tac_toe.rules import TicTacToe, cells, from_cells, has_line
from envs.games.tic_tac_toe.symmetry import TicTacToeSymmetry

pytestmark = pytest.mark.quick

pyspiel = pytest.importorskip("pyspiel")
GAME = TicTacToe()
SYMMETRY = TicTacToeSymmetry(GAME)


@pytest.fixture(scope="module")
def positions():
    """Every position OpenSpiel can reach, with what it says about each.

    cells int8[N, 9]; player int[N] (-1 at the end); legal bool[N, 9]; child int[N, 9] (row of the position after an
    action, -1 if illegal); reward f32[N, 9, 2] of every legal action.
    """
    rows, found, todo = [], {}, [pyspiel.load_game("tic_tac_toe").new_initial_state()]

    def visit(state):
        board = str(state).replace("\n", "")
        if board not in found:
            found[board] = len(rows)
            rows.append((state, board))
            todo.append(state)
        return found[board]

    visit(todo.pop())
    child, reward = {}, {}
    while todo:
        state = todo.pop()
        here = found[str(state).replace("\n", "")]
        for action in state.legal_actions() if not state.is_terminal() else []:
            after = state.child(action)
            child[here, action] = visit(after)
            reward[here, action] = after.rewards()
    n = len(rows)
    out = {
        "cells": np.array([[".xo".index(c) for c in board] for _, board in rows], np.int8),
        "player": np.array([-1 if s.is_terminal() else s.current_player() for s, _ in rows]),
        "legal": np.zeros((n, 9), bool),
        "child": np.full((n, 9), -1),
        "reward": np.zeros((n, 9, 2), np.float32),
    }
    for (here, action), there in child.items():
        out["legal"][here, action] = True
        out["child"][here, action] = there
        out["reward"][here, action] = reward[here, action]
    return out


@pytest.fixture(scope="module")
def states(positions):
    return jax.jit(jax.vmap(from_cells))(positions["cells"])


def test_every_position_equals_open_spiel(positions, states):
    assert len(positions["player"]) == 5478
    ended = positions["player"] == -1
    read = jax.jit(jax.vmap(lambda state: (cells(state), GAME.done(state), GAME.player(state), GAME.legal(state))))
    boards, done, player, legal = jax.device_get(read(states))
    np.testing.assert_array_equal(boards, positions["cells"])
    np.testing.assert_array_equal(done, ended)
    np.testing.assert_array_equal(player[~ended], positions["player"][~ended])
    np.testing.assert_array_equal(legal[~ended], positions["legal"][~ended])
    np.testing.assert_array_equal(legal[ended], np.eye(1, 9, dtype=bool).repeat(ended.sum(), 0))


def test_every_move_equals_open_spiel(positions, states):
    all_moves = jax.jit(jax.vmap(jax.vmap(GAME.step, (None, 0)), (0, None)))
    after, reward = all_moves(states, jnp.arange(9))
    where = np.nonzero(positions["legal"])
    expected = jax.tree.map(lambda x: np.asarray(x)[positions["child"][where]], states)
    for got, want in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(got)[where], want)
    np.testing.assert_array_equal(np.asarray(reward.agent)[where], positions["reward"][where])
    assert not np.any(reward.team) and not np.any(reward.process)


def test_table_holds_the_values_of_the_game(positions, states):
    """The value of a position is the best the mover can get from its children, and the empty board is a draw."""
    values, best = tables()
    value = values[np.asarray(jax.vmap(index)(states))]
    assert value[0] == 0 and (positions["cells"][0] == 0).all() and best[0] == 0b111111111
    won = np.asarray(has_line(states.crosses) | has_line(states.noughts))
    for here in np.random.default_rng(0).choice(len(value), 500, replace=False):
        children = positions["child"][here][positions["legal"][here]]
        assert value[here] == (max(-value[children]) if len(children) else -int(won[here]))


def test_minimax_never_loses_and_beats_random():
    def play(key, bot_seat):
        bots = (MinimaxBot(), UniformBot(GAME))

        def turn(state, key):
            actions = jnp.stack([bot.act(state, key) for bot in bots])
            state, reward = GAME.step(state, actions[(GAME.player(state) != bot_seat).astype(jnp.int32)])
            return state, reward.agent[bot_seat]

        key, start = jax.random.split(key)
        return jax.lax.scan(turn, GAME.reset(start), jax.random.split(key, 9))[1].sum()

    seats = jnp.arange(512) % 2
    result = np.asarray(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 512), seats))
    assert result.min() == 0.0
    assert result.mean() > 0.8


def test_step_commutes_with_symmetries(positions, states):
    rows, actions = (x[::7] for x in np.nonzero(positions["legal"]))
    some = jax.tree.map(lambda x: x[rows], states)

    def both(state, action, i):
        after, reward = GAME.step(state, action)
        image = GAME.step(SYMMETRY.apply(state, i), SYMMETRY.map_action(action, i))
        return (SYMMETRY.apply(after, i), reward), image

    over_symmetries = jax.vmap(both, (None, None, 0))
    all_pairs = jax.jit(jax.vmap(over_symmetries, (0, 0, None)))
    straight, through = all_pairs(some, actions, jnp.arange(SYMMETRY.n_symmetries))
    jax.tree.map(np.testing.assert_array_equal, straight, through)
    images = jax.jit(jax.vmap(lambda i: SYMMETRY.apply(from_cells(jnp.array([1, 2, 0, 0, 0, 0, 0, 0, 0])), i)))(
        np.arange(8)
    )
    assert len(set(zip(np.asarray(images.crosses).tolist(), np.asarray(images.noughts).tolist(), strict=True))) == 8


def test_illegal_actions_are_refused():
    state, _ = GAME.step(GAME.reset(jax.random.key(0)), jnp.int32(4))
    assert check_action(GAME, state, 0) == 0
    with pytest.raises(ValueError, match=r"action is 4 \(5\), but must be one of: 0 \(1\)"):
        check_action(GAME, state, 4)
    with pytest.raises(ValueError, match="action is 9, but must be an integer from 0 to 8"):
        check_action(GAME, state, 9)
    with pytest.raises(ValueError, match="the game is over"):
        check_action(GAME, from_cells(jnp.array([1, 1, 1, 2, 2, 0, 0, 0, 0])), 5)


def test_drawings():
    state = from_cells(jnp.array([1, 0, 2, 0, 1, 0, 0, 0, 0]))
    assert draw.board(state) == " X | 2 | O\n---+---+---\n 4 | X | 6\n---+---+---\n 7 | 8 | 9"
    shapes = [child.tag.split("}")[1] for child in ElementTree.fromstring(draw.svg(state))]
    assert (shapes.count("line"), shapes.count("circle")) == (4 + 2 * 2, 1)
