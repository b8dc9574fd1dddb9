"""The text of Plan-Path: the grid, the walker, the goal, and moves in words."""

import jax
import jax.numpy as jnp

from envs.games.plan_path.rules import WALL, PlanPath, PlanPathState
from envs.games.puzzle_notation import BRIEF, COMPACT, COMPACT_WORDS, FULL, PuzzleNotation, places, walking_help, window
from envs.games.puzzle_text import PuzzleWords, in_notations, puzzle_text
from envs.games.roles import TwoRole
from envs.games.template import Fixed, Table
from envs.games.text import Text

RULES = (
    "Walk through a grid from A to the goal G in as few moves as possible. # is a wall, a dot is free, and * is A on "
    "the goal. Every move goes one cell up, down, left or right; a move into a wall or off the grid changes nothing "
    "and costs extra."
)
COMPACT_RULES = (
    "Walk from A to the goal G in few moves. # is a wall, a dot is free, * is A on the goal. A move into a wall or off "
    "the grid is blocked. Later lines give a move, where A is after it, and the moves left."
)


def text(game: PlanPath | TwoRole, style: str) -> Text:
    """Build the text in one style.

    The styles `full` and `compact` show the grid in lines and places by row and column. The style `brief` has one
    character per cell, and moves are their first letters.
    """
    notations = {"full": (FULL,), "compact": COMPACT, "brief": (BRIEF,)}[style]
    return in_notations(lambda notation: puzzle_text(game, style, _words(game, style, notation), notation), notations)


def _words(game: PlanPath | TwoRole, style: str, notation: PuzzleNotation) -> PuzzleWords:
    """Return the words of one notation.

    If they are words rather than signs, the places of A and the goal follow the board.
    """
    puzzle = game.game if isinstance(game, TwoRole) else game
    digits = len(str(max(puzzle.shape)))
    blocked, stands, facts = "#", places(puzzle.shape, f"{{:0{digits}}}{{:0{digits}}}"), ()
    if notation is FULL:
        there = tuple(f"{place}\n" for place in places(puzzle.shape, " row {}, column {}"))
        facts = (Fixed("A is at"), Table(there), Fixed("The goal is at"), Table((*there, " a place out of sight\n")))
        blocked, stands = ", which was blocked", places(puzzle.shape, "; A is at row {}, column {}")
    elif notation is COMPACT_WORDS:
        blocked, stands = " blocked", places(puzzle.shape, " r{} c{}")
        facts = (Fixed("A"), Table(stands), Fixed(" G"), Table((*stands, " hidden")))
    sight, sight_cells = window(puzzle.shape, game.radius if isinstance(game, TwoRole) else 1, notation)

    def fact_indices(state: PlanPathState, seen: jax.Array | None) -> jax.Array:
        goal = state.goal if seen is None else jnp.where(seen[state.goal], state.goal, len(stands))
        return jnp.stack([state.position, goal]) if facts else jnp.zeros((0,), jnp.int32)

    return PuzzleWords(
        rules={"full": RULES, "compact": COMPACT_RULES + walking_help(notation), "brief": ""}[style],
        symbols=puzzle.symbols,
        names=puzzle.action_names if facts else tuple("udlr"),
        codes=puzzle.cells,
        ask="Answer with one word only: up, down, left or right.",
        facts=facts,
        fact_indices=fact_indices,
        outcome=(Table(("", blocked)), Table(("", *stands))),
        outcome_indices=_outcome_indices,
        sight=sight,
        sight_cells=sight_cells,
        off_board=WALL,
    )


def _outcome_indices(
    before: PlanPathState, action: jax.Array, after: PlanPathState, seen: jax.Array | None
) -> jax.Array:
    """Return whether the move was blocked, and the place of A: int32 [2]."""
    return jnp.stack([before.position == after.position, after.position + 1])
