"""Notations of the text styles for all puzzles, and pieces shared by several puzzles."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from envs.games.game import State
from envs.games.template import Piece
from envs.games.text import grid


@dataclasses.dataclass(frozen=True)
class PuzzleNotation:
    """How a style writes the facts that all puzzles share.

    Attributes:
        board: Text before the board.
        between: Separator of the cells in a row, or None for no separators and no line breaks.
        left: Text before the number of moves left.
        left_end: Text after the number of moves left.
        padded: Whether that number has a fixed width.
        proposal: Text before the proposal that the executor reads.
        no_proposal: Text that the planner reads instead.
        proposal_end: Text after the proposal.
        who: Beginning of an event if the reader moved, the other moved, the reader proposed or the other proposed.
        gap: Text before the action of an event.
        end: End of an event without the number of moves left.
        event_left: Text before the number of moves left in an event.
        event_end: Text after the number of moves left in an event.
        sight: Text before the cells that an executor with a local view sees.
    """

    board: str
    between: str | None
    left: str
    left_end: str
    padded: bool
    proposal: str
    no_proposal: str
    proposal_end: str
    who: tuple[str, str, str, str]
    gap: str
    end: str
    event_left: str
    event_end: str
    sight: str


FULL = PuzzleNotation(
    board="Board:\n",
    between=" ",
    left="Moves left:",
    left_end="\n",
    padded=False,
    proposal="The planner proposes ",
    no_proposal="",
    proposal_end=".\n",
    who=("You made the move", "The executor made the move", "You proposed", "The planner proposes"),
    gap=" ",
    end=".\n",
    event_left=". Moves left:",
    event_end=".\n",
    sight="You see:\n",
)
COMPACT_WORDS = PuzzleNotation(
    board="board\n",
    between=" ",
    left=" moves",
    left_end="",
    padded=False,
    proposal=" planner ",
    no_proposal="",
    proposal_end="",
    who=(" you", " executor", " you propose", " planner"),
    gap=" ",
    end="",
    event_left=" moves",
    event_end="",
    sight=" see\n",
)
COMPACT_SIGNS = dataclasses.replace(
    COMPACT_WORDS,
    board="",
    between=None,
    left="m",
    proposal="^",
    who=("!", "*", "&", "^"),
    gap="",
    event_left="m",
    sight="s",
)
COMPACT = (COMPACT_WORDS, COMPACT_SIGNS)
BRIEF = dataclasses.replace(
    COMPACT_SIGNS, left=" ", padded=True, proposal=" ", no_proposal=" ", who=(" !", " *", " &", " ^")
)


def places(shape: tuple[int, int], pattern: str) -> tuple[str, ...]:
    """Format `pattern` with the row and column of every cell, counted from 1."""
    height, width = shape
    return tuple(pattern.format(row, column) for row in range(1, height + 1) for column in range(1, width + 1))


def window(
    shape: tuple[int, int], radius: int, notation: PuzzleNotation
) -> tuple[Callable[[tuple[str, ...]], tuple[Piece, ...]], Callable[[State, jax.Array], jax.Array]]:
    """Return `sight` and `sight_cells` for puzzles with a walking player.

    The window is the square around the cell `state.position`.
    """
    height, width = shape
    side = 2 * radius + 1
    if side * side >= height * width:
        return lambda symbols: grid(shape, symbols, notation.between), lambda state, action: jnp.arange(height * width)

    def sight_cells(state: State, action: jax.Array) -> jax.Array:
        rows = state.position // width + jnp.arange(-radius, radius + 1)
        columns = state.position % width + jnp.arange(-radius, radius + 1)
        inside = ((rows >= 0) & (rows < height))[:, None] & (columns >= 0) & (columns < width)
        return jnp.where(inside, rows[:, None] * width + columns, -1).reshape(-1)

    return lambda symbols: grid((side, side), symbols, notation.between), sight_cells


def walking_help(notation: PuzzleNotation) -> str:
    """Return the explanation of places and answers in compact rules of walking games."""
    if notation.between is None:
        return (
            " The rows of the board follow one another without a break. A place is given as row and column, counted "
            "from the top left; # before it means that the move was blocked. Answer with one letter: u, d, l or r."
        )
    return " r3 c2 is the second cell of the third row. Answer with one word only: up, down, left or right."
