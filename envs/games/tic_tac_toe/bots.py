"""Perfect play from a table of all 3^9 boards, computed on the host."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import pick
from envs.games.tic_tac_toe.rules import FULL, LINES, TicTacToeState, cells

_POWERS = 3 ** np.arange(9)


@functools.cache
def tables() -> tuple[np.ndarray, np.ndarray]:
    """Compute the value and the best moves of every reachable position.

    Returns:
        value: int8 [3^9]. Value for the player to move: 1 won, 0 drawn, -1 lost, and 0 for unreachable boards.
        best: int16 [3^9]. Bit i is set if cell i preserves the value; 0 if the game is over.
    """
    value, best = np.zeros(3**9, np.int8), np.zeros(3**9, np.int16)
    solved = np.zeros(3**9, bool)

    def solve(own: int, other: int, own_is_cross: bool) -> int:
        crosses, noughts = (own, other) if own_is_cross else (other, own)
        where = sum(int(_POWERS[i]) * ((crosses >> i & 1) + 2 * (noughts >> i & 1)) for i in range(9))
        if solved[where]:
            return int(value[where])
        solved[where] = True
        if any(other & line == line for line in LINES):
            value[where] = -1
        elif own | other != FULL:
            empty = [i for i in range(9) if not (own | other) >> i & 1]
            values = [-solve(other, own | 1 << i, not own_is_cross) for i in empty]
            value[where] = max(values)
            best[where] = sum(1 << i for i, v in zip(empty, values, strict=True) if v == max(values))
        return int(value[where])

    solve(0, 0, True)
    return value, best


def index(state: TicTacToeState) -> jax.Array:
    """Return the row of a position in the tables: int32 []."""
    return jnp.sum(cells(state) * jnp.asarray(_POWERS, jnp.int32))


@dataclasses.dataclass(frozen=True)
class MinimaxBot:
    """A bot that samples uniformly among optimal moves, and never loses."""

    def act(self, state: TicTacToeState, key: jax.Array) -> jax.Array:
        """Sample an optimal cell: int32 []; 0 if the game is over."""
        best = jnp.asarray(tables()[1])[index(state)]
        choice = pick(best >> jnp.arange(9, dtype=jnp.int16) & 1 == 1, key)
        return jnp.where(state.over, 0, choice)
