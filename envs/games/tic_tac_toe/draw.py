"""Drawings of tic-tac-toe positions.

Both players see everything, so `player` has no effect.
"""

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import svg as shapes
from envs.games.game import Game
from envs.games.picture import SHADE, Picture, Tile
from envs.games.tic_tac_toe.rules import TicTacToeState, cells

_CELL = 60


def board(state: TicTacToeState, player: int | None = None) -> str:
    """Draw the board as three rows of X, O or the number of the action."""
    del player
    marks = [("XO"[c - 1] if c else str(i + 1)) for i, c in enumerate(np.asarray(cells(state)))]
    rows = [" " + " | ".join(marks[r : r + 3]) for r in (0, 3, 6)]
    return "\n---+---+---\n".join(rows)


def svg(state: TicTacToeState, player: int | None = None) -> str:
    """Draw the board as an SVG document."""
    del player
    side = 3 * _CELL
    parts = [shapes.rect(0, 0, side, side, "#ffffff")]
    for k in (1, 2):
        at = k * _CELL
        parts += [shapes.line(at, 6, at, side - 6, "#555555", 2), shapes.line(6, at, side - 6, at, "#555555", 2)]
    for i, c in enumerate(np.asarray(cells(state))):
        x, y, r = (i % 3 + 0.5) * _CELL, (i // 3 + 0.5) * _CELL, _CELL * 0.3
        if c == 1:
            parts += [shapes.line(x - r, y - s, x + r, y + s, "#c0392b", 5) for s in (r, -r)]
        elif c == 2:
            parts.append(shapes.circle(x, y, r, "none", "#2471a3", 5))
    return shapes.document(side, side, parts)


def targets() -> dict[int, tuple[float, float, float, float]]:
    """Return the clickable area (x, y, width, height) of each action."""
    return {i: (i % 3 * _CELL, i // 3 * _CELL, _CELL, _CELL) for i in range(9)}


def picture(game: Game, style: str) -> Picture:
    """Return the drawing for models.

    As in the text, X is the first player in the style `full`, and the reader in the others.
    """
    del game
    cross, nought = Tile("X", "#c0392b", "#fdf0ee"), Tile("O", "#2471a3", "#eef4fa")

    def drawn(state: TicTacToeState, seat: jax.Array) -> jax.Array:
        board = cells(state).astype(jnp.int32)
        if style != "full":
            board = jnp.where((board > 0) & (seat == 1), 3 - board, board)
        return jnp.where(board > 0, board + 8, jnp.arange(9))

    return Picture((3, 3), (*(Tile(str(cell), SHADE) for cell in range(1, 10)), cross, nought), drawn)
