"""Entries of the game registry.

A game consists of a folder, whose `__init__.py` defines `GAME`, and a line in the registry below. Other packages add a
game with `GAMES.add("nim", "my_package.nim:GAME")` or an entry point in the group `marl_jax.games`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax

from envs.games.game import Bot, Game, State
from envs.games.medium import Medium
from envs.games.text import Text
from registries import Registry

GameT = TypeVar("GameT", bound=Game)


class Drawing(Protocol):
    """Functions that draw a position, usually the module `draw` of a game."""

    def board(self, state: State, player: int | None = None) -> str:
        """Draw a position as terminal text, as seen by `player` if given."""
        ...

    def svg(self, state: State, player: int | None = None) -> str:
        """Draw a position as an SVG document, as seen by `player` if given."""
        ...


class Symmetries(Protocol):
    """Symmetries of a game.

    Symmetry 0 is the identity, and stepping commutes with all symmetries.
    """

    @property
    def n_symmetries(self) -> int:
        """Number of symmetries, including the identity."""
        ...

    def apply(self, state: State, i: jax.Array) -> State:
        """Apply symmetry `i` (int []) to a state."""
        ...

    def map_action(self, action: jax.Array, i: jax.Array) -> jax.Array:
        """Map an action to its equivalent under symmetry `i`: int32 []."""
        ...


class RecordedMoves(NamedTuple):
    """Recorded moves in n positions, to learn from.

    Attributes:
        states: The positions, arrays [n, …]. Parts that no player sees, such as a deck, may be empty.
        actions: int32 [n]. The moves.
        gains: float32 [n]. Estimated gain in return over the move of the bot that the game's data is based on.
    """

    states: Any
    actions: Any
    gains: Any


@dataclasses.dataclass(frozen=True, eq=False)
class GameEntry(Generic[GameT]):
    """Everything that belongs to one game.

    Attributes:
        rules: Class of the game.
        text: Function `text(game, style)` that returns the prompts and action names that models read and write.
        draw: Functions `board` and `svg` that draw a position for users. Games that hide cells from a seat also pass
            them `visible`, bool [C]. An optional function `targets` maps actions to clickable areas of the drawing.
        medium: Function `medium(game, style)` that returns the picture or other media for models that read them, or
            None. They contain the same facts as the board of the text in this style.
        bots: Bot factories by name, the best bot last.
        symmetry: Factory of the symmetries for self-play augmentation, or None.
        level_params: Parameters that choose the levels. A policy can be evaluated on levels of another size or kind.
        reward_params: Parameters that change rewards, but neither rules nor prompts.
        read_moves: Function `read_moves(folder, game)` that reads recorded moves (`algo.data` of `sft`), or None.
    """

    rules: type[GameT]
    text: Callable[[GameT, str], Text]
    draw: Drawing
    medium: Callable[[GameT, str], Medium] | None = None
    bots: Mapping[str, Callable[[GameT], Bot]] = dataclasses.field(default_factory=dict)
    symmetry: Callable[[GameT], Symmetries] | None = None
    level_params: frozenset[str] = frozenset()
    reward_params: frozenset[str] = frozenset()
    read_moves: Callable[[Path, GameT], RecordedMoves] | None = None


GAMES = Registry("games")
GAMES.add("tic_tac_toe", "envs.games.tic_tac_toe:GAME")
GAMES.add("connect_four", "envs.games.connect_four:GAME")
GAMES.add("hanabi", "envs.games.hanabi:GAME")
GAMES.add("kuhn", "envs.games.kuhn:GAME")
GAMES.add("leduc", "envs.games.leduc:GAME")
GAMES.add("matrix", "envs.games.matrix:GAME")
GAMES.add("referential", "envs.games.referential:GAME")
GAMES.add("plan_path", "envs.games.plan_path:GAME")
GAMES.add("sokoban", "envs.games.sokoban:GAME")
GAMES.add("sudoku", "envs.games.sudoku:GAME")
GAMES.add("pursuit", "envs.games.pursuit:GAME")
GAMES.add("warehouse", "envs.games.warehouse:GAME")
GAMES.add("lookup", "envs.games.lookup:GAME")
