"""Connect four against OpenSpiel over random playouts, its search bot, its symmetry and its drawings."""

from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import UniformBot
from envs.games.connect_four import draw, threats
from envs.games.connect_four.bots import SearchBot
from envs.games.connect_four.rules import Board, ConnectFour, ConnectFourState, cells, has_four
from envs.games.connect_four.symmetry import ConnectFourSymmetry

pyspiel = pytest.importorskip("pyspiel")
GAME = ConnectFour()
SYMMETRY = ConnectFourSymmetry(GAME)
STEP = jax.jit(GAME.step)
PLAYOUTS, TURNS = 300, GAME.max_turns
ROW_BITS = np.arange(6, dtype=np.uint64)[:, None]


def play(columns: str):
    """The state after dropping stones into the given columns (numbered from 1)."""
    state = GAME.reset(jax.random.key(0))
    for column in columns:
        state, _ = STEP(state, jnp.int32(int(column) - 1))
    return state


@pytest.fixture(scope="module")
def playouts():
    """Random games of OpenSpiel: per step and game the player, legal set, action; reward, end and board after it."""
    rng = np.random.default_rng(0)
    shape = (TURNS, PLAYOUTS)
    out = {
        "player": np.zeros(shape, int),
        "legal": np.zeros((*shape, 7), bool),
        "action": np.zeros(shape, np.int32),
        "reward": np.zeros((*shape, 2), np.float32),
        "done": np.ones(shape, bool),
        "cells": np.zeros((*shape, 6, 7), np.int8),
        "live": np.zeros(shape, bool),
    }
    game = pyspiel.load_game("connect_four")
    for g in range(PLAYOUTS):
        state, t = game.new_initial_state(), 0
        while not state.is_terminal():
            legal = state.legal_actions()
            action = rng.choice(legal)
            out["live"][t, g] = True
            out["player"][t, g] = state.current_player()
            out["legal"][t, g, legal] = True
            out["action"][t, g] = action
            state.apply_action(action)
            out["reward"][t, g] = state.rewards()
            out["done"][t, g] = state.is_terminal()
            out["cells"][t, g] = [[".xo".index(c) for c in row] for row in str(state).split()]
            t += 1
    return out


def test_playouts_equal_open_spiel(playouts):
    def turn(state, action):
        after, reward = GAME.step(state, action)
        return after, (GAME.player(state), GAME.legal(state), reward, GAME.done(after), cells(after))

    def replay(actions):
        return jax.lax.scan(turn, GAME.reset(jax.random.key(0)), actions)

    last, (player, legal, reward, done, board) = jax.jit(jax.vmap(replay, 1, (0, 1)))(playouts["action"])
    live = playouts["live"]
    assert live.sum() > PLAYOUTS * 15 and (playouts["reward"].sum(0)[:, 0] < 0).any()
    np.testing.assert_array_equal(np.asarray(player)[live], playouts["player"][live])
    np.testing.assert_array_equal(np.asarray(legal)[live], playouts["legal"][live])
    np.testing.assert_array_equal(reward.agent, playouts["reward"])  # zero after the end: terminal states absorb
    np.testing.assert_array_equal(done, playouts["done"])
    np.testing.assert_array_equal(np.asarray(board)[live], playouts["cells"][live])
    scores = playouts["reward"].sum(0)[:, 0]
    fours = [jax.vmap(has_four)(board) for board in (last.first, last.second)]
    np.testing.assert_array_equal(fours, [scores > 0, scores < 0])


def test_draw_fills_the_board():
    columns = "121212" + "212121" + "343434" + "434343" + "565656" + "656565" + "777777"
    state = play(columns)
    assert bool(GAME.done(state)) and not has_four(state.first) and not has_four(state.second)
    np.testing.assert_array_equal(GAME.legal(state), np.arange(7) == 0)


def test_lines_on_any_board():
    """`has_four` equals a plain search for lines on boards that need not come from play (edges, both words)."""
    rng = np.random.default_rng(0)
    boards = rng.random((2000, 6, 7)) < rng.uniform(0.2, 0.6, (2000, 1, 1))
    bits = (boards[:, ::-1].astype(np.uint64) << ROW_BITS).sum(1)  # [n, 7], a byte each
    words = (bits << (np.arange(7) % 4 * 8).astype(np.uint64)).astype(np.uint32)
    ours = jax.vmap(has_four)(Board(words[:, :4].sum(1, dtype=np.uint32), words[:, 4:].sum(1, dtype=np.uint32)))
    plain = np.zeros(2000, bool)
    for image in (boards, boards[:, :, ::-1]):
        for down, right in ((1, 0), (0, 1), (1, 1)):
            steps = [image[:, k * down : 6 - (3 - k) * down, k * right : 7 - (3 - k) * right] for k in range(4)]
            plain |= np.logical_and.reduce(steps).any((1, 2))
    assert 0.2 < plain.mean() < 0.8
    np.testing.assert_array_equal(ours, plain)


