"""Sokoban levels, read from Boxoban files or generated."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from envs.games import pools
from envs.games.game import check_range
from envs.games.sokoban.solver import (
    BOX,
    BOX_ON_GOAL,
    FLOOR,
    GOAL,
    PLAYER,
    PLAYER_ON_GOAL,
    WALL,
    SearchLimit,
    solve,
)

ArrayT = TypeVar("ArrayT", jax.Array, np.ndarray)

SYMBOLS = ("#", " ", ".", "$", "*", "@", "+")
"""Standard character of every code in Sokoban files."""

UNKNOWN = -1
NO_WAY = np.iinfo(np.int16).max
"""Number of moves left in an unsolvable position."""
SCHEMA = {"cells": ("uint8", "hw"), "dead": ("bool", "hw"), "moves": ("int32", "")}
"""cells: codes; dead: whether a box here cannot reach a goal; moves: length of the best known solution, or UNKNOWN."""


def boxes_of(cells: ArrayT) -> ArrayT:
    """Return a mask of the boxes: bool, same shape."""
    boxes: Any = (cells == BOX) | (cells == BOX_ON_GOAL)
    return boxes


def goals_of(cells: ArrayT) -> ArrayT:
    """Return a mask of the goals: bool, same shape."""
    goals: Any = (cells == GOAL) | (cells == BOX_ON_GOAL) | (cells == PLAYER_ON_GOAL)
    return goals


def player_of(cells: ArrayT) -> ArrayT:
    """Return a mask of the player: bool, same shape."""
    player: Any = (cells == PLAYER) | (cells == PLAYER_ON_GOAL)
    return player


def _shift(boards: np.ndarray, down: int, right: int) -> np.ndarray:
    """Shift boards bool [N, h, w] by some cells, filling with False."""
    height, width = boards.shape[1:]
    moved = np.zeros_like(boards)
    rows, columns = slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0))
    moved[:, rows, columns] = boards[
        :, slice(max(-down, 0), height - max(down, 0)), slice(max(-right, 0), width - max(right, 0))
    ]
    return moved


STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


def reachable(cells: np.ndarray) -> np.ndarray:
    """Return the cells within the player's walls: bool [N, h, w].

    Boxes count as passable.
    """
    inside = player_of(cells)
    while True:
        grown = inside | np.logical_or.reduce([_shift(inside, *step) for step in STEPS]) & (cells != WALL)
        if (grown == inside).all():
            return inside
        inside = grown


def dead_cells(cells: np.ndarray) -> np.ndarray:
    """Return the cells from which no goal can be reached: bool [N, h, w].

    A single box in a corner, along an edge without goals, and so on, can never be pushed to a goal.
    """
    floor = cells != WALL
    live = goals_of(cells)
    while True:
        grown = live.copy()
        for down, right in STEPS:  # a box at p can move to p + step if the player can be at p - step
            grown |= _shift(live, -down, -right) & floor & _shift(floor, down, right)
        if (grown == live).all():
            return floor & ~live
        live = grown


def moves_left(cells: np.ndarray) -> np.ndarray:
    """Return the fewest moves that solve a level with one box: int16 [N, C, C].

    The axes are the cell of the box and the cell of the player; unsolvable positions have NO_WAY. Distances are
    computed backwards from the solved positions of all levels in parallel.
    """
    flat = cells.reshape(len(cells), -1)
    free, place = flat != WALL, np.arange(flat.shape[1])
    steps = np.array([down * cells.shape[2] + right for down, right in STEPS])
    adjacent = np.clip(place[:, None] + steps, 0, len(place) - 1)  # [C,4]; walls at the rim prevent wrapping around
    pushed = adjacent[None] == place[:, None, None]  # [C,C,4]: the player would step onto the box
    box = np.where(pushed, adjacent[:, None], place[:, None, None])
    player = np.broadcast_to(adjacent[None], box.shape)
    possible = free[:, player] & free[:, box]
    left = np.where(goals_of(flat)[:, :, None] & free[:, None, :], 0, NO_WAY).astype(np.int16)
    while True:
        best = np.where(possible, left[:, box, player], NO_WAY).min(axis=3)
        nearer = np.minimum(left, np.where(best < NO_WAY, best + 1, NO_WAY)).astype(np.int16)
        if (nearer == left).all():
            return left
        left = nearer


def make_levels(cells: np.ndarray, moves: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Build the arrays of a pool from codes uint8 [N, h, w]."""
    cells = np.asarray(cells, np.uint8)
    moves = np.full(len(cells), UNKNOWN, np.int32) if moves is None else moves
    return {"cells": cells, "dead": dead_cells(cells), "moves": moves}


def keys(levels: pools.Arrays) -> list[bytes]:
    """Return a key for each level.

    Levels are equivalent if the areas within the player's walls are rotated or mirrored images.
    """
    cells = levels["cells"]
    return pools.mirror_key(np.where(reachable(cells), cells, WALL).astype(np.uint8))


