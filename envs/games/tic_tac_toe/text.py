"""Tic-tac-toe as text: a free cell shows its number, which is also the answer that marks it."""

import jax
import jax.numpy as jnp

from envs.games.game import Game
from envs.games.template import Fixed, Table, Template
from envs.games.text import Text
from envs.games.tic_tac_toe.rules import State, cells

RULES = (
    "You play tic-tac-toe. X and O take turns to mark a free cell of a 3 by 3 board, and X begins. "
    "Three of one's own marks in a row, a column or a diagonal win. Free cells show their number, 1 to 9."
)


def text(game: Game, style: str) -> Text:
    """Full: the board in three lines. Brief: nine characters in which x is always the reader, and a colon."""
    if style == "brief":
        board = tuple(Table((str(cell), "x", "o")) for cell in range(1, 10))
        return Text(game, style, "", ("", ""), Template((*board, Fixed(":"))), _own_view, ("", ""), game.action_names)
    board = tuple(_cell(cell) for cell in range(9))
    return Text(
        game=game,
        style=style,
        rules=RULES,
        roles=("You are X.", "You are O."),
        observation=Template((Fixed("Board:\n"), *board)),
        indices=lambda state, player: cells(state),
        questions=("Which free cell do you mark? Answer with its number only.",) * 2,
        names=game.action_names,
    )


def _cell(cell: int) -> Table:
    start, end = " " if cell % 3 else "", "\n" if cell % 3 == 2 else ""
    return Table(tuple(start + mark + end for mark in (str(cell + 1), "X", "O")))


def _own_view(state: State, player: jax.Array) -> jax.Array:
    """0 free, 1 own, 2 the other's: int32[9]."""
    board = cells(state).astype(jnp.int32)
    return jnp.where((board > 0) & (jnp.asarray(player) == 1), 3 - board, board)
