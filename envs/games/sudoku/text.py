"""The text of Sudoku; `b3=1` writes a 1 into row b, column 3.

Givens and entries look different, because a given cannot be changed.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.puzzle_notation import BRIEF, COMPACT, COMPACT_WORDS, FULL, PuzzleNotation
from envs.games.puzzle_text import PuzzleWords, in_notations, puzzle_text
from envs.games.roles import TwoRole
from envs.games.sudoku.rules import Sudoku, SudokuState
from envs.games.sudoku.solver import box_side
from envs.games.template import Table
from envs.games.text import Text, grid

ROWS = "abcdefghi"
ERASED = 3
"""Maximum number of entries that one digit can erase: in its row, its column and its box."""

COMPACT_TIGHT = dataclasses.replace(COMPACT_WORDS, between="")
"""Cells without a space between them, for tokenizers with one token per digit."""


def text(game: Sudoku | TwoRole, style: str) -> Text:
    """Build the text in one style.

    The styles `full` and `compact` show the grid in lines, with a plus before entries. The style `brief` has one
    character per cell, and entries are letters.
    """
    notations = {"full": (FULL,), "compact": (COMPACT_TIGHT, *COMPACT), "brief": (BRIEF,)}[style]
    return in_notations(lambda notation: puzzle_text(game, style, _words(game, style, notation), notation), notations)


def _words(game: Sudoku | TwoRole, style: str, notation: PuzzleNotation) -> PuzzleWords:
    puzzle = game.game if isinstance(game, TwoRole) else game
    n, full, signs = puzzle.shape[0], style == "full", notation.between is None
    digits = tuple(map(str, range(1, n + 1)))
    equals = "=" if full else ""
    cells = [f"{row}{column}" for row in ROWS[:n] for column in digits]
    refused, erased = (
        (", which was refused", ", erasing ") if full else ("!", "-") if signs else (" refused", " clear ")
    )
    labels = ("Its row", "Its column", "Its box") if full else ("row", "column", "box")
    return PuzzleWords(
        rules={"full": _rules, "compact": _compact_rules, "brief": lambda n, signs: ""}[style](n, signs),
        symbols=(".", *digits, *ROWS[:n].upper()) if signs else ("0", *digits, *(f"+{digit}" for digit in digits)),
        names=tuple(f"{cell}{equals}{digit}" for cell in cells for digit in digits),
        codes=_codes(n),
        ask="Answer with row, column and digit only, like a2=1.",
        header=" " + "".join(f" {digit}" for digit in digits) + "\n" if full else "",
        labels=() if signs else tuple(ROWS[:n]),
        outcome=(Table(("", refused)), *[Table(("", *(erased + cell for cell in cells)))] * ERASED),
        outcome_indices=lambda before, action, after, seen: _outcome_indices(n, before, action, after, seen),
        sight=lambda symbols: grid((3, n), symbols, notation.between, labels=labels),
        sight_cells=lambda state, action: _unit_cells(n, action),
    )


def _rules(n: int, signs: bool) -> str:
    side = box_side(n)
    return (
        f"Fill a Sudoku of {n} by {n} cells: every row, every column and every box of {side} by {side} cells holds "
        f"each digit from 1 to {n} once. Columns have numbers, rows have letters, and 0 is an empty cell. A plus "
        "marks what you wrote; the other digits are given and cannot be changed. Each move writes one digit into an "
        "empty cell or over one of your own. A digit that a given in its row, column or box already has is refused; "
        "own digits that it contradicts are erased."
    )


def _compact_rules(n: int, signs: bool) -> str:
    own = "0 is an empty cell, + marks your own digits"
    if signs:
        own = "A dot is an empty cell, and your own digits are letters, A for 1"
    return (
        f"Sudoku of {n} by {n}; rows have letters, columns numbers. {own}; the other digits are given. A digit that a "
        "given contradicts is refused; own digits that it contradicts are erased. Later lines give an entry, what it "
        "erased and the moves left. Answer with row, column and digit only: a21 writes a 1 into the second cell."
    )


def _codes(n: int):
    """Return a function of the state: 0 empty, 1..n given, n+1..2n entries, int32 [C]."""

    def codes(state: SudokuState) -> jax.Array:
        grid = state.grid.astype(jnp.int32)
        return (grid + n * ((grid > 0) & (state.puzzle == 0))).reshape(-1)

    return codes


def _outcome_indices(
    n: int, before: SudokuState, action: jax.Array, after: SudokuState, seen: jax.Array | None
) -> jax.Array:
    """Return the indices of an outcome: int32 [1 + ERASED].

    They are whether the entry was rejected, and the visible cells that it erased.
    """
    refused = after.grid.reshape(-1)[action // n] != action % n + 1
    gone = ((before.grid > 0) & (after.grid == 0)).reshape(-1)
    gone = gone if seen is None else gone & seen
    erased = jnp.nonzero(gone, size=ERASED, fill_value=-1)[0] + 1
    return jnp.concatenate([refused[None], erased])


def _unit_cells(n: int, action: jax.Array) -> jax.Array:
    """Return the cells in the row, column and box of the action's cell: int32 [3n]."""
    side, span = box_side(n), jnp.arange(n)
    row, column = action // n // n, action // n % n
    box = (row // side * side + span // side) * n + column // side * side + span % side
    return jnp.concatenate([row * n + span, span * n + column, box])
