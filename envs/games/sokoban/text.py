"""Sokoban as text: the board in signs that are one token each, and moves in words."""

from envs.games.puzzle_text import Words, puzzle_text
from envs.games.roles import TwoRole
from envs.games.sokoban.rules import Sokoban
from envs.games.text import Text

SYMBOLS = ("#", ".", "G", "B", "*", "A", "+")
"""For every code of the board; the usual sign of the floor, a space, would merge with its neighbours."""

RULES = (
    "Push every box onto a goal. You are A, or + when you stand on a goal. B is a box, * a box on a goal, G a goal, "
    "# a wall and a dot free floor. Every move goes one cell up, down, left or right. Moving against a box pushes it "
    "one cell further if that cell holds no wall and no box; boxes cannot be pulled."
)


def text(game: Sokoban | TwoRole, style: str) -> Text:
    """Full: the board in lines. Brief: one character per cell, moves by their first letter."""
    puzzle = game.game if isinstance(game, TwoRole) else game
    if style == "brief":
        return puzzle_text(game, style, Words("", SYMBOLS, tuple("udlr"), puzzle.cells))
    words = Words(
        rules=RULES,
        symbols=SYMBOLS,
        names=puzzle.action_names,
        codes=puzzle.cells,
        ask="Answer with one word only: up, down, left or right.",
    )
    return puzzle_text(game, style, words)
