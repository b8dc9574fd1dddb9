"""Drawings of Plan-Path positions."""

import numpy as np

from envs.games import svg as shapes
from envs.games.picture import Picture, Tile, grid_picture
from envs.games.plan_path.rules import GOAL, WALKER, WALKER_ON_GOAL, WALL, PlanPath, PlanPathState, cells
from envs.games.roles import TwoRole, hide, puzzle_state

_CELL = 40


def board(state: PlanPathState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the grid: # wall, . floor, G goal, A walker, * both, ? hidden."""
    del player
    state = puzzle_state(state)
    marks = hide([PlanPath.symbols[code] for code in np.asarray(cells(state))], visible)
    width = state.distance.shape[1]
    return "\n".join(" ".join(marks[start : start + width]) for start in range(0, len(marks), width))


def svg(state: PlanPathState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the grid as an SVG document, with hidden cells in grey."""
    del player
    state = puzzle_state(state)
    height, width = state.distance.shape
    marks = hide(np.asarray(cells(state)).tolist(), visible)
    start = int(state.start)
    parts = [shapes.rect(0, 0, width * _CELL, height * _CELL, "#fbfaf5")]
    for cell, mark in enumerate(marks):
        left, top = cell % width * _CELL, cell // width * _CELL
        x, y = left + _CELL / 2, top + _CELL / 2
        fill = {"?": "#c9c9c9", WALL: "#46515c"}.get(mark, "#fbfaf5")
        parts.append(shapes.rect(left, top, _CELL, _CELL, fill, "#dcd8c8"))
        if cell == start and mark != "?":
            parts.append(shapes.circle(x, y, _CELL * 0.12, "#9fb8cc"))
        if mark in (GOAL, WALKER_ON_GOAL):
            parts.append(shapes.rect(left + 5, top + 5, _CELL - 10, _CELL - 10, "#f2c14e", "#c8931d", rx=6))
        if mark in (WALKER, WALKER_ON_GOAL):
            parts.append(shapes.circle(x, y, _CELL * 0.28, "#2471a3", "#1a5276", 2))
    return shapes.document(width * _CELL, height * _CELL, parts)


_TILES = (
    Tile(".", "#dcd8c8", "#fbfaf5"),
    Tile("#", "#6f7c89", "#46515c"),
    Tile("G", "#8a5f06", "#f2c14e"),
    Tile("A", "#ffffff", "#2471a3"),
    Tile("*", "#f2c14e", "#2471a3"),
)


def picture(game: PlanPath | TwoRole, style: str) -> Picture:
    """Return the drawing for models, with the signs of the text."""
    del style
    return grid_picture(game, game.shape, _TILES, cells)
