"""Floor plans of the warehouse, as NumPy arrays over the cells, row by row.

Storage places are in blocks of two columns between corridors. The middle block ends early, so that robots can queue at
the two goals at the bottom.
"""

import functools
from typing import NamedTuple

import numpy as np

CORRIDOR, PLACE, GOAL = range(3)
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Rows and columns of a move up, right, down and left: each direction is a right turn from the one before."""


class Layout(NamedTuple):
    """A floor plan of C cells.

    Attributes:
        shape: Height and width.
        floor: int8 [h, w]. Kind of each cell: CORRIDOR, PLACE or GOAL.
        places: int32 [S]. Cells of the storage places.
        goals: int32 [2]. Cells where shelves are delivered.
        ahead: int32 [4, C]. Cell in front of a robot by direction; its own cell at a wall.
    """

    shape: tuple[int, int]
    floor: np.ndarray
    places: np.ndarray
    goals: np.ndarray
    ahead: np.ndarray


@functools.cache
def build(shelf_rows: int, shelf_columns: int, column_height: int) -> Layout:
    """Return the floor plan with the given number and height of blocks."""
    height, width = (column_height + 1) * shelf_rows + 2, 3 * shelf_columns + 1
    row, column = np.divmod(np.arange(height * width), width)
    middle = (column == width // 2 - 1) | (column == width // 2)
    corridor = (column % 3 == 0) | (row % (column_height + 1) == 0) | (row == height - 1)
    corridor |= middle & (row > height - column_height - 3)
    floor = np.where(middle & (row == height - 1), GOAL, np.where(corridor, CORRIDOR, PLACE)).astype(np.int8)
    ahead = [
        np.clip(row + down, 0, height - 1) * width + np.clip(column + right, 0, width - 1) for down, right in STEPS
    ]
    return Layout(
        shape=(height, width),
        floor=floor.reshape(height, width),
        places=np.flatnonzero(floor == PLACE).astype(np.int32),
        goals=np.flatnonzero(floor == GOAL).astype(np.int32),
        ahead=np.stack(ahead).astype(np.int32),
    )
