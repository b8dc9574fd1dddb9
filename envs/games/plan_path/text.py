"""Plan-Path as text: the grid, where the walker and the goal are, and moves in words."""

import jax
import jax.numpy as jnp

from envs.games.plan_path.rules import PlanPath, State
from envs.games.puzzle_text import Words, puzzle_text
from envs.games.roles import TwoRole
from envs.games.template import Fixed, Table
from envs.games.text import Text

RULES = (
    "Walk through a grid from A to the goal G in as few moves as possible. # is a wall, a dot is free, and * is A on "
    "the goal. Every move goes one cell up, down, left or right; a move into a wall or off the grid changes nothing "
    "and costs extra."
)


def text(game: PlanPath | TwoRole, style: str) -> Text:
    """Full: the grid in lines, places by row and column. Brief: one character per cell, moves by their first letter."""
    puzzle = game.game if isinstance(game, TwoRole) else game
    if style == "brief":
        return puzzle_text(game, style, Words("", puzzle.symbols, tuple("udlr"), puzzle.cells))
    height, width = puzzle.shape
    places = tuple(f" row {r}, column {c}\n" for r in range(1, height + 1) for c in range(1, width + 1))

    def fact_indices(state: State, seen: jax.Array | None) -> jax.Array:
        goal = state.goal if seen is None else jnp.where(seen[state.goal], state.goal, len(places))
        return jnp.stack([state.position, goal])

    words = Words(
        rules=RULES,
        symbols=puzzle.symbols,
        names=puzzle.action_names,
        codes=puzzle.cells,
        ask="Answer with one word only: up, down, left or right.",
        facts=(Fixed("A is at"), Table(places), Fixed("The goal is at"), Table((*places, " a place out of sight\n"))),
        fact_indices=fact_indices,
    )
    return puzzle_text(game, style, words)
