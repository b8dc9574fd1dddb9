"""A full-width negamax search to a fixed depth, batched level by level inside jit."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.bots import pick
from envs.games.connect_four.rules import (
    COLUMNS,
    PLACES,
    Board,
    ConnectFourState,
    drop,
    has_four,
    line_starts,
    open_columns,
    select,
    union,
)
from envs.games.game import check_range

_WIN = 1000
"""Exceeds the number of lines (69), so that a certain win or loss outweighs every estimate."""


@dataclasses.dataclass(frozen=True)
class SearchBot:
    """A bot that searches `depth` plies ahead.

    It takes wins, blocks threats, prefers early wins and late losses, and breaks ties randomly. A search evaluates
    7^depth boards in parallel.
    """

    depth: int = 4

    def __post_init__(self):
        check_range("connect_four search bot", "depth", self.depth, 1, 6)

    def act(self, state: ConnectFourState, key: jax.Array) -> jax.Array:
        """Sample a column with the highest value: int32 []."""
        values = self.values(state)
        return pick(values == jnp.max(values), key)

    def values(self, state: ConnectFourState) -> jax.Array:
        """Return the value of every column: int32 [7].

        Full columns have a value far below the others.
        """
        odd = state.turns & 1 == 1
        own, other = select(odd, state.second, state.first), select(odd, state.first, state.second)
        return _move_values(own, other, self.depth)


def _move_values(own: Board, other: Board, depth: int) -> jax.Array:
    """Return the values of the seven moves of `own`: int32 [7]."""
    taken = union(own, other)

    def value(column: jax.Array) -> jax.Array:
        moved = union(own, drop(taken, column))
        return jnp.where(has_four(moved), _WIN + depth, -_value(other, moved, depth - 1))

    return jnp.where(open_columns(taken), jax.vmap(value)(jnp.arange(COLUMNS)), -2 * _WIN)


def _value(own: Board, other: Board, depth: int) -> jax.Array:
    """Return the value of a position for `own`, who moves next: int32 []."""
    if depth == 0:
        return _open_lines(own, other) - _open_lines(other, own)
    best = jnp.max(_move_values(own, other, depth))
    return jnp.where(best == -2 * _WIN, 0, best)  # the board is full: a draw


def _open_lines(own: Board, other: Board) -> jax.Array:
    """Count the lines of four in which `other` has no stone: int32 []."""
    free = Board(PLACES.left & ~other.left, PLACES.right & ~other.right)
    counts = [jax.lax.population_count(w) for fours in line_starts(free) for w in fours]
    return sum(counts[1:], start=counts[0]).astype(jnp.int32)
