"""Games by name; a game's module is imported when it is first asked for."""

import dataclasses
import importlib
import importlib.util
from typing import Any, Protocol

import jax

from envs.games.game import Game, State, check_choice
from envs.games.puzzle import Puzzle
from envs.games.roles import TwoRole

_CLASSES = {
    "tic_tac_toe": "TicTacToe",
    "connect_four": "ConnectFour",
    "hanabi": "Hanabi",
    "plan_path": "PlanPath",
    "sokoban": "Sokoban",
    "sudoku": "Sudoku",
}
_ROLES = ("one", "two")

GAMES = tuple(_CLASSES)
"""Names that `make` accepts."""


class Symmetries(Protocol):
    """The symmetries of a game: 0 changes nothing, and stepping commutes with all of them."""

    n_symmetries: int

    def apply(self, state: State, i: jax.Array) -> State:
        """The state seen through symmetry `i` (int[])."""
        ...

    def map_action(self, action: jax.Array, i: jax.Array) -> jax.Array:
        """The action that does there what `action` does in the original: int32[]."""
        ...


def game_class(name: str) -> type[Game]:
    """The class `envs.<name>.rules.<Class>` of a game."""
    if name not in _CLASSES:
        raise ValueError(f"unknown game {name!r}; known are {', '.join(GAMES)}")
    return getattr(importlib.import_module(f"envs.games.{name}.rules"), _CLASSES[name])


def make(name: str, **params: Any) -> Game:
    """Build a game from its name and parameters: the fields of its class, and

    preset:  where the class defines PRESETS, the name of one; other parameters override the preset's
    roles:   for the puzzles, "one" (the default) or "two": planner and executor, with the fields of `TwoRole`

        make("hanabi", preset="small", players=3)
        make("sokoban", roles="two", view="local")
    """
    cls = game_class(name)
    presets = getattr(cls, "PRESETS", {})
    if presets and "preset" in params:
        check_choice(name, "preset", params["preset"], tuple(presets))
        params = {**presets[params["preset"]], **{k: v for k, v in params.items() if k != "preset"}}
    for_roles = _fields(TwoRole) - {"game"} if issubclass(cls, Puzzle) else set()
    accepted = _fields(cls) | for_roles
    accepted |= ({"roles"} if for_roles else set()) | ({"preset"} if presets else set())
    for field in params:
        if field not in accepted:
            known = ", ".join(sorted(accepted)) or "none"
            raise ValueError(f"{name}: unknown parameter {field!r}; accepted are {known}")
    if not for_roles:
        return cls(**params)
    roles = params.pop("roles", "one")
    check_choice(name, "roles", roles, _ROLES)
    about_roles = {field: params.pop(field) for field in for_roles & params.keys()}
    if roles == "two":
        return TwoRole(cls(**params), **about_roles)
    if about_roles:
        raise ValueError(f"{name}: {', '.join(sorted(about_roles))} is for roles='two', found roles='one'")
    return cls(**params)


def held_out(game: Game) -> Game:
    """The same game on levels that training never sees: the test part of a puzzle's pool; other games as they are."""
    if isinstance(game, TwoRole):
        return dataclasses.replace(game, game=held_out(game.game))
    return dataclasses.replace(game, part="test") if isinstance(game, Puzzle) else game


def symmetry(game: Game) -> Symmetries | None:
    """The symmetries of a game, for augmenting self-play; None where it declares none."""
    module = f"envs.games.{game.name}.symmetry"
    if importlib.util.find_spec(module) is None:
        return None
    return importlib.import_module(module).Symmetry(game)


def _fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls) if field.init}
