"""Drawings of warehouse positions.

In the local view, cells that `player` does not sense are hidden.
"""

import jax.numpy as jnp
import numpy as np

from envs.games import svg as shapes
from envs.games.picture import Picture, Tile, grid_picture
from envs.games.roles import hide
from envs.games.warehouse.rules import NOTHING, Warehouse, WarehouseState, contents

ROBOTS = ("^>v<", "urdl", "URDL")
"""Signs of a robot by direction: alone, in a cell with a shelf, and in a cell with a requested shelf."""
SHELVES = "xX"
FLOOR = "._G"
"""Signs of an empty corridor, storage place and goal."""
_CELL = 32
_FLOOR_FILLS, _HIDDEN_FILL = ("#fbfaf5", "#efe9d6", "#d4efdf"), "#c9c9c9"
_SHELF_FILLS = {"x": "#8d8574", "X": "#c0392b"}
_ROBOT_FILL = "#2471a3"


def symbols(empty: str) -> str:
    """Return the signs of all contents of a cell (`rules.contents`).

    Args:
        empty: Sign of the cell without any.
    """
    robots = "".join(ROBOTS[shelf][facing] for facing in range(4) for shelf in range(3))
    return empty + SHELVES + robots


def board(state: WarehouseState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the grid as text.

    Robots are ^ > v <, or u r d l in a cell with a shelf; x is a shelf, upper case is requested, ? is hidden.
    """
    del player
    marks, width = _marks(state, visible), state.floor.shape[1]
    return "\n".join(" ".join(marks[start : start + width]) for start in range(0, len(marks), width))


def svg(state: WarehouseState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the grid as an SVG document, with hidden cells in grey."""
    del player
    height, width = state.floor.shape
    carried = {int(cell) for cell, load in zip(state.robots, state.loads, strict=True) if load != NOTHING}
    floor = np.asarray(state.floor).reshape(-1)
    parts = []
    for cell, (mark, empty) in enumerate(zip(_marks(state, visible), floor, strict=True)):
        left, top = cell % width * _CELL, cell // width * _CELL
        fill = _HIDDEN_FILL if mark == "?" else _FLOOR_FILLS[empty]
        parts.append(shapes.rect(left, top, _CELL, _CELL, fill, "#dcd8c8"))
        kind = "x" if mark in "xurdl" else "X" if mark in "XURDL" else ""
        if kind:
            parts.append(shapes.rect(left + 4, top + 4, _CELL - 8, _CELL - 8, _SHELF_FILLS[kind]))
        facing = next((signs.index(mark) for signs in ROBOTS if mark in signs), None)
        if facing is not None:
            x, y = left + _CELL / 2, top + _CELL / 2
            parts.append(shapes.circle(x, y, _CELL * 0.3, _ROBOT_FILL, "#f4d03f" if cell in carried else "none", 3))
            parts.append(shapes.text(x, y + 6, "↑→↓←"[facing], fill="#ffffff"))
    return shapes.document(width * _CELL, height * _CELL, parts)


def _marks(state: WarehouseState, visible: np.ndarray | None) -> list[str]:
    floor = np.asarray(state.floor).reshape(-1)
    signs = [symbols(FLOOR[kind])[code] for kind, code in zip(floor, np.asarray(contents(state)), strict=True)]
    return hide(signs, visible)


_PAPERS = {"x": "#8d8574", "X": "#c0392b", **dict.fromkeys(ROBOTS[0], "#2471a3"), **dict.fromkeys(ROBOTS[1], "#6c7a89")}
_TILES = (
    *(Tile(sign, "#b7ae95", paper) for sign, paper in zip(FLOOR, _FLOOR_FILLS, strict=True)),
    *(Tile(sign, "#ffffff", _PAPERS.get(sign, "#7d3c98")) for sign in symbols("")),
)


def picture(game: Warehouse, style: str) -> Picture:
    """Return the drawing for models, with the signs of the text."""
    del style

    def cells(state: WarehouseState):
        codes = contents(state)
        return jnp.where(codes == 0, state.floor.reshape(-1), codes + len(FLOOR) - 1)

    return grid_picture(game, game.shape, _TILES, cells)
