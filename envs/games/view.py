"""Drawings of positions as terminal text or SVG, for one seat or for spectators."""

from typing import Any

import jax

from envs.games.entry import GAMES
from envs.games.game import Game, State


def board(game: Game, state: State, player: int | None = None) -> str:
    """Draw a position as terminal text, as seen by `player` if given."""
    return GAMES.get(game.name).draw.board(state, player, **_hidden(game, state, player))


def svg(game: Game, state: State, player: int | None = None) -> str:
    """Draw a position as an SVG document, as seen by `player` if given."""
    return GAMES.get(game.name).draw.svg(state, player, **_hidden(game, state, player))


def targets(game: Game) -> dict[int, tuple[float, float, float, float]]:
    """Return the clickable area (x, y, width, height) of each action, if any."""
    return getattr(GAMES.get(game.name).draw, "targets", dict)()


def _hidden(game: Game, state: State, player: int | None) -> dict[str, Any]:
    visible = None if player is None else game.visible(state, player)
    return {} if visible is None else {"visible": jax.device_get(visible)}
