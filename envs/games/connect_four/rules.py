"""Connect four on 6 rows and 7 columns, on bitboards: player 0 begins.

A board is two uint32: columns 0 to 3 in `left`, columns 4 to 6 in `right`, one byte per column, row 0 (the bottom) in
its lowest bit. The two spare bits on top of each column keep lines from running around the edge, and adding one to a
column's lowest bit carries to its first empty place. Actions are columns.
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
"""Half of a board; the constant `PLACES` is NumPy, so that importing this module creates no JAX array."""


class Board(NamedTuple):
    """One player's stones: columns 0-3 and columns 4-6, a byte each, both uint32[]."""

    left: Word
    right: Word


PLACES = Board(np.uint32(0x3F3F3F3F), np.uint32(0x003F3F3F))
"""All 42 places, without the spare bits."""


class ConnectFourState(NamedTuple):
    """A position.

    first: Board   player 0's stones
    second: Board  player 1's stones
    turns: int32[] stones on the board
    over: bool[]   four in a line or no place left
    """

    first: Board
    second: Board
    turns: jax.Array
    over: jax.Array


@dataclasses.dataclass(frozen=True)
class ConnectFour(Game):
    """Two players, zero-sum: the winner's agent reward is +1, the loser's -1, a draw pays nothing."""

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
        """The empty board; `key` is unused, nothing is random."""
        del key
        empty = Board(jnp.uint32(0), jnp.uint32(0))
        return ConnectFourState(empty, empty, jnp.int32(0), jnp.bool_(False))

    def player(self, state: ConnectFourState) -> jax.Array:
        """The seat that moves now: int32[]."""
        return state.turns & 1

    def legal(self, state: ConnectFourState) -> jax.Array:
        """Columns that are not full: bool[7]."""
        return legal_or_end(open_columns(union(state.first, state.second)), state.over)

    def step(self, state: ConnectFourState, action: jax.Array) -> tuple[ConnectFourState, Reward]:
        """Drop a stone of the player to move into column `action`."""
        odd = self.player(state) == 1
        mine = select(odd, state.second, state.first)
        mine = union(mine, drop(union(state.first, state.second), action))
        won = has_four(mine)
        turns = state.turns + 1
        new = ConnectFourState(
            first=select(odd, state.first, mine),
            second=select(odd, mine, state.second),
            turns=turns,
            over=won | (turns == ROWS * COLUMNS),
        )
        pay = jnp.where(won & ~state.over, jnp.where(odd, -1.0, 1.0), 0.0)
        reward = Reward(jnp.float32(0), jnp.stack([pay, -pay]), jnp.zeros(2))
        return keep_if_done(state.over, state, new), reward

    def done(self, state: ConnectFourState) -> jax.Array:
        """Whether someone has four in a line or the board is full: bool[]."""
        return state.over


def union(a: Board, b: Board) -> Board:
    """The stones of either board."""
    return Board(a.left | b.left, a.right | b.right)


def intersection(a: Board, b: Board) -> Board:
    """The stones of both boards."""
    return Board(a.left & b.left, a.right & b.right)


def select(condition: jax.Array, a: Board, b: Board) -> Board:
    """Board `a` where the condition (bool[]) holds, else `b`."""
    return Board(jnp.where(condition, a.left, b.left), jnp.where(condition, a.right, b.right))


def drop(taken: Board, column: jax.Array) -> Board:
    """The one stone that lands on top of `column` (int[]) of the `taken` places."""
    shift = (column.astype(jnp.uint32) & 3) * 8
    in_left = column < 4
    word = jnp.where(in_left, taken.left, taken.right)
    place = word + (jnp.uint32(1) << shift) & jnp.uint32(0xFF) << shift
    zero = jnp.uint32(0)
    return Board(jnp.where(in_left, place, zero), jnp.where(in_left, zero, place))


def open_columns(taken: Board) -> jax.Array:
    """Columns with an empty place: bool[7]."""
    columns = jnp.arange(COLUMNS, dtype=jnp.uint32)
    words = jnp.where(columns < 4, taken.left, taken.right)
    return words >> ((columns & 3) * 8 + ROWS - 1) & 1 == 0


def has_four(board: Board) -> jax.Array:
    """Whether four stones stand in a line: bool[]."""
    return functools.reduce(operator.or_, (word for starts in line_starts(board) for word in starts)) != 0


def line_starts(board: Board) -> list[Board]:
    """The places where a line of four stones begins, for the four directions: up, across and the two diagonals."""
    pairs = [intersection(board, _shift(board, step)) for step in _DIRECTIONS]
    return [intersection(pair, _shift(pair, 2 * step)) for pair, step in zip(pairs, _DIRECTIONS, strict=True)]


def _shift(board: Board, places: int) -> Board:
    """Both words moved down by `places` bits as one number of 64 bits."""
    return Board(board.left >> places | board.right << (32 - places), board.right >> places)


def stones(board: Board) -> jax.Array:
    """Where a player's stones are: bool[6, 7], row 0 at the top as one draws it."""
    columns = jnp.arange(COLUMNS, dtype=jnp.uint32)
    rows = jnp.arange(ROWS - 1, -1, -1).astype(jnp.uint32)[:, None]
    words = jnp.where(columns < 4, board.left, board.right)
    return words >> ((columns & 3) * 8 + rows) & 1 == 1


def cells(state: ConnectFourState) -> jax.Array:
    """What each place holds: int8[6, 7], row 0 at the top; 0 empty, 1 a stone of player 0, 2 one of player 1."""
    return stones(state.first).astype(jnp.int8) + 2 * stones(state.second).astype(jnp.int8)
