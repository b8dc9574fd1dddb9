"""Levels for Sudoku: puzzles with exactly one solution, made by emptying cells of a full grid or read from a file."""

import functools
import os

import numpy as np

from envs.games import pools
from envs.games.game import check_choice
from envs.games.sudoku.solver import all_grids, box_side, solutions, solve, units

SCHEMA = {"puzzle": ("uint8", "nn"), "solution": ("uint8", "nn")}
EMPTIES = {4: (6, 10), 9: (36, 48)}
"""Fewest and most empty cells of generated puzzles, unless told otherwise."""

MOST_EMPTIES = {4: 12, 9: 58}
"""4x4: no puzzle with fewer than 4 givens has one solution. 9x9: beyond this, emptying at random rarely gets there."""


def _mix(x: np.ndarray) -> np.ndarray:
    """Scramble uint64 numbers one by one."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keys(levels: pools.Arrays) -> list[bytes]:
    """Equal for puzzles that relabelling digits, swapping lines or bands, turning or mirroring makes equal.

    Every given starts with the same colour; three times over, a given's new colour is a hash of the colours of all
    givens with how each stands to it: on one line, in one box, holding the same digit. Nothing enters that relabelling
    or moving could change, so puzzles that are the same have the same key.
    """
    puzzle = levels["puzzle"]
    n, size = puzzle.shape[:2]
    flat = puzzle.reshape(n, -1)
    row, column, box = units(size).T
    line = (row[:, None] == row) | (column[:, None] == column)
    relation = (line + 2 * (box[:, None] == box) + 4 * np.eye(size * size, dtype=int)).astype(np.uint64)
    found = []
    for start in range(0, n, 256):  # in chunks: a chunk holds 256 * C * C numbers
        chunk = flat[start : start + 256]
        same = (chunk[:, :, None] == chunk[:, None, :]).astype(np.uint64)
        kind = _mix(relation + np.uint64(8) * same + np.uint64(1))
        given = chunk > 0
        color = given.astype(np.uint64)
        for _ in range(3):
            seen = _mix(kind ^ color[:, None, :]) * given[:, None, :]
            color = _mix(color + seen.sum(axis=2, dtype=np.uint64)) * given
        total = _mix(color).sum(axis=1, dtype=np.uint64, where=given)
        found += [f"{size} {value}".encode() for value in total.tolist()]
    return found


def difficulty(levels: pools.Arrays) -> np.ndarray:
    """Empty cells: float[N]."""
    return (levels["puzzle"] == 0).sum((1, 2)).astype(float)


def _dig_small(rng: np.random.Generator, low: int, high: int) -> dict[str, np.ndarray]:
    """Many 4x4 puzzles at once: a puzzle has one solution when one of the 288 grids agrees with its givens."""
    grids = all_grids()
    chosen = grids[rng.integers(0, len(grids), 256)]
    empties = rng.integers(low, high + 1, 256)
    rank = np.argsort(np.argsort(rng.random(chosen.shape), axis=1), axis=1)
    puzzle = np.where(rank < empties[:, None], 0, chosen).astype(np.uint8)
    agree = ((puzzle[:, None] == 0) | (puzzle[:, None] == grids)).all(axis=2)
    unique = agree.sum(axis=1) == 1
    return {"puzzle": puzzle[unique].reshape(-1, 4, 4), "solution": chosen[unique].reshape(-1, 4, 4)}


def _dig(rng: np.random.Generator, size: int, low: int, high: int) -> dict[str, np.ndarray]:
    """A puzzle made by emptying cells in random order while one solution is left; none if that stops too early."""
    solution = solutions(np.zeros((size, size), np.uint8), limit=1, rng=rng)[0]
    puzzle = solution.copy()
    wanted, emptied = int(rng.integers(low, high + 1)), 0
    for cell in rng.permutation(size * size):
        if emptied == wanted:
            break
        digit = puzzle.flat[cell]
        puzzle.flat[cell] = 0
        if solve(puzzle) is None:
            puzzle.flat[cell] = digit
        else:
            emptied += 1
    made = slice(0, int(emptied == wanted))
    return {"puzzle": puzzle[None][made], "solution": solution[None][made]}


@functools.lru_cache(maxsize=64)
def generate(
    size: int = 4,
    empties: tuple[int, int] | None = None,
    seed: int = 0,
    n_train: int = 512,
    n_test: int = 128,
    difficulty_levels: int = 1,
) -> pools.Pool:
    """A pool of size x size puzzles with empties[0] to empties[1] empty cells, each with exactly one solution.

    Easier grades have fewer empty cells.
    """
    check_choice("sudoku", "size", size, (4, 9))
    low, high = EMPTIES[size] if empties is None else empties
    if not 1 <= low <= high <= MOST_EMPTIES[size]:
        raise ValueError(f"sudoku: empties must be low, high from 1 to {MOST_EMPTIES[size]}, found {low}, {high}")

    def grade(number: int, n_test: int) -> pools.Pool:
        few, many = (max(1, round(cells * number / difficulty_levels)) for cells in (low, high))

        def draw(rng: np.random.Generator):
            levels = _dig_small(rng, few, many) if size == 4 else _dig(rng, size, few, many)
            return levels, keys(levels)

        source = f"generated: size {size}, empties {few} to {many}, seed {seed}"
        patience = 40 if size == 4 else 150  # a draw makes about 100 puzzles of 4x4, but at most one of 9x9
        return pools.generate(
            "sudoku",
            source,
            draw,
            -(-n_train // difficulty_levels),
            n_test,
            pools.grade_seed(seed, number, difficulty_levels),
            patience,
        )

    return pools.graded([grade(number, 0) for number in range(1, difficulty_levels)], grade(difficulty_levels, n_test))


def check_levels(levels: pools.Arrays, where: str) -> None:
    """Raise a ValueError for the first puzzle whose solution is none, or does not keep the givens."""
    pools.check_arrays(levels, SCHEMA, where)
    puzzle, solution = levels["puzzle"], levels["solution"]
    size = puzzle.shape[1]
    if size not in (4, 9):
        raise ValueError(f"{where}: grids of {size}x{size}, expected 4x4 or 9x9")
    side = box_side(size)
    boxes = solution.reshape(-1, size // side, side, size // side, side).swapaxes(2, 3).reshape(-1, size, size)
    digits = np.arange(1, size + 1)
    wrong = np.zeros(len(puzzle), bool)
    for lines in (solution, solution.swapaxes(1, 2), boxes):
        wrong |= (np.sort(lines, axis=2) != digits).any((1, 2))
    changed = ((puzzle > 0) & (puzzle != solution)).any((1, 2))
    for bad, words in ((wrong, "the solution repeats a digit"), (changed, "the solution changes a given cell")):
        if bad.any():
            raise ValueError(f"{where}: puzzle {int(np.argmax(bad))}: {words}")


def unique(puzzle: np.ndarray) -> np.ndarray:
    """Which puzzles uint8[N,n,n] have exactly one solution: bool[N]."""
    return np.array([solve(grid) is not None for grid in puzzle], bool)


def load(path: str | os.PathLike) -> pools.Pool:
    """A pool from a file that `pools.save` wrote, or of an .npz file of puzzles and solutions; every one checked.

    A puzzle with several solutions would have valid grids called wrong. Loose puzzles of this kind are left out; a
    saved pool, whose fingerprint stands for all of its puzzles, is refused.
    """
    arrays = pools.read_npz(path)
    if SCHEMA.keys() <= arrays.keys():
        levels = {name: arrays[name] for name in SCHEMA}
        check_levels(levels, str(path))
        keep = unique(levels["puzzle"])
        levels = {name: array[keep] for name, array in levels.items()}
        return pools.from_levels("sudoku", os.path.basename(path), levels, keys)
    pool = pools.load(path, "sudoku", SCHEMA)
    for part in pools.PARTS:
        levels, where = getattr(pool, part).arrays, f"{path} ({part})"
        check_levels(levels, where)
        several = ~unique(levels["puzzle"])
        if several.any():
            raise ValueError(f"{where}: puzzle {int(np.argmax(several))}: has several solutions, expected one")
    return pool
