"""Plan-Path levels: random walls, start and goal, with the distances to the goal."""

import functools
import os

import numpy as np

from envs.games import pools
from envs.games.game import check_range
from envs.games.puzzle import upper_rows

WALL, UNREACHED = -1, 9999
"""Special values of the distance map: a wall, and a free cell without a path to the goal."""

SCHEMA = {"distance": ("int16", "hw"), "start": ("int32", "")}
BATCH = 256


def distances(walls: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Return the number of steps to the goal from every cell: int16 [N, h, w].

    Args:
        walls: bool [N, h, w].
        goal: int [N].
    """
    n, height, width = walls.shape
    steps = np.full((n, height + 2, width + 2), UNREACHED, np.int16)
    inner = steps[:, 1:-1, 1:-1]  # a view; the rim around it stays unreached
    inner[np.arange(n), goal // width, goal % width] = 0
    while True:
        around = np.minimum.reduce([steps[:, :-2, 1:-1], steps[:, 2:, 1:-1], steps[:, 1:-1, :-2], steps[:, 1:-1, 2:]])
        shorter = ~walls & (around + 1 < inner)
        if not shorter.any():
            return np.where(walls, np.int16(WALL), inner)
        inner[shorter] = around[shorter] + 1


def make_level(walls: np.ndarray, start: int, goal: int) -> dict[str, np.ndarray]:
    """Build one level, for example after an edit by hand.

    Args:
        walls: bool [h, w].
        start: Cell of the start.
        goal: Cell of the goal.

    Raises:
        ValueError: If there is no path from start to goal.
    """
    walls = np.asarray(walls, bool)
    for name, cell in (("start", start), ("goal", goal)):
        if not 0 <= cell < walls.size or walls.reshape(-1)[cell]:
            raise ValueError(f"plan_path: {name} is {cell}, but must be a free cell from 0 to {walls.size - 1}")
    distance = distances(walls[None], np.array([goal]))[0]
    if not 0 < distance.reshape(-1)[start] < UNREACHED:
        raise ValueError(
            f"plan_path: the level is unsolvable: no path leads from start {start} to goal {goal}. Remove a wall, or "
            "move the start or the goal."
        )
    return {"distance": distance, "start": np.array(start, np.int32)}


def keys(levels: pools.Arrays) -> list[bytes]:
    """Return a key for each level.

    Levels are equivalent if their reachable parts are rotated or mirrored images.
    """
    distance = levels["distance"]
    n, _, width = distance.shape
    board = ((distance == WALL) | (distance == UNREACHED)).astype(np.uint8)
    board[distance == 0] = 2
    board[np.arange(n), levels["start"] // width, levels["start"] % width] = 3
    return pools.mirror_key(board)


def difficulty(levels: pools.Arrays) -> np.ndarray:
    """Return the steps from start to goal, plus a fraction: float [N].

    Among equally distant levels, those with more free cells are harder.
    """
    distance = levels["distance"].reshape(len(levels["start"]), -1)
    open_cells = ((distance >= 0) & (distance < UNREACHED)).mean(axis=1)
    return distance[np.arange(len(distance)), levels["start"]] + 0.5 * open_cells


def _draw(
    rng: np.random.Generator,
    size: int,
    walls: float,
    min_distance: int,
    max_distance: int,
    inner: int | None = None,
    divided: bool = False,
):
    """Sample a batch of levels that have a start at an allowed distance.

    With `inner`, the grid has that side and is placed randomly in a wall of size x size cells. If `divided`, the goal
    is in the upper half and the start in the lower one.
    """
    inner = size if inner is None else inner
    small = inner * inner
    order = np.argsort(rng.random((BATCH, small)), axis=1)
    n_walls = round(walls * small)
    grid = np.zeros((BATCH, small), bool)
    np.put_along_axis(grid, order[:, :n_walls], True, axis=1)
    goal = order[:, n_walls]
    if inner < size:
        # Position of the small grid's first cell in the large grid, then of all its cells.
        corner = (rng.integers(0, size - inner + 1, (BATCH, 2)) * [size, 1]).sum(axis=1)
        at = corner[:, None] + (np.arange(inner)[:, None] * size + np.arange(inner)).reshape(-1)
        goal, inside = np.take_along_axis(at, goal[:, None], axis=1)[:, 0], grid
        grid = np.ones((BATCH, size * size), bool)
        np.put_along_axis(grid, at, inside, axis=1)
    cells = size * size
    distance = distances(grid.reshape(-1, size, size), goal)
    flat = distance.reshape(BATCH, cells)
    allowed = (flat >= min_distance) & (flat <= max_distance)
    if divided:
        upper = upper_rows(size) * size
        allowed &= (np.arange(cells) >= upper) & (goal[:, None] < upper)
    start = np.argmax(allowed * (1 + rng.random((BATCH, cells))), axis=1).astype(np.int32)
    good = allowed.any(axis=1)
    levels = {"distance": distance[good], "start": start[good]}
    return levels, keys(levels)


@functools.lru_cache(maxsize=64)
def generate(
    size: int = 8,
    walls: float = 0.22,
    seed: int = 0,
    n_train: int = 512,
    n_test: int = 128,
    min_distance: int = 2,
    max_distance: int | None = None,
    difficulty_levels: int = 1,
    divided: bool = False,
) -> pools.Pool:
    """Generate a pool of size x size grids.

    Easier difficulty levels are smaller grids with fewer walls and shorter paths, surrounded by walls.

    Args:
        size: Side of the grid.
        walls: Share of the cells that are walls.
        seed: Random seed.
        n_train: Number of train levels.
        n_test: Number of test levels.
        min_distance: Minimum length of the shortest path.
        max_distance: Maximum length of the shortest path; by default 2 * size, so that a budget of 4 * size is always
            at least twice the required moves.
        difficulty_levels: Number of difficulty levels.
        divided: Whether the goal is in the upper half and the start in the lower one.
    """
    check_range("plan_path", "size", size, 5, 16)
    if not 0 <= walls <= 0.6:
        raise ValueError(f"plan_path: walls is {walls!r}, but must be a share of the cells from 0 to 0.6")
    max_distance = 2 * size if max_distance is None else max_distance
    if not 1 <= min_distance <= max_distance:
        raise ValueError(
            f"plan_path: min_distance is {min_distance}, but must be from 1 to max_distance ({max_distance})"
        )

    def grade(number: int, n_test: int) -> pools.Pool:
        share = number / difficulty_levels
        inner = max(3, round(size * share))
        sparse = walls * share
        far = max(min_distance, round(max_distance * share))
        source = f"generated: size {inner}, walls {sparse:g}, distance {min_distance} to {far}, seed {seed}"
        source += ", divided" * divided
        draw = lambda rng: _draw(rng, size, sparse, min_distance, far, inner, divided)  # noqa: E731
        return pools.generate(
            "plan_path",
            source,
            draw,
            -(-n_train // difficulty_levels),
            n_test,
            pools.grade_seed(seed, number, difficulty_levels),
        )

    return pools.graded([grade(number, 0) for number in range(1, difficulty_levels)], grade(difficulty_levels, n_test))


def load(path: str | os.PathLike) -> pools.Pool:
    """Load a pool from a file and check that every start can reach the goal."""
    pool = pools.load(path, "plan_path", SCHEMA)
    for part in pools.PARTS:
        levels = getattr(pool, part)
        n, height, width = levels["distance"].shape
        start = levels["start"]
        inside = (start >= 0) & (start < height * width)
        flat = levels["distance"].reshape(n, height * width)
        reach = flat[np.arange(n), np.where(inside, start, 0)]
        bad = np.flatnonzero(~inside | (reach <= 0) | (reach >= UNREACHED) | ((flat == 0).sum(axis=1) != 1))
        if len(bad):
            raise ValueError(f"{path} ({part}): level {bad[0]} has no path from its start to a single goal")
    return pool
