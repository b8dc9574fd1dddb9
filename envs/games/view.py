"""A position of any game as a person sees it: terminal text or SVG, from a seat or with everything shown."""

from typing import Any

import jax

from envs.games.entry import GAMES
from envs.games.game import Game, State


def board(game: Game, state: State, player: int | None = None) -> str:
    """Terminal text; with `player`, what that seat may see."""
    return GAMES.get(game.name).draw.board(state, player, **_hidden(game, state, player))


def svg(game: Game, state: State, player: int | None = None) -> str:
    """An SVG document; with `player`, what that seat may see."""
    return GAMES.get(game.name).draw.svg(state, player, **_hidden(game, state, player))


def targets(game: Game) -> dict[int, tuple[float, float, float, float]]:
    """Where on the drawing a click takes which action: (x, y, width, height); {} where actions have no place."""
    return getattr(GAMES.get(game.name).draw, "targets", dict)()


def _hidden(game: Game, state: State, player: int | None) -> dict[str, Any]:
    visible = None if player is None else game.visible(state, player)
    return {} if visible is None else {"visible": jax.device_get(visible)}
