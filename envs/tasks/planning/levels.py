"""Levels of the planning task: rows of JSON values from the games' own pools.

A row has the fields `game`, `key` (equal for equivalent levels), `grid` and `budget` (maximum number of actions), and
the data of the game that `rules.py` needs:

- plan_path: `distance`, the steps to the goal from each cell (-1 in a wall).
- sokoban: `pushes`, the fewest pushes from each cell to the nearest goal (-1 if no goal can be reached).
- sudoku: `solution`.

The grid is a list of strings, for Sudoku a list of lists of digits with 0 for an empty cell. The games import JAX, so
this module imports them when levels are first used.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from envs.tasks.data import DataError, Dataset, cut, from_list, make_splits

Level = Mapping[str, Any]
SIZES = {"plan_path": 10, "sokoban": 6, "sudoku": 4}
"""Side of the published levels, by game."""


@functools.lru_cache(maxsize=16)
def splits(
    game: str, size: int, walls: float | None, boxes: int, seed: int, n_train: int, n_validation: int, n_test: int,
    pool: str = "", keep: Callable[[Level], bool] | None = None, spare: int = 1,
) -> dict[str, Dataset]:  # fmt: skip
    """Return the train, validation and test levels, which share no equivalent levels.

    Args:
        game: A name in SIZES.
        size: Side of the grid.
        walls: Share of cells that are walls; None for the game's default.
        boxes: Number of boxes in Sokoban.
        seed: Random seed of generated levels.
        n_train: Number of train levels.
        n_validation: Number of validation levels, which are cut from the train levels of the pool. There can be a few
            more, because equivalent levels stay in one split.
        n_test: Number of test levels.
        pool: File with levels that the game can load; "" to generate them.
        keep: Selects levels by their rows; None keeps all of them.
        spare: Number of levels to generate for each one that is kept.

    Raises:
        DataError: If the levels cannot be generated or read, if a level has no solution, or if too few are kept.
    """
    module = importlib.import_module(f"envs.games.{game}.levels")
    some: dict[str, Any] = {} if walls is None or game == "sudoku" else {"walls": walls}
    some |= {"boxes": boxes} if game == "sokoban" else {}
    try:
        if pool:
            made = module.load(pool)
        else:
            counts = dict(n_train=spare * (n_train + n_validation), n_test=spare * n_test)
            made = module.generate(size=size, seed=seed, **counts, **some)
        parts = []
        for name, n in (("train", n_train + n_validation), ("test", n_test)):
            part = made.part(name)
            rows = _rows(game, part.arrays, module.keys(part.arrays), f"{made.source} ({name})")
            if keep is not None:
                rows = _kept(rows, keep, len(rows) if pool else n, f"{made.source} ({name})")
            parts.append(from_list(rows, made.source))
    except ValueError as error:
        raise DataError(str(error)) from error
    train, validation = cut(parts[0], "key", "validation", n_validation)
    return make_splits(train, validation, parts[1], key="key")


def variables(level: Level) -> dict[str, Any]:
    """Return the variables that describe a level to a program.

    Sokoban's symbols overlap (the player may stand on a goal), so its level is given as cells: `walls`, `player`, and
    `box` and `goal` if there is one of each, otherwise the frozensets `boxes` and `goals`.
    """
    if level["game"] != "sokoban":
        return {"grid": level["grid"]}
    symbols = [((row, column), symbol) for row, line in enumerate(level["grid"]) for column, symbol in enumerate(line)]
    cells = {one: [cell for cell, symbol in symbols if symbol == one] for one in "#@+$*."}
    boxes, goals = cells["$"] + cells["*"], cells["."] + cells["*"] + cells["+"]
    fixed = {"walls": set(cells["#"]), "player": (cells["@"] + cells["+"])[0]}
    if len(boxes) == len(goals) == 1:
        return fixed | {"box": boxes[0], "goal": goals[0]}
    return fixed | {"boxes": frozenset(boxes), "goals": frozenset(goals)}


def _rows(game: str, arrays: Mapping[str, np.ndarray], keys: list[bytes], name: str) -> list[Level]:
    make = {"plan_path": _plan_path, "sokoban": _sokoban, "sudoku": _sudoku}[game]
    rows = []
    for i, key in enumerate(keys):
        try:
            fields = make({field: array[i] for field, array in arrays.items()})
        except DataError as error:
            raise DataError(f"{name}, level {i}: {error}") from None
        rows.append({"game": game, "key": hashlib.sha256(key).hexdigest()[:16], **fields})
    return rows


def _kept(rows: list[Level], keep: Callable[[Level], bool], n: int, name: str) -> list[Level]:
    """Return the first `n` levels to keep; a file may have fewer."""
    kept = [row for row in rows if keep(row)]
    if len(kept) < (1 if n == len(rows) else n):
        raise DataError(f"{name}: {len(kept)} of {len(rows)} levels can be used, but {n} are needed")
    return kept[:n]


def _plan_path(level: Mapping[str, np.ndarray]) -> dict[str, Any]:
    distance, start = level["distance"], int(level["start"])
    height, width = distance.shape
    steps = int(distance.flat[start])
    if not 0 < steps < height * width:
        raise DataError("there is no path from the start to the goal, but every level must have a solution")
    _check_budget(steps, 4 * height)
    cells = np.where(distance < 0, "#", np.where(distance == 0, "G", "."))
    cells.flat[start] = "S"
    grid = ["".join(row) for row in cells]
    return {"grid": grid, "budget": 4 * height, "distance": distance.tolist()}


def _sokoban(level: Mapping[str, np.ndarray]) -> dict[str, Any]:
    from envs.games.sokoban.levels import SYMBOLS
    from envs.games.sokoban.solver import Level as Solver
    from envs.games.sokoban.solver import SearchLimit, solve

    cells, moves = level["cells"], int(level["moves"])
    height, width = cells.shape
    if moves < 0:
        try:
            solution = solve(cells)
        except SearchLimit as error:
            raise DataError(f"the solver {error}, but every level must have a solution") from None
        if solution is None:
            raise DataError("the boxes cannot reach the goals, but every level must have a solution")
        moves = len(solution)
    _check_budget(moves, 2 * (height - 2) * (width - 2))
    to_goals = Solver(cells).pushes
    fewest = [min((to_goal[cell] for to_goal in to_goals if cell in to_goal), default=-1) for cell in range(cells.size)]
    return {
        "grid": ["".join(SYMBOLS[code] for code in row) for row in cells],
        "budget": 2 * (height - 2) * (width - 2),
        "pushes": [fewest[row * width : (row + 1) * width] for row in range(height)],
    }


def _sudoku(level: Mapping[str, np.ndarray]) -> dict[str, Any]:
    grid = level["puzzle"].tolist()
    return {"grid": grid, "budget": len(grid) ** 2, "solution": level["solution"].tolist()}


def _check_budget(moves: int, budget: int) -> None:
    """Raise a DataError if a solution has more moves than the game allows."""
    if moves > budget:
        raise DataError(f"the solution has {moves} moves, but must have at most {budget}")
