"""Drawings of connect four positions.

Both players see everything, so `player` has no effect.
"""

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import svg as shapes
from envs.games.connect_four.rules import COLUMNS, ROWS, ConnectFourState, cells
from envs.games.game import Game
from envs.games.picture import Picture, Tile

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


def picture(game: Game, style: str) -> Picture:
    """Return the drawing for models: the numbers of the columns above the board.

    As in the text, X is the first player in the style `full`, and the reader in the others.
    """
    del game
    free = Tile(".", "#3b6fc0", "#1f4e9c")
    stones = Tile("X", "#ffffff", "#d64541"), Tile("O", "#5a4a00", "#f4d03f")
    header = (Tile(str(column + 1)) for column in range(COLUMNS))

    def drawn(state: ConnectFourState, seat: jax.Array) -> jax.Array:
        board = cells(state).astype(jnp.int32).reshape(-1)
        if style != "full":
            board = jnp.where((board > 0) & (seat == 1), 3 - board, board)
        return jnp.concatenate([3 + jnp.arange(COLUMNS), board])

    return Picture((ROWS + 1, COLUMNS), (free, *stones, *header), drawn)
