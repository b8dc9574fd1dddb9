"""Sudoku: one entry per turn until the grid is solved.

Axis letters: n digits (4 or 9), C = n * n cells, row by row, A = C * n actions.

Action cell * n + (digit - 1) writes a digit into a cell that is not given, possibly over an earlier entry. A digit that
conflicts with a given in its row, column or box is rejected and costs `contradiction_reward`. A digit that conflicts
with earlier entries erases them. The grid therefore never contradicts itself, a full grid is the solution, and every
position can still be solved.

Rewards: team for solving the puzzle; agent for rejected entries; process for the share of empty cells that became
correct (or, by overwriting or erasing, incorrect again), which adds up to `cell_reward` over a solved puzzle.
"""

import dataclasses
import functools
import os
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Reward, legal_or_end
from envs.games.pools import Pool
from envs.games.puzzle import Puzzle
from envs.games.sudoku import levels as levels_
from envs.games.sudoku.solver import box_side


class SudokuState(NamedTuple):
    """State of a puzzle.

    Attributes:
        puzzle: uint8 [n, n]. The givens, 0 elsewhere; constant.
        solution: uint8 [n, n]. Constant, never shown.
        grid: uint8 [n, n]. The current digits, 0 in empty cells.
        missing: int32 []. Number of cells that are not correct yet.
        turn: int32 []. Number of entries tried.
        level: int32 []. Index in the split, -1 for a level from elsewhere.
    """

    puzzle: jax.Array
    solution: jax.Array
    grid: jax.Array
    missing: jax.Array
    turn: jax.Array
    level: jax.Array