def difficulty(levels: pools.Arrays) -> np.ndarray:
    """Return the number of boxes plus a fraction for the solution length: float [N].

    Levels without a known solution are ranked by boxes alone.
    """
    boxes = boxes_of(levels["cells"]).sum((1, 2))
    return boxes + np.maximum(levels["moves"], 0) / (1.0 + max(levels["moves"].max(initial=0), 0))


def check_cells(cells: np.ndarray, where: Callable[[int], str]) -> None:
    """Raise a ValueError for the first invalid level.

    Args:
        cells: uint8 [N, h, w].
        where: Function that returns the name of level i.
    """
    if cells.dtype != np.uint8 or cells.ndim != 3:
        raise ValueError(f"{where(0)}: cells are {cells.dtype}{list(cells.shape)}, but must be uint8[N,h,w]")

    def reject(bad: np.ndarray | np.bool_, words: Callable[[int], str]) -> None:
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(f"{where(i)}: {words(i)}")

    players, boxes = player_of(cells).sum((1, 2)), boxes_of(cells).sum((1, 2))
    goals = goals_of(cells).sum((1, 2))
    reject((cells > PLAYER_ON_GOAL).any((1, 2)), lambda i: f"cell code is {cells[i].max()}, but must be from 0 to 6")
    reject(players == 0, lambda i: "there is no player ('@' or '+'), but a level needs one")
    reject(players > 1, lambda i: f"there are {players[i]} players, but a level needs exactly one")
    reject(boxes == 0, lambda i: "there is no box ('$' or '*'), but a level needs at least one")
    reject(boxes > goals, lambda i: f"there are {boxes[i]} boxes, but only {goals[i]} goals")
    reject((boxes_of(cells) <= goals_of(cells)).all((1, 2)), lambda i: "every box is already on a goal")
    inside = reachable(cells)
    rim = inside[:, [0, -1]].any((1, 2)) | inside[:, :, [0, -1]].any((1, 2))
    reject(rim, lambda i: "the player can reach the edge, but the level must be enclosed by walls")


def parse(text: str, name: str = "text") -> np.ndarray:
    """Parse levels in the characters of Sokoban files: uint8 [N, h, w].

    Levels are separated by blank lines or lines that start with ';'.
    """
    codes = {symbol: code for code, symbol in enumerate(SYMBOLS)}
    levels: list[tuple[int, list[list[int]]]] = []
    fresh = True
    for number, line in enumerate(text.splitlines(), 1):
        line = line.rstrip("\r")
        if line.startswith(";") or not line.strip():
            fresh = True
            continue
        unknown = [symbol for symbol in line if symbol not in codes]
        if unknown:
            accepted = " ".join(map(repr, SYMBOLS))
            raise ValueError(f"{name}, line {number}: character is {unknown[0]!r}, but must be one of: {accepted}")
        if fresh:
            levels.append((number, []))
        fresh = False
        rows = levels[-1][1]
        rows.append([codes[symbol] for symbol in line])
        if len(rows[-1]) != len(rows[0]):
            raise ValueError(f"{name}, line {number}: the row has {len(rows[-1])} cells, but must have {len(rows[0])}")
    if not levels:
        raise ValueError(f"{name}: there are no levels")
    sizes = [(len(rows), len(rows[0])) for _, rows in levels]
    for (number, _), size in zip(levels, sizes, strict=True):
        if size != sizes[0]:
            raise ValueError(f"{name}, line {number}: the level has size {size}, but the first one has {sizes[0]}")
    cells = np.array([rows for _, rows in levels], np.uint8)
    check_cells(cells, lambda i: f"{name}, line {levels[i][0]} (level {i})")
    return cells


def read(path: str | os.PathLike, array: str | None = None) -> np.ndarray:
    """Read levels uint8 [N, h, w] from a text file or an .npz array."""
    if Path(path).suffix != ".npz":
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: cannot read levels ({error})") from error
        return parse(text, str(path))
    arrays = pools.read_npz(path)
    if array not in arrays:
        raise ValueError(f"{path}: array is {array!r}, but must be one of: {', '.join(sorted(arrays))}")
    check_cells(arrays[array], lambda i: f"{path}, {array}[{i}]")
    return arrays[array]


def from_files(train: np.ndarray, test: np.ndarray | None = None, source: str = "files") -> pools.Pool:
    """Build a pool from levels; without `test`, they are split by their keys."""
    if test is None:
        return pools.from_levels("sokoban", source, make_levels(train), keys)
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(f"sokoban: train levels have size {train.shape[1:]}, but test levels have {test.shape[1:]}")
    return pools.from_parts("sokoban", source, make_levels(train), make_levels(test), keys)


