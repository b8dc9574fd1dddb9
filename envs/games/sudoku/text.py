"""Sudoku as text: rows have letters and columns numbers, so `b3=1` writes a 1 into the third cell of the second row.

Givens and own entries look different, because a given cannot be changed.
"""

import jax
import jax.numpy as jnp

from envs.games.puzzle_text import Words, puzzle_text
from envs.games.roles import TwoRole
from envs.games.sudoku.rules import State, Sudoku
from envs.games.sudoku.solver import box_side
from envs.games.text import Text

ROWS = "abcdefghi"


def text(game: Sudoku | TwoRole, style: str) -> Text:
    """Full: the grid in lines, own entries after a plus. Brief: one character per cell, own entries as letters."""
    puzzle = game.game if isinstance(game, TwoRole) else game
    n = puzzle.size
    digits = tuple(map(str, range(1, n + 1)))
    equals = "=" if style == "full" else ""
    names = tuple(f"{row}{column}{equals}{digit}" for row in ROWS[:n] for column in digits for digit in digits)
    if style == "brief":
        return puzzle_text(game, style, Words("", (".", *digits, *ROWS[:n].upper()), names, _codes(n)))
    words = Words(
        rules=_rules(n),
        symbols=("0", *digits, *(f"+{digit}" for digit in digits)),
        names=names,
        codes=_codes(n),
        ask="Answer with row, column and digit only, like a2=1.",
        header=" " + "".join(f" {digit}" for digit in digits) + "\n",
        labels=tuple(ROWS[:n]),
    )
    return puzzle_text(game, style, words)


def _rules(n: int) -> str:
    side = box_side(n)
    return (
        f"Fill a Sudoku of {n} by {n} cells: every row, every column and every box of {side} by {side} cells holds "
        f"each digit from 1 to {n} once. Columns have numbers, rows have letters, and 0 is an empty cell. A plus "
        "marks what you wrote; the other digits are given and cannot be changed. Each move writes one digit into an "
        "empty cell or over one of your own. A digit that a given in its row, column or box already has is refused; "
        "own digits that it contradicts are erased."
    )


def _codes(n: int):
    """A function of the state: 0 empty, 1..n given, n+1..2n own: int32[C]."""

    def codes(state: State) -> jax.Array:
        grid = state.grid.astype(jnp.int32)
        return (grid + n * ((grid > 0) & (state.puzzle == 0))).reshape(-1)

    return codes
