"""Halves of Plan-Path levels, and the best plan of an agent that sees one half.

    python -m envs.tasks.planning.half_view            # exact success with one seat's view, on the test levels

The scout sees the upper rows of a level, the executor the lower ones. The start is in the executor's half and the goal
in the scout's, so neither half is enough to plan. `best_plan` computes what the executor can achieve without the scout.
The generator of levels samples walls and goal uniformly, and the start uniformly among the cells at an allowed distance
from the goal. So the probability of every upper half given the lower one is known, and the best list of moves follows
by dynamic programming over the sets of hidden cells that it has entered.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envs.tasks.data import Dataset
from envs.tasks.planning import rules
from envs.tasks.planning.levels import splits
from envs.tasks.planning.rules import STEPS

NEAREST = 2
"""Fewest steps from start to goal in generated levels. The most are twice the side of the grid."""
SPARE = 6
"""Number of levels to generate for each divided one; more than a quarter of them are divided."""


def upper(size: int) -> int:
    """Return the number of rows that the scout sees."""
    return (size + 1) // 2


def is_divided(level: Mapping[str, Any]) -> bool:
    """Return whether the goal is in the scout's half and the start in the executor's."""
    rows = upper(len(level["grid"]))
    return any("G" in row for row in level["grid"][:rows]) and any("S" in row for row in level["grid"][rows:])


# ------------------------------------------------------------------------------------------------------- best plan


@dataclasses.dataclass(frozen=True)
class BlindPlan:
    """The best plan without the upper rows of a level.

    Attributes:
        moves: Moves within the limit.
        chance: Their probability of success.
        bound: Highest probability of success without a limit of moves.
    """

    moves: list[str]
    chance: float
    bound: float


def best_plan(grid: Sequence[str], rows: int, n_walls: int, longest: int, limit: int) -> BlindPlan:
    """Return the best plan without the upper rows.

    Probabilities are those of the generator, given everything below the upper rows.

    Args:
        grid: The level; its upper rows are not read.
        rows: Number of upper rows.
        n_walls: Number of walls of the complete level.
        longest: Maximum number of steps from start to goal.
        limit: Maximum number of moves.
    """
    size = len(grid[0])
    known = np.array([list(row) for row in grid[rows:]])
    start = int(np.flatnonzero(known == "S")[0]) + rows * size
    chances = _chances(known == "#", start, rows, n_walls, longest)
    hidden = rows * size
    # mass[c, s]: probability that hidden cell c is the goal and the hidden cells of the set s are free.
    mass = chances.copy()
    for bit in range(hidden):
        by_bit = mass.reshape(hidden, -1, 2, 1 << bit)
        by_bit[:, :, 1] += by_bit[:, :, 0]
    mass = mass[:, ::-1]
    reach = _reachable(known == "#", start, rows)
    value, choice = np.zeros(1 << hidden), np.full(1 << hidden, -1)
    sets = np.arange(1 << hidden)
    entered = np.bitwise_count(sets)
    for count in range(hidden - 1, -1, -1):
        here = sets[entered == count]
        for cell, neighbours in enumerate(reach):
            can = here[((here >> cell) & 1 == 0) & (((here & neighbours) != 0) | (neighbours < 0))]
            gained = mass[cell, can] + value[can | (1 << cell)]
            better = gained > value[can] + 1e-12
            value[can[better]], choice[can[better]] = gained[better], cell
    moves, chance = _followed(known == "#", start, rows, choice, mass, limit)
    return BlindPlan(moves, chance, float(value[0]))


def _chances(walls: np.ndarray, start: int, rows: int, n_walls: int, longest: int) -> np.ndarray:
    """Return the probability of each goal and set of upper walls: float [goals, sets]."""
    from envs.games.plan_path.levels import distances

    size = walls.shape[1]
    hidden = rows * size
    sets = np.arange(1 << hidden)
    sets = sets[np.bitwise_count(sets) == n_walls - walls.sum()]
    upper_walls = ((sets[:, None] >> np.arange(hidden)) & 1).astype(bool)
    number, goal = np.nonzero(~upper_walls)
    grids = np.zeros((len(number), rows + len(walls), size), bool)
    grids[:, :rows] = upper_walls[number].reshape(-1, rows, size)
    grids[:, rows:] = walls
    steps = distances(grids, goal).reshape(len(number), -1)
    allowed = (steps >= NEAREST) & (steps <= longest)
    weights = allowed[:, start] / np.maximum(allowed.sum(axis=1), 1)
    chances = np.zeros((hidden, 1 << hidden))
    chances[goal, sets[number]] = weights
    return chances / chances.sum()


def _reachable(walls: np.ndarray, start: int, rows: int) -> list[int]:
    """Return the set of hidden cells from which each hidden cell can be entered.

    It is -1 if it can be entered without any of them. Cells above a connected part of the lower half can be entered
    from each other.
    """
    size = walls.shape[1]
    part_of = _parts(walls)
    masks = []
    for cell in range(rows * size):
        row, column = divmod(cell, size)
        near = [(row + down, column + right) for down, right in STEPS.values()]
        mask = sum(1 << (r * size + c) for r, c in near if 0 <= r < rows and 0 <= c < size)
        if row == rows - 1 and (part := part_of[0, column]):
            mask |= sum(1 << (row * size + c) for c in range(size) if part_of[0, c] == part)
            mask = -1 if part == part_of.flat[start - rows * size] else mask
        masks.append(mask)
    return masks


def _parts(walls: np.ndarray) -> np.ndarray:
    """Return the number of each free cell's connected part, from 1; walls are 0."""
    parts = np.zeros(walls.shape, int)
    for cell in zip(*np.nonzero(~walls), strict=True):
        if not parts[cell]:
            parts[cell] = parts.max() + 1
            queue = [cell]
            for row, column in queue:
                for down, right in STEPS.values():
                    r, c = row + down, column + right
                    if 0 <= r < len(walls) and 0 <= c < walls.shape[1] and not walls[r, c] and not parts[r, c]:
                        parts[r, c] = parts[cell]
                        queue.append((r, c))
    return parts


