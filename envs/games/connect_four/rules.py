"""Connect four with 6 rows and 7 columns, on bitboards; player 0 starts.

A board consists of two uint32: columns 0 to 3 in `left` and columns 4 to 6 in `right`, one byte per column, with row 0
(the bottom) in the lowest bit. The two spare bits at the top of each column keep lines from wrapping around the edge,
and adding one to the lowest bit of a column carries to its first empty place. Actions are columns.
"""

import dataclasses
import functools
import operator
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Game, Reward, keep_if_done, legal_or_end

ROWS, COLUMNS = 6, 7

_DIRECTIONS = (1, 8, 7, 9)
"""Bits from a place to the next one up, across, down-right and up-right."""


Word = jax.Array | np.uint32
"""Half of a board. `PLACES` is NumPy, so that importing this module creates no JAX array."""


class Board(NamedTuple):
    """Stones of one player: columns 0-3 and columns 4-6, one byte each, both uint32 []."""

    left: Word
    right: Word


PLACES = Board(np.uint32(0x3F3F3F3F), np.uint32(0x003F3F3F))
"""All 42 places, without the spare bits."""


class ConnectFourState(NamedTuple):
    """A position.

    Attributes:
        first: Stones of player 0.
        second: Stones of player 1.
        turns: int32 []. Number of stones on the board.
        over: bool []. Whether there are four in a line or no place left.
    """

    first: Board
    second: Board
    turns: jax.Array
    over: jax.Array


@dataclasses.dataclass(frozen=True)
class ConnectFour(Game):
    """Connect four for two players, zero-sum.

    The agent reward is +1 for the winner, -1 for the loser and 0 for a draw.
    """

    name: ClassVar[str] = "connect_four"
    reset_is_free: ClassVar[bool] = True
    competitive: ClassVar[bool] = True
    perfect_information: ClassVar[bool] = True
    reward_levels: ClassVar[tuple[str, ...]] = ("agent",)
    n_players: ClassVar[int] = 2
    n_actions: ClassVar[int] = COLUMNS
    max_turns: ClassVar[int] = ROWS * COLUMNS
    action_names: ClassVar[tuple[str, ...]] = tuple("1234567")

    def reset(self, key: jax.Array) -> ConnectFourState:
        """Return the empty board; `key` is unused."""
        del key
        empty = Board(jnp.uint32(0), jnp.uint32(0))
        return ConnectFourState(empty, empty, jnp.int32(0), jnp.bool_(False))

    def player(self, state: ConnectFourState) -> jax.Array:
        """Return the seat that moves next: int32 []."""
        return state.turns & 1

    def legal(self, state: ConnectFourState) -> jax.Array:
        """Return the columns that are not full: bool [7]."""
        return legal_or_end(open_columns(union(state.first, state.second)), state.over)

    def step(self, state: ConnectFourState, action: jax.Array) -> tuple[ConnectFourState, Reward]:
        """Drop a stone of the player to move into column `action`."""
        odd = self.player(state) == 1
        own = select(odd, state.second, state.first)
        own = union(own, drop(union(state.first, state.second), action))
        won = has_four(own)
        turns = state.turns + 1
        new = ConnectFourState(
            first=select(odd, state.first, own),
            second=select(odd, own, state.second),
            turns=turns,
            over=won | (turns == ROWS * COLUMNS),
        )
        gain = jnp.where(won & ~state.over, jnp.where(odd, -1.0, 1.0), 0.0)
        reward = Reward(jnp.float32(0), jnp.stack([gain, -gain]), jnp.zeros(2))
        return keep_if_done(state.over, state, new), reward

    def done(self, state: ConnectFourState) -> jax.Array:
        """Return whether there are four in a line or the board is full: bool []."""
        return state.over


def union(a: Board, b: Board) -> Board:
    """Return the stones on either board."""
    return Board(a.left | b.left, a.right | b.right)


def intersection(a: Board, b: Board) -> Board:
    """Return the stones on both boards."""
    return Board(a.left & b.left, a.right & b.right)


def select(condition: jax.Array, a: Board, b: Board) -> Board:
    """Return board `a` if the condition (bool []) holds, else `b`."""
    return Board(jnp.where(condition, a.left, b.left), jnp.where(condition, a.right, b.right))


def drop(taken: Board, column: jax.Array) -> Board:
    """Return the stone that lands on top of `column` (int []) of the `taken` places."""
    shift = (column.astype(jnp.uint32) & 3) * 8
    in_left = column < 4
    word = jnp.where(in_left, taken.left, taken.right)
    place = word + (jnp.uint32(1) << shift) & jnp.uint32(0xFF) << shift
    zero = jnp.uint32(0)
    return Board(jnp.where(in_left, place, zero), jnp.where(in_left, zero, place))


def open_columns(taken: Board) -> jax.Array:
    """Return the columns with an empty place: bool [7]."""
    columns = jnp.arange(COLUMNS, dtype=jnp.uint32)
    words = jnp.where(columns < 4, taken.left, taken.right)
    return words >> ((columns & 3) * 8 + ROWS - 1) & 1 == 0


def has_four(board: Board) -> jax.Array:
    """Return whether there are four stones in a line: bool []."""
    return functools.reduce(operator.or_, (word for starts in line_starts(board) for word in starts)) != 0


def line_starts(board: Board) -> list[Board]:
    """Return the starts of all lines of four stones, for each of the four directions."""
    pairs = [intersection(board, _shift(board, step)) for step in _DIRECTIONS]
    return [intersection(pair, _shift(pair, 2 * step)) for pair, step in zip(pairs, _DIRECTIONS, strict=True)]


def _shift(board: Board, places: int) -> Board:
    """Shift both words down by `places` bits, as one 64-bit number."""
    return Board(board.left >> places | board.right << (32 - places), board.right >> places)


def stones(board: Board) -> jax.Array:
    """Return the places of a player's stones, row 0 at the top: bool [6, 7]."""
    columns = jnp.arange(COLUMNS, dtype=jnp.uint32)
    rows = jnp.arange(ROWS - 1, -1, -1).astype(jnp.uint32)[:, None]
    words = jnp.where(columns < 4, board.left, board.right)
    return words >> ((columns & 3) * 8 + rows) & 1 == 1


def cells(state: ConnectFourState) -> jax.Array:
    """Return the content of each place: int8 [6, 7], row 0 at the top.

    0 is empty, 1 a stone of player 0, 2 a stone of player 1.
    """
    return stones(state.first).astype(jnp.int8) + 2 * stones(state.second).astype(jnp.int8)
