"""How the styles write what all puzzles have in common, and pieces that several puzzles use."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from envs.games.game import State
from envs.games.template import Piece
from envs.games.text import grid


@dataclasses.dataclass(frozen=True)
class PuzzleNotation:
    """How a style writes what all puzzles have in common.

    board: what stands before the board; between: what stands between the cells of a line, None for no lines either
    left, left_end: around the number of moves left; padded: that number has a fixed width
    proposal: before the proposal that the executor reads; no_proposal: what the planner reads there
    proposal_end: behind it
    who: how an event begins when the reader moved, the other moved, the reader proposed, the other proposed
    gap: before the action; end: behind an event without moves left
    event_left, event_end: around the number of moves left in an event
    sight: before what an executor with a local view sees
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
    """A string for every cell: `pattern` with the numbers of its row and its column, counted from 1."""
    height, width = shape
    return tuple(pattern.format(row, column) for row in range(1, height + 1) for column in range(1, width + 1))


def window(
    shape: tuple[int, int], radius: int, notation: PuzzleNotation
) -> tuple[Callable[[tuple[str, ...]], tuple[Piece, ...]], Callable[[State, jax.Array], jax.Array]]:
    """`sight` and `sight_cells` of a puzzle with someone on the spot: the square around the cell `state.position`."""
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
    """How compact rules explain places and answers where someone walks over the board."""
    if notation.between is None:
        return (
            " The rows of the board follow one another without a break. A place is given as row and column, counted "
            "from the top left; # before it means that the move was blocked. Answer with one letter: u, d, l or r."
        )
    return " r3 c2 is the second cell of the third row. Answer with one word only: up, down, left or right."
