"""Drawings of matrix games; seat 1 does not see the choice of seat 0."""

import string

import jax
import jax.numpy as jnp

from envs.games import svg as shapes
from envs.games.matrix.rules import Matrix, MatrixState
from envs.games.picture import SHADE, Picture, Tile

_LINE = 24


def board(state: MatrixState, player: int | None = None) -> str:
    """Draw the state and the choice of the first player as terminal text."""
    return "\n".join(_lines(state, player))


def svg(state: MatrixState, player: int | None = None) -> str:
    """Draw the same lines as an SVG document."""
    lines = _lines(state, player)
    parts = [shapes.text(20, _LINE * (i + 1), line, anchor="start") for i, line in enumerate(lines)]
    return shapes.document(260, _LINE * (len(lines) + 1), parts)


def _lines(state: MatrixState, player: int | None) -> list[str]:
    state = jax.device_get(state)
    first = int(state.first)
    choice = "–" if first < 0 else "?" if player == 1 else string.ascii_uppercase[first]
    return [f"state         {int(state.stage)}", f"first player  {choice}"]


def picture(game: Matrix, style: str) -> Picture:
    """Return the drawing for models: the reader, first or second player, and the state."""
    del style
    seats = Tile("1", "#ffffff", "#2471a3"), Tile("2", "#ffffff", "#1e8449")
    stages = (*(Tile(str(stage)) for stage in range(game.n_stages)), Tile("-", paper=SHADE))

    def drawn(state: MatrixState, seat: jax.Array) -> jax.Array:
        return jnp.stack([seat, len(seats) + state.stage])

    return Picture((1, 2), (*seats, *stages), drawn)
