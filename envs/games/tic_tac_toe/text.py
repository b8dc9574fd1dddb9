"""The text of tic-tac-toe; an answer is the number of a cell."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.game import Game
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text, grid
from envs.games.tic_tac_toe.rules import TicTacToe, TicTacToeState, cells

RULES = (
    "You play tic-tac-toe. X and O take turns to mark a free cell of a 3 by 3 board, and X begins. "
    "Three of one's own marks in a row, a column or a diagonal win. Free cells show their number, 1 to 9."
)
COMPACT_RULES = (
    "Tic-tac-toe: three in a line win. X is you, O the other player, a dot is a free cell. The cells have the numbers "
    "1 to 9, row by row. Later moves are given as mark and cell. Answer with the number of a free cell only."
)


def text(game: Game, style: str) -> Text:
    """Build the text in one style.

    In the style `full`, free cells show their number, and X and O are the marks of the seats. In the other styles, X is
    always the reader.
    """
    if style == "full":
        return _full(game)
    if style == "brief":
        board = (*(Table((str(cell), "x", "o")) for cell in range(1, 10)), Fixed(":"))
        return _own(game, style, "", board, ("x", "o"), "", ":")
    words = _own(
        game, style, COMPACT_RULES, (Fixed("board\n"), *grid((3, 3), ".XO")), (" X", " O"), "Your move?", " Your move?"
    )
    signs = _own(game, style, COMPACT_RULES, grid((3, 3), ".XO", between=None), ("X", "O"), "?", "?")
    return dataclasses.replace(words, others=(signs,))


def _full(game: Game) -> Text:
    who = Table(("You marked cell", "The other player marked cell"))
    return Text(
        game=game,
        style="full",
        rules=RULES,
        roles=("You are X.", "You are O."),
        observation=Template((Fixed("Board:\n"), *(_cell(cell) for cell in range(9)))),
        indices=lambda state, seat: cells(state),
        questions=("Which free cell do you mark? Answer with its number only.",) * 2,
        names=game.action_names,
        events=Template((who, Table(tuple(f" {cell}.\n" for cell in range(1, 10))))),
        event_indices=_event,
        asks=("Which free cell do you mark?",) * 2,
    )


def _own(game: Game, style: str, rules: str, board: tuple[Piece, ...], marks, question: str, ask: str) -> Text:
    """Build a text in which the reader has the first of the two marks."""
    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=("", ""),
        observation=Template(board),
        indices=_own_view,
        questions=(question, question),
        names=game.action_names,
        events=Template((Table(tuple(marks)), Table(game.action_names))),
        event_indices=_event,
        asks=(ask, ask),
    )


def _cell(cell: int) -> Table:
    start, end = " " if cell % 3 else "", "\n" if cell % 3 == 2 else ""
    return Table(tuple(start + mark + end for mark in (str(cell + 1), "X", "O")))


def _own_view(state: TicTacToeState, seat: jax.Array) -> jax.Array:
    """Return 0 for free cells, 1 for own marks, 2 for others: int32 [9]."""
    board = cells(state).astype(jnp.int32)
    return jnp.where((board > 0) & (jnp.asarray(seat) == 1), 3 - board, board)


def _event(before: TicTacToeState, action: jax.Array, after: TicTacToeState, seat: jax.Array) -> jax.Array:
    """Return whether the other player moved, and the cell: int32 [2]."""
    return jnp.stack([TicTacToe().player(before) != seat, jnp.asarray(action)]).astype(jnp.int32)
