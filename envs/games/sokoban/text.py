"""The text of Sokoban: one token per cell, and moves in words."""

import jax
import jax.numpy as jnp

from envs.games.puzzle_notation import BRIEF, COMPACT, COMPACT_WORDS, FULL, PuzzleNotation, places, walking_help, window
from envs.games.puzzle_text import PuzzleWords, in_notations, puzzle_text
from envs.games.roles import TwoRole
from envs.games.sokoban.rules import Sokoban, SokobanState
from envs.games.sokoban.solver import WALL
from envs.games.template import Table
from envs.games.text import Text

SYMBOLS = ("#", ".", "G", "B", "*", "A", "+")
"""Sign of every code. The standard sign of the floor, a space, would merge with its neighbors."""

RULES = (
    "Push every box onto a goal. You are A, or + when you stand on a goal. B is a box, * a box on a goal, G a goal, "
    "# a wall and a dot free floor. Every move goes one cell up, down, left or right. Moving against a box pushes it "
    "one cell further if that cell holds no wall and no box; boxes cannot be pulled."
)
COMPACT_RULES = (
    "Push every box B onto a goal G; boxes cannot be pulled. You are A, or + on a goal. * is a box on a goal, # is a "
    "wall, a dot is free. Later lines give a move, where A is after it, the box B that it pushed, and the moves left."
)


def text(game: Sokoban | TwoRole, style: str) -> Text:
    """Build the text in one style.

    The styles `full` and `compact` show the board in lines. The style `brief` has one character per cell, and moves are
    their first letters.
    """
    notations = {"full": (FULL,), "compact": COMPACT, "brief": (BRIEF,)}[style]
    return in_notations(lambda notation: puzzle_text(game, style, _words(game, style, notation), notation), notations)


def _words(game: Sokoban | TwoRole, style: str, notation: PuzzleNotation) -> PuzzleWords:
    puzzle = game.game if isinstance(game, TwoRole) else game
    digits = len(str(max(puzzle.shape)))
    blocked, stands = "#", f"{{:0{digits}}}{{:0{digits}}}"
    box = "B" + stands
    if notation is FULL:
        blocked, stands = ", which was blocked", "; A is at row {}, column {}"
        box = ", the box that it pushed at row {}, column {}"
    elif notation is COMPACT_WORDS:
        blocked, stands, box = " blocked", " r{} c{}", " B r{} c{}"
    sight, sight_cells = window(puzzle.shape, game.radius if isinstance(game, TwoRole) else 1, notation)
    return PuzzleWords(
        rules={"full": RULES, "compact": COMPACT_RULES + walking_help(notation), "brief": ""}[style],
        symbols=SYMBOLS,
        names=puzzle.action_names if notation in (FULL, COMPACT_WORDS) else tuple("udlr"),
        codes=puzzle.cells,
        ask="Answer with one word only: up, down, left or right.",
        outcome=tuple(Table(("", *texts)) for texts in ((blocked,), *(places(puzzle.shape, p) for p in (stands, box)))),
        outcome_indices=_outcome_indices,
        sight=sight,
        sight_cells=sight_cells,
        off_board=WALL,
    )


def _outcome_indices(before: SokobanState, action: jax.Array, after: SokobanState, seen: jax.Array | None) -> jax.Array:
    """Return whether the move was blocked, the player's and the pushed box's place: int32 [3]."""
    pushed = jnp.max(jnp.where(before.boxes != after.boxes, after.boxes, -1))
    return jnp.stack([before.position == after.position, after.position + 1, pushed + 1])
