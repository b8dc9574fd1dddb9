"""The rules of the planning games in plain Python, which check a list of actions.

Moves are played from the start of the level. The first move that the game would block ends the plan, as does the
game's limit of moves; moves after the solution have no effect. A Sudoku grid must keep the givens.
`tests/envs/tasks/test_planning.py` compares these rules with those of the games.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


@dataclasses.dataclass(frozen=True)
class PlanCheck:
    """The result of a list of actions.

    Attributes:
        solved: Whether the level is solved.
        progress: Achieved share of the solution, 0 to 1; 1 if solved.
        kind: "solved", "unsolved" or "illegal_action".
        reason: Description of the result in a sentence.
    """

    solved: bool
    progress: float
    kind: str
    reason: str


def check(level: Mapping[str, Any], actions: list[Any]) -> PlanCheck:
    """Play a list of actions from the start of a level.

    Args:
        level: A row of `levels.splits`.
        actions: Moves, or for Sudoku the complete grid (`actions.read_actions`).
    """
    return {"plan_path": _plan_path, "sokoban": _sokoban, "sudoku": _sudoku}[level["game"]](level, actions)


def _plan_path(level: Mapping[str, Any], moves: list[str]) -> PlanCheck:
    grid, distance = level["grid"], level["distance"]
    row, column = _places(grid, "S")[0]
    first, problem = distance[row][column], ""
    for i, move in enumerate(moves[: level["budget"]], 1):
        down, right = row + STEPS[move][0], column + STEPS[move][1]
        if not (0 <= down < len(grid) and 0 <= right < len(grid[0])):
            problem = f"Move {i} ({move}) leaves the grid"
        elif grid[down][right] == "#":
            problem = f"Move {i} ({move}) runs into a wall"
        if problem:
            break
        row, column = down, right
        if distance[row][column] == 0:
            return _solved(f"The robot reaches the goal after {i} moves")
    left = distance[row][column]
    return _unsolved(
        problem, 1 - left / first, f"The robot ends in row {row + 1}, column {column + 1}, and not at the goal", moves,
        level,
    )  # fmt: skip


def _sokoban(level: Mapping[str, Any], moves: list[str]) -> PlanCheck:
    grid, pushes = level["grid"], level["pushes"]
    boxes, goals = set(_places(grid, "$*")), set(_places(grid, ".*+"))
    row, column = _places(grid, "@+")[0]
    first, problem = sum(pushes[r][c] for r, c in boxes), ""
    for i, move in enumerate(moves[: level["budget"]], 1):
        down, right = STEPS[move]
        target, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if grid[target[0]][target[1]] == "#":
            problem = f"Move {i} ({move}) runs into a wall"
        elif target in boxes and (beyond in boxes or grid[beyond[0]][beyond[1]] == "#"):
            problem = f"Move {i} ({move}) pushes a box that cannot move"
        if problem:
            break
        if target in boxes:
            boxes = boxes - {target} | {beyond}
        row, column = target
        if boxes <= goals:
            return _solved(f"Every box is on a goal after {i} moves")
    left = [pushes[r][c] for r, c in boxes]
    done = 1 - sum(left) / first if min(left) >= 0 else 0.0  # a box that cannot reach a goal is lost
    missing = len(boxes - goals)
    return _unsolved(problem, done, f"{missing} of {len(boxes)} boxes are not on a goal at the end", moves, level)


def _sudoku(level: Mapping[str, Any], grid: list[list[int]]) -> PlanCheck:
    puzzle, solution = level["grid"], level["solution"]
    cells = [(row, column) for row in range(len(puzzle)) for column in range(len(puzzle))]
    for row, column in cells:
        if puzzle[row][column] not in (0, grid[row][column]):
            where = f"The given {puzzle[row][column]} in row {row + 1}, column {column + 1}"
            return PlanCheck(False, 0.0, "illegal_action", f"{where} was changed to {grid[row][column]}.")
    empty = [(row, column) for row, column in cells if not puzzle[row][column]]
    right = sum(grid[row][column] == solution[row][column] for row, column in empty)
    if right == len(empty):
        return _solved("The grid is complete and right")
    return PlanCheck(False, right / len(empty), "unsolved", f"{_repeated(grid)} repeats a digit.")


def _repeated(grid: list[list[int]]) -> str:
    """Return the name of the first row, column or box that repeats a digit."""
    size = len(grid)
    side = round(size**0.5)
    units = {f"Row {i + 1}": row for i, row in enumerate(grid)}
    units |= {f"Column {i + 1}": list(column) for i, column in enumerate(zip(*grid, strict=True))}
    for i in range(size):
        top, left = i // side * side, i % side * side
        units[f"Box {i + 1}"] = [grid[top + k // side][left + k % side] for k in range(size)]
    return next((name for name, unit in units.items() if len(set(unit)) < size), "The grid")


def _places(grid: list[str], symbols: str) -> list[tuple[int, int]]:
    return [(r, c) for r, line in enumerate(grid) for c, symbol in enumerate(line) if symbol in symbols]


def _solved(reason: str) -> PlanCheck:
    return PlanCheck(True, 1.0, "solved", f"{reason}.")


def _unsolved(problem: str, progress: float, end: str, moves: list[str], level: Mapping[str, Any]) -> PlanCheck:
    progress = min(max(progress, 0.0), 1.0)
    if problem:
        return PlanCheck(False, progress, "illegal_action", f"{problem}, which ends the plan.")
    late = f" The limit is {level['budget']} moves." if len(moves) > level["budget"] else ""
    return PlanCheck(False, progress, "unsolved", f"{end}.{late}")
