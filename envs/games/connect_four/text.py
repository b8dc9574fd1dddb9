"""Connect four as text: six lines from the top, an answer is the number of a column."""

import jax
import jax.numpy as jnp

from envs.games.connect_four.rules import COLUMNS, ROWS, State, cells
from envs.games.game import Game
from envs.games.template import Fixed, Template
from envs.games.text import Text, grid

RULES = (
    "You play connect four on a board with 6 rows and 7 columns. X and O take turns to drop a stone into a column, "
    "and X begins; the stone falls onto the stones below it. Four of one's own stones in a line, across, up or "
    "diagonally, win. The top row is shown first, and a dot is a free place."
)
HEADER = "Board:\n" + " ".join(map(str, range(1, COLUMNS + 1))) + "\n"


def text(game: Game, style: str) -> Text:
    """Full: a numbered header and six lines. Brief: 42 characters in which x is always the reader, and a colon."""
    if style == "brief":
        board = grid((ROWS, COLUMNS), ".xo", spaced=False)
        return Text(game, style, "", ("", ""), Template((*board, Fixed(":"))), _own_view, ("", ""), game.action_names)
    return Text(
        game=game,
        style=style,
        rules=RULES,
        roles=("You are X.", "You are O."),
        observation=Template((Fixed(HEADER), *grid((ROWS, COLUMNS), ".XO"))),
        indices=lambda state, player: cells(state).reshape(-1),
        questions=("Into which column do you drop your stone? Answer with its number only.",) * 2,
        names=game.action_names,
    )


def _own_view(state: State, player: jax.Array) -> jax.Array:
    """0 free, 1 own, 2 the other's: int32[42]."""
    board = cells(state).astype(jnp.int32).reshape(-1)
    return jnp.where((board > 0) & (jnp.asarray(player) == 1), 3 - board, board)
