"""Levels for Plan-Path: random walls, start and goal, with the true distance to the goal from everywhere."""

import functools
import os

import numpy as np

from envs import pools
from envs.game import check_range

WALL, UNREACHED = -1, 9999
"""Values of the distance map that are no distances: a wall, and a free cell with no way to the goal."""

SCHEMA = {"distance": ("int16", "hw"), "start": ("int32", "")}
BATCH = 256


def distances(walls: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Steps to the goal from every cell, for a batch: walls bool[N,h,w], goal int[N] -> int16[N,h,w]."""
    n, height, width = walls.shape
    steps = np.full((n, height + 2, width + 2), UNREACHED, np.int16)
    inner = steps[:, 1:-1, 1:-1]  # a view: the rim around it stays unreached
    inner[np.arange(n), goal // width, goal % width] = 0
    while True:
        around = np.minimum.reduce([steps[:, :-2, 1:-1], steps[:, 2:, 1:-1], steps[:, 1:-1, :-2], steps[:, 1:-1, 2:]])
        shorter = ~walls & (around + 1 < inner)
        if not shorter.any():
            return np.where(walls, np.int16(WALL), inner)
        inner[shorter] = around[shorter] + 1


def keys(levels: pools.Arrays) -> list[bytes]:
    """Levels are the same when the parts that can be reached are turned or mirrored images of each other."""
    distance = levels["distance"]
    n, _, width = distance.shape
    board = ((distance == WALL) | (distance == UNREACHED)).astype(np.uint8)
    board[distance == 0] = 2
    board[np.arange(n), levels["start"] // width, levels["start"] % width] = 3
    return pools.mirror_key(board)


def _draw(rng: np.random.Generator, size: int, walls: float, min_distance: int, max_distance: int):
    """A batch of candidates; those without a start at an allowed distance are left out."""
    cells = size * size
    order = np.argsort(rng.random((BATCH, cells)), axis=1)
    n_walls = round(walls * cells)
    grid = np.zeros((BATCH, cells), bool)
    np.put_along_axis(grid, order[:, :n_walls], True, axis=1)
    distance = distances(grid.reshape(-1, size, size), order[:, n_walls])
    flat = distance.reshape(BATCH, cells)
    allowed = (flat >= min_distance) & (flat <= max_distance)
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
) -> pools.Pool:
    """A pool of size x size grids with round(walls * size²) walls and a shortest way of min_distance to max_distance.

    max_distance is 2 * size unless given, so that a budget of 4 * size always leaves twice the moves that are needed.
    """
    check_range("plan_path", "size", size, 5, 16)
    if not 0 <= walls <= 0.6:
        raise ValueError(f"plan_path: walls must be a share of the cells from 0 to 0.6, found {walls!r}")
    max_distance = 2 * size if max_distance is None else max_distance
    if not 1 <= min_distance <= max_distance:
        raise ValueError(f"plan_path: need 1 <= min_distance <= max_distance, found {min_distance} and {max_distance}")
    source = f"generated: size {size}, walls {walls}, distance {min_distance} to {max_distance}, seed {seed}"
    return pools.generate(
        "plan_path", source, lambda rng: _draw(rng, size, walls, min_distance, max_distance), n_train, n_test, seed
    )


def load(path: str | os.PathLike) -> pools.Pool:
    """A pool from a file, with every start checked to be a cell from which the goal can be reached."""
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
            raise ValueError(f"{path} ({part}): level {bad[0]} has no way from its start to one goal")
    return pool
