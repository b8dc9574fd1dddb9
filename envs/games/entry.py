"""What each game brings, and the table of all games by name.

A game is a folder and a line: the folder's `__init__.py` defines its `GAME`, and the line below says where. Another
package adds a game with `GAMES.add("nim", "my_package.nim:GAME")` or an entry point of the group `marl_jax.games`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import jax

from envs.games.game import Bot, Game, State
from envs.games.text import Text
from registries import Registry

GameT = TypeVar("GameT", bound=Game)


class Drawing(Protocol):
    """A position for a person to look at; usually the module `draw` of a game."""

    def board(self, state: State, player: int | None = None) -> str:
        """Terminal text; with `player`, what that seat may see."""
        ...

    def svg(self, state: State, player: int | None = None) -> str:
        """An SVG document; with `player`, what that seat may see."""
        ...


class Symmetries(Protocol):
    """The symmetries of a game: 0 changes nothing, and stepping commutes with all of them."""

    @property
    def n_symmetries(self) -> int:
        """Number of symmetries, the identity included."""
        ...

    def apply(self, state: State, i: jax.Array) -> State:
        """The state seen through symmetry `i` (int[])."""
        ...

    def map_action(self, action: jax.Array, i: jax.Array) -> jax.Array:
        """The action that does there what `action` does in the original: int32[]."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class GameEntry(Generic[GameT]):
    """All that belongs to one game.

    rules:         its class
    text:          `text(game, style)`, what models read and write
    draw:          `board` and `svg`, what people see; games that hide cells from a seat also take `visible`, bool[C];
                   `targets`, if there is one, says where on the drawing a click takes which action
    bots:          by name, the best last; each makes a bot for the game
    symmetry:      makes the symmetries of the game, for augmenting self-play; None where it has none
    level_params:  parameters that choose the levels: a policy can be evaluated on levels of another size or kind
    reward_params: parameters that say what is paid, which changes neither the rules nor what is read
    """

    rules: type[GameT]
    text: Callable[[GameT, str], Text]
    draw: Drawing
    bots: Mapping[str, Callable[[GameT], Bot]] = dataclasses.field(default_factory=dict)
    symmetry: Callable[[GameT], Symmetries] | None = None
    level_params: frozenset[str] = frozenset()
    reward_params: frozenset[str] = frozenset()


GAMES = Registry("games")
GAMES.add("tic_tac_toe", "envs.games.tic_tac_toe:GAME")
GAMES.add("connect_four", "envs.games.connect_four:GAME")
GAMES.add("hanabi", "envs.games.hanabi:GAME")
GAMES.add("kuhn", "envs.games.kuhn:GAME")
GAMES.add("leduc", "envs.games.leduc:GAME")
GAMES.add("plan_path", "envs.games.plan_path:GAME")
GAMES.add("sokoban", "envs.games.sokoban:GAME")
GAMES.add("sudoku", "envs.games.sudoku:GAME")
