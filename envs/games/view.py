"""A position of any game as a person sees it: terminal text or SVG, from a seat or with everything shown."""

import importlib
from types import ModuleType
from typing import Any

import jax

from envs.games.game import Game, State
from envs.games.roles import TwoRole


def board(game: Game, state: State, player: int | None = None) -> str:
    """Terminal text; with `player`, what that seat may see."""
    return _module(game).board(state, player, **_hidden(game, state, player))


def svg(game: Game, state: State, player: int | None = None) -> str:
    """An SVG document; with `player`, what that seat may see."""
    return _module(game).svg(state, player, **_hidden(game, state, player))


def _module(game: Game) -> ModuleType:
    name = game.game.name if isinstance(game, TwoRole) else game.name
    return importlib.import_module(f"envs.games.{name}.draw")


def _hidden(game: Game, state: State, player: int | None) -> dict[str, Any]:
    if not isinstance(game, TwoRole) or player is None:
        return {}
    return {"visible": jax.device_get(game.visible(state, player))}