def load(path: str | os.PathLike) -> pools.Pool:
    """Load and check a pool written by `pools.save`, or a text file of levels."""
    if Path(path).suffix != ".npz":
        return from_files(read(path), source=Path(path).name)
    pool = pools.load(path, "sokoban", SCHEMA)
    for part in pools.PARTS:
        levels = getattr(pool, part)
        check_cells(levels["cells"], lambda i, part=part: f"{path} ({part}), level {i}")
        if (levels["dead"] != dead_cells(levels["cells"])).any():
            raise ValueError(f"{path} ({part}): the array dead does not match cells")
    return pool


def _backwards(rng: np.random.Generator, size: int, boxes: int, walls: float, pulls: int) -> np.ndarray | None:
    """Play a random solved board backwards: the player wanders and pulls boxes along.

    Returns None if there are too few free cells, or if a box is still on a goal.
    """
    cells = np.full((size, size), WALL, np.uint8)
    inner = np.where(rng.random((size - 2, size - 2)) < walls, WALL, FLOOR)
    cells[1:-1, 1:-1] = inner
    flat = cells.reshape(-1)
    free = np.flatnonzero(flat)
    if len(free) < 2 * boxes + 2:
        return None
    chosen = rng.choice(free, boxes + 1, replace=False)
    goals, player = set(chosen[:-1].tolist()), int(chosen[-1])
    at = set(goals)
    floor = set(free.tolist())
    steps = (-size, size, -1, 1)
    for step, drag in zip(rng.integers(0, 4, pulls), rng.random(pulls), strict=True):
        step = steps[step]
        target, behind = player + step, player - step
        if target not in floor or target in at:
            continue
        if behind in at and drag < 0.75:
            at = at - {behind} | {player}
        player = target
    if at & goals:
        return None
    flat[list(goals)] = GOAL
    flat[list(at)] = BOX
    flat[player] = PLAYER_ON_GOAL if player in goals else PLAYER
    return cells


def _draw(rng: np.random.Generator, size: int, boxes: int, walls: float, min_moves: int, max_moves: int):
    """Generate a batch of levels with solutions of the required length."""
    made, lengths = [], []
    objective = "moves" if boxes <= 2 else "pushes"
    for _ in range(64):
        cells = _backwards(rng, size, boxes, walls, pulls=20 * boxes * size)
        if cells is None:
            continue
        try:
            solution = solve(cells, objective, max_nodes=5_000)
        except SearchLimit:
            continue  # too hard to solve
        assert solution is not None  # playing the moves forwards solves it
        if min_moves <= len(solution) <= max_moves:
            made.append(cells)
            lengths.append(len(solution))
    cells = np.array(made, np.uint8).reshape(-1, size, size)
    levels = make_levels(cells, np.array(lengths, np.int32))
    return levels, keys(levels)


@functools.lru_cache(maxsize=64)
def generate(
    size: int = 6,
    boxes: int = 1,
    walls: float = 0.1,
    seed: int = 0,
    n_train: int = 512,
    n_test: int = 128,
    min_moves: int = 4,
    max_moves: int | None = None,
    difficulty_levels: int = 1,
) -> pools.Pool:
    """Generate a pool of size x size levels with all boxes off their goals.

    Easier difficulty levels have fewer boxes and shorter solutions.

    Args:
        size: Side of the levels, including the walls around them.
        boxes: Number of boxes.
        walls: Share of the inner cells that are walls.
        seed: Random seed.
        n_train: Number of train levels.
        n_test: Number of test levels.
        min_moves: Minimum length of the solver's solution, which has the fewest moves for up to two boxes, and the
            fewest pushes for more.
        max_moves: Maximum length of the solution; by default (size - 2)², half of the default budget of the game.
        difficulty_levels: Number of difficulty levels.
    """
    check_range("sokoban", "size", size, 5, 12)
    check_range("sokoban", "boxes", boxes, 1, 5)
    if not 0 <= walls <= 0.5:
        raise ValueError(f"sokoban: walls is {walls!r}, but must be a share of the inner cells from 0 to 0.5")
    max_moves = (size - 2) ** 2 if max_moves is None else max_moves
    if not 1 <= min_moves <= max_moves:
        raise ValueError(f"sokoban: min_moves is {min_moves}, but must be from 1 to max_moves ({max_moves})")

    def grade(number: int, n_test: int) -> pools.Pool:
        some = -(-boxes * number // difficulty_levels)
        most = max(min_moves, round(max_moves * number / difficulty_levels))
        source = f"generated: size {size}, boxes {some}, walls {walls}, {min_moves} to {most} moves, seed {seed}"
        draw = lambda rng: _draw(rng, size, some, walls, min_moves, most)  # noqa: E731
        return pools.generate(
            "sokoban",
            source,
            draw,
            -(-n_train // difficulty_levels),
            n_test,
            pools.grade_seed(seed, number, difficulty_levels),
        )

    return pools.graded([grade(number, 0) for number in range(1, difficulty_levels)], grade(difficulty_levels, n_test))
