"""The text of connect four; an answer is the number of a column.

The compact and the brief style also show the effect of the reader's next stone in each column (`threats.py`), as one
sign per column:

    -  full    .  none of the following    w  wins    b  blocks a win of the other player
    g  gives the other player a win on top of it    s  spoils a win of the reader on top of it

In the brief style a column has three signs: its lower three places, its upper three places, and this one. Three places
hold at most three stones, from the bottom. So few tokens make a byte-level model several times faster.

    .  none    x  o    one    a  b  c  d    xx, xo, ox, oo    e  f  g  h  i  j  k  l    xxx, xxo, …, ooo
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from envs.games.connect_four.rules import COLUMNS, ROWS, ConnectFourState, cells
from envs.games.connect_four.threats import next_stones
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
    "other player, a dot is free. The top row comes first. Then, for each column, what your next stone there does: W "
    "wins, B keeps O from winning there, G lets O win on top of it, S gives up a win of yours on top of it, - the "
    "column is full. Later moves are given as stone, column and row (1 is the top). Answer with the number of a column "
    "only."
)
NEXT_STONES = "-.wbgs"
"""Signs of the facts of `threats.py`, by number."""
STACKS = ".xoabcdefghijkl"
"""Signs of stacks of up to three stones, shorter ones first, those that begin with x before the others."""
HEADER = "Board:\n" + " ".join(map(str, range(1, COLUMNS + 1))) + "\n"
COLUMN_NUMBERS = range(1, COLUMNS + 1)
ROW_NUMBERS = range(1, ROWS + 1)


def text(game: Game, style: str) -> Text:
    """Build the text in one style.

    The style `full` has six lines below a numbered header. In the other styles, X is always the reader.
    """
    if style == "full":
        return _full(game)
    if style == "brief":
        return _brief(game)
    board = (Fixed("board\n"), *grid((ROWS, COLUMNS), ".XO"))
    facts = _facts("next", tuple(f" {sign}" for sign in NEXT_STONES.upper()))
    words = _own(game, style, COMPACT_RULES, board, (" X", " O"), " r", facts, " Your move?", " Your move?")
    board, facts = grid((ROWS, COLUMNS), ".XO", between=None), _facts("", NEXT_STONES.upper())
    signs = _own(game, style, COMPACT_RULES, board, ("X", "O"), "", facts, "?", "?")
    return dataclasses.replace(words, others=(signs,))


def _facts(lead: str, signs: Sequence[str]) -> tuple[Piece, ...]:
    """Return a table per column with the signs of `threats.py`."""
    return Fixed(lead), *[Table(tuple(signs))] * COLUMNS


def _brief(game: Game) -> Text:
    facts = _facts("", NEXT_STONES)
    column = (Table(tuple(STACKS)), Table(tuple(STACKS)), facts[-1])
    own = _own(game, "brief", "", (), ("x", "o"), "", facts, ":", ":")
    return dataclasses.replace(own, observation=Template(column * COLUMNS), indices=_brief_view)


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


def _own(game, style, rules: str, board, stones, row: str, facts, question: str, ask: str) -> Text:
    """Build a text in which the reader has the first of the two stones.

    `row` is the text before the number of a row.
    """
    moves = (Table(tuple(stones)), Table(game.action_names), Table(tuple(f"{row}{n}" for n in ROW_NUMBERS)))
    lead = (Fixed(" "),) if row else ()
    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=("", ""),
        observation=Template((*board, *facts)),
        board=len(board) or None,
        indices=_own_view,
        questions=(question, question),
        names=game.action_names,
        events=Template((*moves, *lead, *facts)),
        event_indices=_own_event,
        asks=(ask, ask),
    )


def _brief_view(state: ConnectFourState, seat: jax.Array) -> jax.Array:
    """Return two indices into `STACKS` and the fact of every column: int32 [21]."""
    board = _stones(state, seat)[::-1]  # row 0 is the lowest here
    number = jnp.ones((2, COLUMNS), jnp.int32)
    for stone in board.reshape(2, ROWS // 2, COLUMNS).swapaxes(0, 1):
        number = jnp.where(stone > 0, 2 * number + stone - 1, number)
    return jnp.concatenate([number - 1, next_stones(state, seat)[None]]).T.reshape(-1)


def _own_view(state: ConnectFourState, seat: jax.Array) -> jax.Array:
    """Return the content of every place, then the facts of `threats.py`: int32 [49]."""
    return jnp.concatenate([_stones(state, seat).reshape(-1), next_stones(state, seat)])


def _stones(state: ConnectFourState, seat: jax.Array) -> jax.Array:
    """Return 0 for free places, 1 for own stones, 2 for others: int32 [6, 7].

    Row 0 is at the top.
    """
    board = cells(state).astype(jnp.int32)
    return jnp.where((board > 0) & (jnp.asarray(seat) == 1), 3 - board, board)


def _event(before: ConnectFourState, action: jax.Array, after: ConnectFourState, seat: jax.Array) -> jax.Array:
    """Return whether the other player moved, the column and the row: int32 [3]."""
    action = jnp.asarray(action, jnp.int32)
    stones = jnp.sum(cells(before)[:, action] > 0)
    return jnp.stack([(before.turns & 1) != seat, action, jnp.clip(ROWS - 1 - stones, 0)]).astype(jnp.int32)


def _own_event(before: ConnectFourState, action: jax.Array, after: ConnectFourState, seat: jax.Array) -> jax.Array:
    """Return `_event` and the facts of `threats.py` after the move: int32 [10]."""
    return jnp.concatenate([_event(before, action, after, seat), next_stones(after, seat)])