@dataclasses.dataclass(frozen=True)
class Sudoku(Puzzle):
    """The game of Sudoku; see `Puzzle` for the pool.

    Attributes:
        n_test: Number of test puzzles of a generated pool; by default 512 of 4x4 or 128 of 9x9, which take 0.1 s each.
        size: n, 4 (the default) or 9. With a pool, it follows from the pool.
        empties: Minimum and maximum number of empty cells of generated puzzles.
        mask_invalid: Whether entries that would be rejected are illegal.
        cell_reward: Total process reward for correct cells.
        contradiction_reward: Agent reward of a rejected entry.
        solved_reward: Team reward for solving the puzzle.
    """

    name: ClassVar[str] = "sudoku"
    symbols: ClassVar[tuple[str, ...]] = tuple(".123456789")
    process_rewards: ClassVar[tuple[str, ...]] = ("cell_reward",)
    success_reward: ClassVar[str] = "solved_reward"

    n_test: int | None = None
    size: int | None = None
    empties: tuple[int, int] | None = None
    mask_invalid: bool = False
    cell_reward: float = 1.0
    contradiction_reward: float = -0.1
    solved_reward: float = 1.0

    def __post_init__(self):
        if self.empties is not None:
            object.__setattr__(self, "empties", tuple(self.empties))
        super().__post_init__()
        side = self.shape[0]
        if self.size not in (None, side):
            raise ValueError(f"sudoku: size is {self.size}, but the pool has {side}x{side} grids")
        object.__setattr__(self, "size", side)
        if self.max_turns < self._most_empty:
            raise ValueError(f"sudoku: budget is {self.max_turns}, but a level has {self._most_empty} empty cells")

    def generate_pool(self) -> Pool:
        """Generate a pool from size, empties, seed, n_train and n_test."""
        size = 4 if self.size is None else self.size
        n_test = self.n_test if self.n_test is not None else 512 if size == 4 else 128
        return levels_.generate(size, self.empties, self.seed, self.n_train, n_test, self.difficulty_levels)

    def load_pool(self, path: str | os.PathLike) -> Pool:
        """Load the pool from a file."""
        return levels_.load(path)

    def difficulty(self) -> np.ndarray:
        """Return the number of empty cells: float [N]."""
        return levels_.difficulty(self.levels.arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the grid."""
        return self.levels["puzzle"].shape[1:]

    @property
    def n_digits(self) -> int:
        """n: number of digits, rows and columns."""
        return self.shape[0]

    @functools.cached_property
    def _most_empty(self) -> int:
        return int((self.levels["puzzle"] == 0).sum((1, 2)).max())

    @property
    def max_turns(self) -> int:
        """Maximum number of entries.

        It is the budget, by default twice the largest number of empty cells in a level.
        """
        return 2 * self._most_empty if self.budget is None else self.budget

    @property
    def n_actions(self) -> int:
        """A: number of actions, one per cell and digit."""
        return self.n_digits**3

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the actions: r1c1=1, r1c1=2 and so on."""
        span = range(1, self.n_digits + 1)
        return tuple(f"r{row}c{column}={digit}" for row in span for column in span for digit in span)

    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> SudokuState:
        """Return the first state of {"puzzle": uint8 [n, n], "solution": uint8 [n, n]}."""
        puzzle = jnp.asarray(level["puzzle"], jnp.uint8)
        return SudokuState(
            puzzle=puzzle,
            solution=jnp.asarray(level["solution"], jnp.uint8),
            grid=puzzle,
            missing=(puzzle == 0).sum().astype(jnp.int32),
            turn=jnp.int32(0),
            level=jnp.asarray(index, jnp.int32),
        )

    def _peers(self, cell: jax.Array) -> jax.Array:
        """Return the cells in the same row, column or box as `cell`: bool [n, n]."""
        n, side = self.n_digits, box_side(self.n_digits)
        row, column, span = cell // n, cell % n, np.arange(n)
        in_row, in_column = span == row, span == column
        in_band, in_stack = span // side == row // side, span // side == column // side
        return in_row[:, None] | in_column | (in_band[:, None] & in_stack)

    def legal(self, state: SudokuState) -> jax.Array:
        """Return the legal actions: bool [A].

        These are all digits in all cells that are not given, except the current digit.
        """
        n, side = self.n_digits, box_side(self.n_digits)
        digits = jnp.arange(1, n + 1, dtype=state.grid.dtype)
        open_cells = (state.puzzle == 0)[..., None] & (state.grid[..., None] != digits)
        if self.mask_invalid:
            given = state.puzzle[..., None] == digits
            in_row = given.any(axis=1, keepdims=True)
            in_column = given.any(axis=0, keepdims=True)
            in_box = given.reshape(n // side, side, n // side, side, n).any(axis=(1, 3), keepdims=True)
            in_box = jnp.broadcast_to(in_box, (n // side, side, n // side, side, n)).reshape(n, n, n)
            open_cells &= ~(in_row | in_column | in_box)
        return legal_or_end(open_cells.reshape(-1), self.done(state))

    def step(self, state: SudokuState, action: jax.Array) -> tuple[SudokuState, Reward]:
        """Write a digit, unless it is rejected."""
        running = ~self.done(state)
        cell, digit = action // self.n_digits, action % self.n_digits + 1
        here = jnp.arange(self.n_digits**2).reshape(self.shape) == cell
        clash = self._peers(cell) & (state.grid == digit) & ~here
        given = state.puzzle > 0
        refused = running & ((clash | here) & given).any()
        written = jnp.where(here, digit, jnp.where(clash, 0, state.grid)).astype(state.grid.dtype)
        grid = jnp.where(running & ~refused, written, state.grid)
        missing = (grid != state.solution).sum().astype(jnp.int32)
        empty = jnp.maximum((~given).sum(), 1)
        reward = Reward(
            team=jnp.float32(self.solved_reward * (running & (missing == 0))),
            agent=jnp.float32(self.contradiction_reward * refused)[None],
            process=jnp.float32(self.cell_reward * (state.missing - missing) / empty)[None],
        )
        return state._replace(grid=grid, missing=missing, turn=state.turn + running), reward

    def done(self, state: SudokuState) -> jax.Array:
        """Return whether the puzzle is solved or out of turns."""
        return self.success(state) | (state.turn >= self.max_turns)

    def success(self, state: SudokuState) -> jax.Array:
        """Return whether every cell is correct."""
        return state.missing == 0

    def cells(self, state: SudokuState) -> jax.Array:
        """Return the digit in each cell, 0 if empty: int32 [C]."""
        return cells(state)

    def surroundings(self, state: SudokuState, action: jax.Array, radius: int) -> jax.Array:
        """Return the row, column and box of the cell of `action`: bool [C].

        The radius has no effect. Without an action, no cell is visible.
        """
        return (self._peers(action // self.n_digits) & (action >= 0)).reshape(-1)


def cells(state: SudokuState) -> jax.Array:
    """Return the digit in each cell, 0 if empty: int32 [C]."""
    return state.grid.reshape(-1).astype(jnp.int32)
