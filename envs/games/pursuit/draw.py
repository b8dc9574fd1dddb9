"""Drawings of pursuit positions.

In the local view, cells that `player` does not see are hidden.
"""

import numpy as np

from envs.games import svg as shapes
from envs.games.picture import Picture, Tile, grid_picture
from envs.games.pursuit.rules import BOTH, CAUGHT, FIRST, FREE, SECOND, Pursuit, PursuitState
from envs.games.roles import hide

SYMBOLS = ".AB&EX"
"""Signs of the contents of a cell: pursuers A and B, both (&), the evader, and the evader when it is caught (X)."""
_CELL = 40
_FIGURES: dict[int | str, tuple[str, str]] = {
    FIRST: ("A", "#2471a3"),
    SECOND: ("B", "#1e8449"),
    BOTH: ("AB", "#2471a3"),
    FREE: ("E", "#d68910"),
}


def board(state: PursuitState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the grid: A and B pursuers, & both, E evader, X caught, ? hidden."""
    del player
    width = state.board.shape[1]
    marks = hide([SYMBOLS[code] for code in np.asarray(state.board).reshape(-1)], visible)
    return "\n".join(" ".join(marks[start : start + width]) for start in range(0, len(marks), width))


def svg(state: PursuitState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the grid as an SVG document, with hidden cells in grey."""
    del player
    height, width = state.board.shape
    parts = []
    for cell, mark in enumerate(hide(np.asarray(state.board).reshape(-1).tolist(), visible)):
        left, top = cell % width * _CELL, cell // width * _CELL
        parts.append(shapes.rect(left, top, _CELL, _CELL, "#c9c9c9" if mark == "?" else "#fbfaf5", "#dcd8c8"))
        name, fill = _FIGURES.get(mark, ("X", "#c0392b") if mark == CAUGHT else ("", ""))
        if name:
            x, y = left + _CELL / 2, top + _CELL / 2
            parts += [shapes.circle(x, y, _CELL * 0.36, fill), shapes.text(x, y + 6, name, fill="#ffffff")]
    return shapes.document(width * _CELL, height * _CELL, parts)


_TILES = tuple(
    Tile(sign, *colors)
    for sign, colors in zip(
        SYMBOLS,
        (
            ("#dcd8c8", "#fbfaf5"),
            ("#ffffff", "#2471a3"),
            ("#ffffff", "#1e8449"),
            ("#ffffff", "#117a8b"),
            ("#ffffff", "#d68910"),
            ("#ffffff", "#c0392b"),
        ),
        strict=True,
    )
)


def picture(game: Pursuit, style: str) -> Picture:
    """Return the drawing for models, with the signs of the text."""
    del style
    return grid_picture(game, game.shape, _TILES, lambda state: state.board)
