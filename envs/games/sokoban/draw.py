"""Drawings of Sokoban positions."""

import numpy as np

from envs.games import svg as shapes
from envs.games.picture import Picture, Tile, grid_picture
from envs.games.roles import TwoRole, hide, puzzle_state
from envs.games.sokoban.rules import Sokoban, SokobanState, cells
from envs.games.sokoban.solver import BOX, BOX_ON_GOAL, GOAL, PLAYER, PLAYER_ON_GOAL, WALL

_CELL = 40


def board(state: SokobanState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the level in the standard characters.

    They are # wall, $ box, . goal, * box on goal, @ player, + player on goal, and ? hidden.
    """
    del player
    state = puzzle_state(state)
    marks = hide([Sokoban.symbols[code] for code in np.asarray(cells(state))], visible)
    width = state.ground.shape[1]
    return "\n".join("".join(marks[start : start + width]) for start in range(0, len(marks), width))


def svg(state: SokobanState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the level as an SVG document, with hidden cells in grey."""
    del player
    state = puzzle_state(state)
    height, width = state.ground.shape
    parts = [shapes.rect(0, 0, width * _CELL, height * _CELL, "#efe6d2")]
    for cell, mark in enumerate(hide(np.asarray(cells(state)).tolist(), visible)):
        left, top = cell % width * _CELL, cell // width * _CELL
        x, y = left + _CELL / 2, top + _CELL / 2
        if mark == "?":
            parts.append(shapes.rect(left, top, _CELL, _CELL, "#c9c9c9", "#bdbdbd"))
        elif mark == WALL:
            parts.append(shapes.rect(left, top, _CELL, _CELL, "#5d4a3a", "#4a3a2d"))
        if mark in (GOAL, BOX_ON_GOAL, PLAYER_ON_GOAL):
            parts.append(shapes.circle(x, y, _CELL * 0.16, "#d9534f"))
        if mark in (BOX, BOX_ON_GOAL):
            near, far = _CELL * 0.14, _CELL * 0.86
            fill, edge = ("#c98b3c", "#8a5a1d") if mark == BOX else ("#6fae5a", "#3f7a2e")
            parts += [
                shapes.rect(left + near, top + near, far - near, far - near, fill, edge, rx=4),
                shapes.line(left + near + 4, top + near + 4, left + far - 4, top + far - 4, edge, 2),
                shapes.line(left + near + 4, top + far - 4, left + far - 4, top + near + 4, edge, 2),
            ]
        if mark in (PLAYER, PLAYER_ON_GOAL):
            parts.append(shapes.circle(x, y, _CELL * 0.3, "#2471a3", "#1a5276", 2))
    return shapes.document(width * _CELL, height * _CELL, parts)


_TILES = (
    Tile("#", "#8d735c", "#5d4a3a"),
    Tile(".", "#cfc3a8", "#efe6d2"),
    Tile("G", "#d9534f", "#efe6d2"),
    Tile("B", "#5a3a10", "#c98b3c"),
    Tile("*", "#1f4d12", "#6fae5a"),
    Tile("A", "#ffffff", "#2471a3"),
    Tile("+", "#f8d0cf", "#2471a3"),
)


def picture(game: Sokoban | TwoRole, style: str) -> Picture:
    """Return the drawing for models, with the signs of the text."""
    del style
    return grid_picture(game, game.shape, _TILES, cells)
