"""The solution, entered cell by cell."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.bots import pick
from envs.games.sudoku.rules import SudokuState


@dataclasses.dataclass(frozen=True)
class SudokuSolver:
    """Writes a right digit into a cell that is not right yet, chosen uniformly."""

    def act(self, state: SudokuState, key: jax.Array) -> jax.Array:
        """A right entry: int32[]; when none is missing, an entry of cell 0."""
        size = state.grid.shape[0]
        cell = pick((state.grid != state.solution).reshape(-1), key)
        return cell * size + state.solution.reshape(-1)[cell].astype(jnp.int32) - 1
