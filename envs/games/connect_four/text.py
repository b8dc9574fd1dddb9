"""Connect four as text: six lines from the top, an answer is the number of a column."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.connect_four.rules import COLUMNS, ROWS, State, cells
from envs.games.game import Game
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text, grid

RULES = (
    "You play connect four on a board with 6 rows and 7 columns. X and O take turns to drop a stone into a column, "
    "and X begins; the stone falls onto the stones below it. Four of one's own stones in a line, across, up or "
    "diagonally, win. The top row is shown first, and a dot is a free place."
)
COMPACT_RULES = (
    "Connect four, 6 rows and 7 columns: a stone falls onto the stones below it, four in a line win. X is you, O the "
    "other player, a dot is free. The top row comes first. Later moves are given as stone, column and row (1 is the "
    "top). Answer with the number of a column only."
)
HEADER = "Board:\n" + " ".join(map(str, range(1, COLUMNS + 1))) + "\n"
COLUMN_NUMBERS = range(1, COLUMNS + 1)
ROW_NUMBERS = range(1, ROWS + 1)


def text(game: Game, style: str) -> Text:
    """Full: a numbered header and six lines. Compact and brief: x is always the reader."""
    if style == "full":
        return _full(game)
    if style == "brief":
        board = (*grid((ROWS, COLUMNS), ".xo", between=None), Fixed(":"))
        return _own(game, style, "", board, ("x", "o"), "", "", ":")
    words = _own(
        game,
        style,
        COMPACT_RULES,
        (Fixed("board\n"), *grid((ROWS, COLUMNS), ".XO")),
        (" X", " O"),
        " r",
        "Your move?",
        " Your move?",
    )
    signs = _own(game, style, COMPACT_RULES, grid((ROWS, COLUMNS), ".XO", between=None), ("X", "O"), "", "?", "?")
    return dataclasses.replace(words, others=(signs,))


def _full(game: Game) -> Text:
    who = Table(("You dropped a stone into column", "The other player dropped a stone into column"))
    return Text(
        game=game,
        style="full",
        rules=RULES,
        roles=("You are X.", "You are O."),
        observation=Template((Fixed(HEADER), *grid((ROWS, COLUMNS), ".XO"))),
        indices=lambda state, seat: cells(state).reshape(-1),
        questions=("Into which column do you drop your stone? Answer with its number only.",) * 2,
        names=game.action_names,
        events=Template(
            (
                who,
                Table(tuple(f" {column}; it lies in row" for column in COLUMN_NUMBERS)),
                Table(tuple(f" {row} from the top.\n" for row in ROW_NUMBERS)),
            )
        ),
        event_indices=_event,
        asks=("Into which column do you drop your stone?",) * 2,
    )


def _own(
    game: Game, style: str, rules: str, board: tuple[Piece, ...], stones, row: str, question: str, ask: str
) -> Text:
    """A text in which the reader has the first of the two stones; `row` stands before the number of a row."""
    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=("", ""),
        observation=Template(board),
        indices=_own_view,
        questions=(question, question),
        names=game.action_names,
        events=Template(
            (Table(tuple(stones)), Table(game.action_names), Table(tuple(f"{row}{number}" for number in ROW_NUMBERS)))
        ),
        event_indices=_event,
        asks=(ask, ask),
    )


def _own_view(state: State, seat: jax.Array) -> jax.Array:
    """0 free, 1 own, 2 the other's: int32[42]."""
    board = cells(state).astype(jnp.int32).reshape(-1)
    return jnp.where((board > 0) & (jnp.asarray(seat) == 1), 3 - board, board)


def _event(before: State, action: jax.Array, after: State, seat: jax.Array) -> jax.Array:
    """Whether another than the reader moved, the column, and the row in which the stone lies: int32[3]."""
    action = jnp.asarray(action, jnp.int32)
    stones = jnp.sum(cells(before)[:, action] > 0)
    return jnp.stack([(before.turns & 1) != seat, action, jnp.clip(ROWS - 1 - stones, 0)]).astype(jnp.int32)