def _followed(
    walls: np.ndarray, start: int, rows: int, choice: np.ndarray, mass: np.ndarray, limit: int
) -> tuple[list[str], float]:
    """Return the moves through the chosen hidden cells, and their probability of success."""
    size = walls.shape[1]
    free = {(r + rows, c) for r, c in zip(*np.nonzero(~walls), strict=True)}
    at, entered, moves, chance = divmod(start, size), 0, "", 0.0
    while (cell := int(choice[entered])) >= 0:
        free.add(goal := divmod(cell, size))
        path = shortest(free, at, goal)
        if len(moves) + len(path) > limit:
            break
        chance += float(mass[cell, entered])
        moves, at, entered = moves + path, goal, entered | 1 << cell
    return list(moves), chance


def shortest(free: set[tuple[int, int]], start: tuple[int, int], goal: tuple[int, int]) -> str:
    """Return the moves of a shortest path through free cells, as letters."""
    paths, queue = {start: ""}, collections.deque([start])
    while queue:
        row, column = cell = queue.popleft()
        if cell == goal:
            return paths[cell]
        for move, (down, right) in STEPS.items():
            after = row + down, column + right
            if after in free and after not in paths:
                paths[after] = paths[cell] + move
                queue.append(after)
    raise ValueError(f"there is no path from {start} to {goal}")


def report(levels: Dataset, walls: float) -> dict[str, float]:
    """Return the success of the best plans without the scout.

    `bound` and `chance` are means of `best_plan`; the best success within the game's limit of moves is between them.
    `played` is the success of the plans on these levels.
    """
    plans = []
    for level in levels:
        size = len(level["grid"])
        plan = best_plan(level["grid"], upper(size), round(walls * size * size), 2 * size, level["budget"])
        plans.append((plan.bound, plan.chance, rules.check(level, plan.moves).solved))
    return dict(zip(("bound", "chance", "played"), np.mean(plans, axis=0).round(4).tolist(), strict=True))


if __name__ == "__main__":
    import sys

    sizes = [int(size) for size in sys.argv[1:]] or [5]
    for side in sizes:
        test = splits("plan_path", side, 0.22, 1, 0, 2048, 128, 512, keep=is_divided, spare=SPARE)["test"]
        sys.stdout.write(f"{side}x{side}, {len(test)} levels: {report(test, 0.22)}\n")
