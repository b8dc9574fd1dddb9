"""Functions that build games and their texts by name (see `envs.games.entry`)."""

import dataclasses
import typing
from typing import Any

from envs.games.entry import GAMES, Symmetries
from envs.games.game import Game, check_choice
from envs.games.medium import Medium
from envs.games.puzzle import Puzzle
from envs.games.roles import TwoRole
from envs.games.text import STYLES, Text
from envs.parameters import check_names, check_types

_ROLES = ("one", "two")


def game_class(name: str) -> type[Game]:
    """Return the class of the game called `name`."""
    return GAMES.get(name).rules


def make(name: str, **params: Any) -> Game:
    """Build a game from its name and parameters.

        make("hanabi", preset="small", players=3)
        make("sokoban", roles="two", view="local")

    Args:
        name: Name of a registered game.
        **params: Fields of the game's class. If the class defines PRESETS, `preset` names one of them, which the other
            parameters override. Puzzles also accept `roles`: "one" (the default), or "two" for a planner and an
            executor with the fields of `TwoRole`.
    """
    cls = game_class(name)
    presets = cls.PRESETS
    if presets and "preset" in params:
        check_choice(name, "preset", params["preset"], tuple(presets))
        params = {**presets[params["preset"]], **{k: v for k, v in params.items() if k != "preset"}}
    for_roles = _fields(TwoRole) - {"game"} if issubclass(cls, Puzzle) else set()
    accepted = _fields(cls) | for_roles
    accepted |= ({"roles"} if for_roles else set()) | ({"preset"} if presets else set())
    check_names(name, params, accepted)
    hints = {field: hint for owner in (TwoRole, cls) for field, hint in typing.get_type_hints(owner).items()}
    check_types(name, params, {field: hints[field] for field in _fields(cls) | for_roles})
    if not issubclass(cls, Puzzle):
        return cls(**params)
    roles = params.pop("roles", "one")
    check_choice(name, "roles", roles, _ROLES)
    about_roles = {field: params.pop(field) for field in for_roles & params.keys()}
    if roles == "two":
        return TwoRole(cls(**params), **about_roles)
    if about_roles:
        raise ValueError(f"{name}: {', '.join(sorted(about_roles))} requires roles 'two', but roles is 'one'")
    return cls(**params)


def symmetry(game: Game) -> Symmetries | None:
    """Return the symmetries of a game for self-play augmentation, or None."""
    make_symmetry = GAMES.get(game.name).symmetry
    return None if make_symmetry is None else make_symmetry(game)


def _fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls) if field.init}


def make_medium(game: Game, style: str = "full") -> Medium:
    """Return the picture or the other media of a game for models that read them."""
    if style not in STYLES:
        raise ValueError(f"text style is {style!r}, but must be one of: {', '.join(STYLES)}")
    make = GAMES.get(game.name).medium
    if make is None:
        raise ValueError(f"game is {game.name!r}, but it has no pictures. Define `medium` in its registry entry.")
    return make(game, style)


def make_text(game: Game, style: str = "full", reasoning: bool = False) -> Text:
    """Return the text of a game, optionally asking for reasoning before the answer."""
    if style not in STYLES:
        raise ValueError(f"text style is {style!r}, but must be one of: {', '.join(STYLES)}")
    text = GAMES.get(game.name).text(game, style)
    return text.reasoned() if reasoning else text
