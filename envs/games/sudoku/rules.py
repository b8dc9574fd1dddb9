"""Sudoku: one entry per turn, until no cell is empty.

Axis letters: n digits (4 or 9), C = n * n cells, row by row, A = C * n actions.

Action cell * n + (digit - 1) writes a digit into a cell that is not given; a given never changes. Writing over an own
entry replaces it. A digit that repeats a given one of its row, column or box is refused and costs
`contradiction_reward`; one that repeats own entries erases those. So the grid never contradicts itself, a full grid is
the solution, and from everywhere the right entries still lead there: nothing can go wrong for good.
Rewards: team, solved; agent, refused entries; process, the share of empty cells that became right (or, by overwriting
or erasing, wrong again), which adds up to `cell_reward` over a solved puzzle.
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
    """One puzzle being filled.

    puzzle: uint8[n,n]    the givens, 0 elsewhere; never changes
    solution: uint8[n,n]  never changes, never shown
    grid: uint8[n,n]      what is written now, 0 where nothing is
    missing: int32[]      cells that are not right yet
    turn: int32[]         entries tried
    level: int32[]        index in the pool part, -1 for a level from elsewhere
    """

    puzzle: jax.Array
    solution: jax.Array
    grid: jax.Array
    missing: jax.Array
    turn: jax.Array
    level: jax.Array


@dataclasses.dataclass(frozen=True)
class Sudoku(Puzzle):
    """The game; pool fields are in `Puzzle`.

    size: n, 4 or 9 (4 unless given); with a pool, the pool's
    empties: fewest and most empty cells of generated puzzles
    n_test: left out, 512 puzzles of 4x4 or 128 of 9x9, which take a tenth of a second each
    mask_invalid: make entries that would be refused illegal
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
        found = self.shape[0]
        if self.size not in (None, found):
            raise ValueError(f"sudoku: the pool has {found}x{found} grids, expected size {self.size}")
        object.__setattr__(self, "size", found)
        if self.max_turns < self._most_empty:
            raise ValueError(f"sudoku: budget {self.max_turns} is too short for {self._most_empty} empty cells")

    def generate_pool(self) -> Pool:
        """A pool from size, empties, seed, n_train and n_test."""
        size = 4 if self.size is None else self.size
        n_test = self.n_test if self.n_test is not None else 512 if size == 4 else 128
        return levels_.generate(size, self.empties, self.seed, self.n_train, n_test, self.difficulty_levels)

    def load_pool(self, path: str | os.PathLike) -> Pool:
        """The pool in a file."""
        return levels_.load(path)

    def difficulty(self) -> np.ndarray:
        """Empty cells: float[N]."""
        return levels_.difficulty(self.levels.arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the grid."""
        return self.levels["puzzle"].shape[1:]

    @property
    def n_digits(self) -> int:
        """n: the number of digits, and of rows and columns."""
        return self.shape[0]

    @functools.cached_property
    def _most_empty(self) -> int:
        return int((self.levels["puzzle"] == 0).sum((1, 2)).max())

    @property
    def max_turns(self) -> int:
        """The budget, twice the empty cells of the emptiest level unless given."""
        return 2 * self._most_empty if self.budget is None else self.budget

    @property
    def n_actions(self) -> int:
        """A: a digit for every cell."""
        return self.n_digits**3

    @property
    def action_names(self) -> tuple[str, ...]:
        """r1c1=1, r1c1=2, …"""
        span = range(1, self.n_digits + 1)
        return tuple(f"r{row}c{column}={digit}" for row in span for column in span for digit in span)

    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> SudokuState:
        """The first state of a level {"puzzle": uint8[n,n], "solution": uint8[n,n]}."""
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
        """Cells that share row, column or box with `cell`, itself included: bool[n,n]."""
        n, side = self.n_digits, box_side(self.n_digits)
        row, column, span = cell // n, cell % n, np.arange(n)
        in_row, in_column = span == row, span == column
        in_band, in_stack = span // side == row // side, span // side == column // side
        return in_row[:, None] | in_column | (in_band[:, None] & in_stack)

    def legal(self, state: SudokuState) -> jax.Array:
        """Every digit in every cell that is not given, but for the digit it holds: bool[A]."""
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
        """Write a digit, or have it refused."""
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
        """Solved or out of turns."""
        return self.success(state) | (state.turn >= self.max_turns)

    def success(self, state: SudokuState) -> jax.Array:
        """Every cell right."""
        return state.missing == 0

    def cells(self, state: SudokuState) -> jax.Array:
        """The digit in each cell, 0 where there is none: int32[C]."""
        return cells(state)

    def surroundings(self, state: SudokuState, action: jax.Array, radius: int) -> jax.Array:
        """Row, column and box of the cell `action` writes to, whatever the radius; without one, nothing: bool[C]."""
        return (self._peers(action // self.n_digits) & (action >= 0)).reshape(-1)


def cells(state: SudokuState) -> jax.Array:
    """The digit in each cell, 0 where there is none: int32[C]."""
    return state.grid.reshape(-1).astype(jnp.int32)
