"""Perfect play of the pursuit game by retrograde analysis of all positions, in NumPy.

A position consists of the cells of the two pursuers and the evader, each one of C, so arrays have axes [C, C, C]. The
sweeps of `rounds_to_capture` start from the positions in which the evader is caught and go back by one round each,
until nothing changes.

Two pursuers always win on an open grid. If they choose their cells first and the evader chooses its cell next, they
need floor((h + w) / 2) - 1 rounds on h x w cells (Mehrabian, "The capture time of grids", 2011).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

N_SEATS, EVADER = 3, 2
STEPS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Rows and columns that each action moves: stay, up, down, left, right."""
NEVER = 127
"""Number of rounds that stands for no capture during the sweeps."""


@functools.cache
def targets(shape: tuple[int, int]) -> np.ndarray:
    """Return the cell that each action leads to: int32 [C, A], -1 off the grid."""
    height, width = shape
    row, column = np.divmod(np.arange(height * width), width)
    rows, columns = (here[:, None] + step for here, step in zip((row, column), np.transpose(STEPS), strict=True))
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return np.where(inside, rows * width + columns, -1).astype(np.int32)


def caught(cells: int) -> np.ndarray:
    """Return the positions in which the evader is caught: bool [C, C, C]."""
    first, second, evader = np.ogrid[:cells, :cells, :cells]
    return (first == evader) | (second == evader)


def successors(values: np.ndarray, seat: int, after: np.ndarray) -> np.ndarray:
    """Return the value after each move of a seat: [C, C, C, A].

    Args:
        values: [C, C, C]. Value of every position.
        seat: Seat that moves.
        after: int [C, A]. Cell after each move.
    """
    return np.moveaxis(np.take(values, after, axis=seat), seat + 1, -1)


@functools.cache
def rounds_to_capture(shape: tuple[int, int]) -> np.ndarray:
    """Compute the rounds to the capture under perfect play: int8 [3, C, C, C].

    The first axis is the seat to move. The present round counts only before its first move, and a position in which the
    evader is caught needs 0.
    """
    after = targets(shape)
    after = np.where(after < 0, after[:, :1], after)  # staying instead changes neither the best nor the worst move
    over = caught(len(after))
    first = np.where(over, 0, NEVER).astype(np.int16)
    while True:
        third = np.where(over, 0, successors(first, EVADER, after).max(-1))
        second = np.where(over, 0, successors(third, 1, after).min(-1))
        now = np.where(over, 0, np.minimum(1 + successors(second, 0, after).min(-1), NEVER))
        if np.array_equal(now, first):
            return np.stack([now, second, third]).astype(np.int8)
        first = now


def move_rounds(shape: tuple[int, int], cells: jax.Array, seat: jax.Array) -> jax.Array:
    """Return the rounds to the capture after each move: int32 [A].

    Args:
        shape: Height and width of the grid.
        cells: int32 [3]. Cells of the pursuers and the evader.
        seat: int32 []. Seat to move.

    The present round does not count. Moves off the grid are worse than all others.
    """
    after = jnp.asarray(targets(shape))[cells[seat]]
    moved = jnp.where(jnp.arange(N_SEATS) == seat, jnp.maximum(after, 0)[:, None], cells)
    rounds = jnp.asarray(rounds_to_capture(shape))[(seat + 1) % N_SEATS, moved[:, 0], moved[:, 1], moved[:, 2]]
    return jnp.where(after < 0, jnp.where(seat == EVADER, -1, NEVER), rounds.astype(jnp.int32))


def rounds_lost(shape: tuple[int, int], cells: jax.Array, seat: jax.Array) -> jax.Array:
    """Return the rounds that each move loses against perfect play: int32 [A].

    A pursuer loses a round if the capture takes one more, the evader if it takes one less.
    """
    rounds = move_rounds(shape, cells, seat)
    return jnp.where(seat == EVADER, jnp.max(rounds) - rounds, rounds - jnp.min(rounds))