def test_what_the_next_stones_do(playouts):
    """Against a plain search on the boards of OpenSpiel's games, for both seats; all facts come up."""
    live = playouts["live"] & ~playouts["done"]
    boards, turns = playouts["cells"][live][::9], (np.arange(TURNS)[:, None] + np.ones(PLAYOUTS, int))[live][::9]
    bits = (np.stack([boards == mark for mark in (1, 2)])[:, :, ::-1].astype(np.uint64) << ROW_BITS).sum(2)
    words = (bits << (np.arange(7) % 4 * 8).astype(np.uint64)).astype(np.uint32)
    first, second = (Board(w[:, :4].sum(1, dtype=np.uint32), w[:, 4:].sum(1, dtype=np.uint32)) for w in words)
    state = ConnectFourState(first, second, turns.astype(np.int32), np.zeros(len(turns), bool))
    found = np.asarray(jax.jit(jax.vmap(jax.vmap(threats.next_stones, (None, 0)), (0, None)))(state, jnp.arange(2)))
    seen = set()
    for board, by_seat in zip(boards, found, strict=True):
        for seat, facts in enumerate(by_seat):
            own, other = 1 + seat, 2 - seat
            for column, fact in enumerate(facts):
                row = np.count_nonzero(board[:, column] == 0) - 1  # of the next stone; the top row is 0
                tests = (
                    (threats.CLOSED, row < 0),
                    (threats.WINS, row >= 0 and makes_four(board, row, column, own)),
                    (threats.BLOCKS, row >= 0 and makes_four(board, row, column, other)),
                    (threats.GIVES, row >= 1 and makes_four(board, row - 1, column, other)),
                    (threats.SPOILS, row >= 1 and makes_four(board, row - 1, column, own)),
                )
                assert fact == next((name for name, holds in tests if holds), threats.PLAIN)
                seen.add(int(fact))
    assert seen == set(range(6))
    over, _ = jax.jit(GAME.step)(play("112233"), jnp.int32(3))
    assert np.all(np.asarray(threats.next_stones(over, 0)) == threats.CLOSED)


def makes_four(board: np.ndarray, row: int, column: int, mark: int) -> bool:
    """Whether a stone at this place is part of a line of four."""

    def run(down: int, right: int) -> int:
        r, c, length = row + down, column + right, 0
        while 0 <= r < 6 and 0 <= c < 7 and board[r, c] == mark:
            r, c, length = r + down, c + right, length + 1
        return length

    return any(run(d, r) + run(-d, -r) >= 3 for d, r in ((1, 0), (0, 1), (1, 1), (1, -1)))


def test_search_takes_wins_and_blocks():
    bot, key = SearchBot(depth=2), jax.random.key(0)
    act = jax.jit(bot.act)
    assert int(act(play("112233"), key)) == 3
    assert int(act(play("1727377"), key)) == 3
    assert int(act(play("71727"), key)) == 6
    assert int(np.argmin(jax.jit(bot.values)(play("111111")))) == 0


def test_search_beats_random():
    bots = SearchBot(depth=3), UniformBot(GAME)

    def game(key, seat):
        def turn(state, key):
            actions = jnp.stack([bot.act(state, key) for bot in bots])
            state, reward = GAME.step(state, actions[(GAME.player(state) != seat).astype(jnp.int32)])
            return state, reward.agent[seat]

        return jax.lax.scan(turn, GAME.reset(key), jax.random.split(key, TURNS))[1].sum()

    keys = jax.random.split(jax.random.key(1), 64)
    result = np.asarray(jax.jit(jax.vmap(game))(keys, jnp.arange(64) % 2))
    assert result.mean() > 0.9


def test_search_depth_is_checked():
    with pytest.raises(ValueError, match="depth is 0, but must be an integer from 1 to 6"):
        SearchBot(depth=0)


def test_step_commutes_with_the_mirror(playouts):
    def game(actions):
        def turn(pair, action):
            straight, mirrored = pair
            straight, _ = GAME.step(straight, action)
            mirrored, _ = GAME.step(mirrored, SYMMETRY.map_action(action, 1))
            return (straight, mirrored), (SYMMETRY.apply(straight, 1), mirrored, SYMMETRY.apply(straight, 0), straight)

        start = GAME.reset(jax.random.key(0))
        return jax.lax.scan(turn, (start, start), actions)[1]

    image, mirrored, same, straight = jax.jit(jax.vmap(game, 1))(playouts["action"][:, :64])
    jax.tree.map(np.testing.assert_array_equal, image, mirrored)
    jax.tree.map(np.testing.assert_array_equal, same, straight)


def test_drawings():
    state = play("4435")
    assert draw.board(state).splitlines()[-3:] == ["| . . . O . . . |", "| . . X X O . . |", "  1 2 3 4 5 6 7"]
    fills = [child.get("fill") for child in ElementTree.fromstring(draw.svg(state)) if child.tag.endswith("circle")]
    assert sorted(fills.count(fill) for fill in set(fills)) == [2, 2, 38]
