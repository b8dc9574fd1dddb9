"""The eight rotations and reflections of the board, for self-play augmentation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.tic_tac_toe.rules import TicTacToe, TicTacToeState, cells, from_cells

_GRID = np.arange(9).reshape(3, 3)
_SOURCE = np.stack([np.rot90(grid, turns).ravel() for grid in (_GRID, _GRID.T) for turns in range(4)]).astype(np.int32)
"""int32 [8, 9]: cell c of the transformed board comes from cell _SOURCE[i, c]."""
_TARGET = np.argsort(_SOURCE, axis=1).astype(np.int32)
"""int32 [8, 9]: cell c of the board moves to cell _TARGET[i, c]."""


@dataclasses.dataclass(frozen=True)
class TicTacToeSymmetry:
    """Symmetries of tic-tac-toe.

    Symmetry 0 is the identity, and `step(apply(s, i), map_action(a, i)) == apply(step(s, a), i)` for all eight.
    """

    game: TicTacToe

    @property
    def n_symmetries(self) -> int:
        """Number of symmetries: four rotations, each with and without a reflection."""
        return 8

    def apply(self, state: TicTacToeState, i: jax.Array) -> TicTacToeState:
        """Apply symmetry `i` (int [], 0 to 7) to a position."""
        return from_cells(cells(state)[jnp.asarray(_SOURCE)[i]])

    def map_action(self, action: jax.Array, i: jax.Array) -> jax.Array:
        """Map an action to its equivalent under symmetry `i`: int32 []."""
        return jnp.asarray(_TARGET)[i, action]
