"""Drawings of connect four positions.

Both players see everything, so `player` has no effect.
"""

import numpy as np

from envs.games import svg as shapes
from envs.games.connect_four.rules import COLUMNS, ROWS, ConnectFourState, cells

_CELL = 48
_FILLS = ("#f4f6f7", "#d64541", "#f4d03f")


def board(state: ConnectFourState, player: int | None = None) -> str:
    """Draw rows of X (player 0), O (player 1) and dots, with column numbers."""
    del player
    rows = ["| " + " ".join(".XO"[c] for c in row) + " |" for row in np.asarray(cells(state))]
    return "\n".join([*rows, "  " + " ".join(str(c + 1) for c in range(COLUMNS))])


def svg(state: ConnectFourState, player: int | None = None) -> str:
    """Draw the board as an SVG document: player 0 red, player 1 yellow."""
    del player
    width, height = COLUMNS * _CELL, ROWS * _CELL
    parts = [shapes.rect(0, 0, width, height, "#1f4e9c", rx=8)]
    for (r, c), mark in np.ndenumerate(np.asarray(cells(state))):
        parts.append(shapes.circle((c + 0.5) * _CELL, (r + 0.5) * _CELL, _CELL * 0.4, _FILLS[mark]))
    parts += [shapes.text((c + 0.5) * _CELL, height + 20, str(c + 1)) for c in range(COLUMNS)]
    return shapes.document(width, height + 28, parts)


def targets() -> dict[int, tuple[float, float, float, float]]:
    """Return the clickable area (x, y, width, height) of each action."""
    return {c: (c * _CELL, 0, _CELL, ROWS * _CELL) for c in range(COLUMNS)}
