"""Tic-tac-toe: player 0 draws crosses and starts, player 1 draws noughts.

Cells and actions are numbered from 0 to 8, row by row from the top left. Bit i of a board is cell i.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs.games.game import Game, Reward, keep_if_done, legal_or_end

LINES = (0b111, 0b111000, 0b111000000, 0b001001001, 0b010010010, 0b100100100, 0b100010001, 0b001010100)
"""The eight lines, as boards."""

FULL = 0b111111111


class TicTacToeState(NamedTuple):
    """A position.

    Attributes:
        crosses: int32 []. Board of player 0's marks.
        noughts: int32 []. Board of player 1's marks.
        over: bool []. Whether a line is complete or the board is full.
    """

    crosses: jax.Array
    noughts: jax.Array
    over: jax.Array


@dataclasses.dataclass(frozen=True)
class TicTacToe(Game):
    """Tic-tac-toe for two players, zero-sum.

    The agent reward is +1 for the winner, -1 for the loser and 0 for a draw.
    """

    name: ClassVar[str] = "tic_tac_toe"
    reset_is_free: ClassVar[bool] = True
    competitive: ClassVar[bool] = True
    perfect_information: ClassVar[bool] = True
    reward_levels: ClassVar[tuple[str, ...]] = ("agent",)
    n_players: ClassVar[int] = 2
    n_actions: ClassVar[int] = 9
    max_turns: ClassVar[int] = 9
    action_names: ClassVar[tuple[str, ...]] = tuple("123456789")

    def reset(self, key: jax.Array) -> TicTacToeState:
        """Return the empty board; `key` is unused."""
        del key
        return TicTacToeState(jnp.int32(0), jnp.int32(0), jnp.bool_(False))

    def player(self, state: TicTacToeState) -> jax.Array:
        """Return the seat that moves next: int32 []."""
        return jax.lax.population_count(state.crosses | state.noughts) & 1

    def legal(self, state: TicTacToeState) -> jax.Array:
        """Return the empty cells: bool [9]."""
        taken = (state.crosses | state.noughts) >> jnp.arange(9) & 1
        return legal_or_end(taken == 0, state.over)

    def step(self, state: TicTacToeState, action: jax.Array) -> tuple[TicTacToeState, Reward]:
        """Mark cell `action` for the player to move."""
        second = self.player(state) == 1
        mark = jnp.int32(1) << action.astype(jnp.int32)
        crosses = jnp.where(second, state.crosses, state.crosses | mark)
        noughts = jnp.where(second, state.noughts | mark, state.noughts)
        won = has_line(jnp.where(second, noughts, crosses))
        new = TicTacToeState(crosses, noughts, won | (crosses | noughts == FULL))
        gain = jnp.where(won & ~state.over, jnp.where(second, -1.0, 1.0), 0.0)
        reward = Reward(jnp.float32(0), jnp.stack([gain, -gain]), jnp.zeros(2))
        return keep_if_done(state.over, state, new), reward

    def done(self, state: TicTacToeState) -> jax.Array:
        """Return whether a line is complete or the board is full: bool []."""
        return state.over


def has_line(board: jax.Array) -> jax.Array:
    """Return whether `board` (int [...]) has one of the eight lines: bool [...]."""
    complete = board & LINES[0] == LINES[0]
    for line in LINES[1:]:
        complete |= board & line == line
    return complete


def cells(state: TicTacToeState) -> jax.Array:
    """Return the content of each cell, 0 empty, 1 cross, 2 nought: int8 [9]."""
    places = jnp.arange(9)
    return ((state.crosses >> places & 1) + 2 * (state.noughts >> places & 1)).astype(jnp.int8)


def from_cells(board: jax.Array) -> TicTacToeState:
    """Return the position with the given cells (int [9]), the inverse of `cells`."""
    bits = 1 << jnp.arange(9)
    crosses, noughts = (jnp.sum(jnp.where(board == mark, bits, 0)).astype(jnp.int32) for mark in (1, 2))
    return TicTacToeState(crosses, noughts, has_line(crosses) | has_line(noughts) | (crosses | noughts == FULL))
