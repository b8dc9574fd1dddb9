"""The text of the pursuit game; an answer is a move.

In the local view, a pursuer reads "?" in cells that it does not see, and learns of the evader only its place, and only
while the evader is in sight: a move into view must not reveal the cell that it came from. A pursuer's move can also
bring the evader into sight or out of it, so events of these moves say where it is.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.pursuit.draw import SYMBOLS
from envs.games.pursuit.rules import Pursuit, PursuitState
from envs.games.pursuit.solver import EVADER, N_SEATS
from envs.games.puzzle_notation import places
from envs.games.puzzle_text import HIDDEN
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text, grid

RULES = (
    "Two pursuers, A and B, try to catch an evader, E, on a grid. In every round A, B and E move in this order, one "
    "cell up, down, left or right, or stay. E is caught when it is on the same cell as A or B. The pursuers win if "
    "they catch E, the earlier the better; E wins if it is still free after the last round. On the grid a dot is a "
    "free cell and & is A and B on one cell."
)
COMPACT_RULES = (
    "A and B catch E by moving onto its cell, the earlier the better; E wins if it is free after the last round. A, B "
    "and E move in turn, one cell or not at all. A dot is free, & is A and B together. r3 c2 is the second cell of the "
    "third row. Later lines give a move, the cell after it, and the rounds left. Answer with one word only: stay, up, "
    "down, left or right."
)
LOCAL_RULES = " A and B see each other and the cells around themselves; ? is a cell out of sight. E sees everything."
AT = 5
"""Action of an event in the local view that only gives the evader's place."""


@dataclasses.dataclass(frozen=True)
class Notation:
    """How a style writes positions and events.

    Attributes:
        board: Text before the grid, or None for no grid.
        place: Pattern of a place, with row and column.
        hidden: Place of the evader when it is out of sight.
        labels: Text before the places of A, B and E.
        ends: Text after each place.
        left: Text before the number of rounds left.
        count: Pattern of that number.
        who: Beginning of an event if the reader, A, B or E moved.
        verbs: Text of each action and of AT.
        sight: Text before the place of the evader in the event of a pursuer's move.
        event_count: Pattern of that number in an event.
    """

    board: str | None
    place: str
    hidden: str
    labels: tuple[str, str, str]
    ends: str
    left: str
    count: str
    who: tuple[str, str, str, str]
    verbs: tuple[str, ...]
    sight: str
    event_count: str


FULL = Notation(
    board="Board:\n",
    place=" row {}, column {}",
    hidden=" a place out of sight",
    labels=("A is at", "B is at", "E is at"),
    ends="\n",
    left="Rounds left:",
    count=" {}\n",
    who=("You", "A", "B", "E"),
    verbs=(" stayed at", " moved up to", " moved down to", " moved left to", " moved right to", " is at"),
    sight="; E is at",
    event_count=". Rounds left: {}.\n",
)
COMPACT = Notation(
    board="board\n",
    place=" r{} c{}",
    hidden=" hidden",
    labels=("A", " B", " E"),
    ends="",
    left=" rounds",
    count="{}",
    who=(" you", " A", " B", " E"),
    verbs=(" stay", " up", " down", " left", " right", " at"),
    sight=" E",
    event_count=" rounds{}",
)
BRIEF = Notation(
    board=None,
    place="{}{}",
    hidden="--",
    labels=("", "", ""),
    ends="",
    left="",
    count="{:02}",
    who=("!", "A", "B", "E"),
    verbs=tuple("sudlr@"),
    sight="E",
    event_count="{:02}",
)


def text(game: Pursuit, style: str) -> Text:
    """Build the text in one style.

    The styles `full` and `compact` show the grid and the places of all figures, the style `brief` the places only, as
    digits, and moves as their first letters.
    """
    notation = {"full": FULL, "compact": COMPACT, "brief": BRIEF}[style]
    brief, local = style == "brief", game.view == "local"
    rules = {"full": RULES, "compact": COMPACT_RULES, "brief": ""}[style]
    roles = ("You are pursuer A.", "You are pursuer B.", "You are the evader E.")
    question = {"full": "What is your move?", "compact": " Your move?"}.get(style)
    asks = ("A:", "B:", "E:") if question is None else (question,) * N_SEATS
    how = " Answer with one word only: stay, up, down, left or right." if style == "full" else ""
    pieces = _observation(game, notation)
    return Text(
        game=game,
        style=style,
        rules=rules + LOCAL_RULES if rules and local else rules,
        roles=("",) * N_SEATS if brief else roles,
        observation=Template(pieces),
        board=len(pieces) - 2,  # the number of rounds left is not in a picture
        indices=lambda state, seat: _indices(game, notation, state, seat),
        questions=tuple(ask + how for ask in asks),
        names=tuple(name[0] for name in game.action_names) if brief else game.action_names,
        events=Template(_event_pieces(game, notation)),
        event_indices=lambda before, action, after, seat: _event_indices(game, before, action, after, seat),
        asks=asks,
    )


# --- Observations ---------------------------------------------------------------------------------------------------


def _observation(game: Pursuit, notation: Notation) -> tuple[Piece, ...]:
    known = (*places(game.shape, notation.place), notation.hidden)
    cell = Table(tuple(place + notation.ends for place in known))
    figures = (piece for label in notation.labels for piece in (Fixed(label), cell))
    board = ()
    if notation.board is not None:
        board = Fixed(notation.board), *grid(game.shape, SYMBOLS + HIDDEN if game.view == "local" else SYMBOLS)
    return *board, *figures, Fixed(notation.left), _counts(game, notation.count)


def _counts(game: Pursuit, pattern: str) -> Table:
    """Return a table of the number of rounds left."""
    return Table(tuple(pattern.format(n) for n in range(game.max_rounds + 1)))


def _rounds_left(game: Pursuit, state: PursuitState) -> jax.Array:
    return game.max_rounds - state.turn // N_SEATS


def _evader(game: Pursuit, state: PursuitState, seat: jax.Array | int) -> jax.Array:
    """Return the evader's cell, or C if the seat does not see it: int32 []."""
    visible, cell = game.visible(state, seat), state.cells[EVADER]
    return cell if visible is None else jnp.where(visible[cell], cell, len(visible))


def _indices(game: Pursuit, notation: Notation, state: PursuitState, seat: jax.Array) -> jax.Array:
    """Return the grid, if there is one, three places and the rounds left: int32."""
    figures = [*state.cells[:EVADER], _evader(game, state, seat), _rounds_left(game, state)]
    parts = [jnp.stack(figures)]
    if notation.board is not None:
        visible, codes = game.visible(state, seat), state.board.reshape(-1)
        parts.insert(0, codes if visible is None else jnp.where(visible, codes, len(SYMBOLS)))
    return jnp.concatenate([part.astype(jnp.int32) for part in parts])


# --- Events ---------------------------------------------------------------------------------------------------------


def _event_pieces(game: Pursuit, notation: Notation) -> tuple[Piece, ...]:
    """Return the tables of an event: mover, action, place and rounds left.

    In the local view, the evader's place comes before the rounds left, or nothing if the event gives it anyway.
    """
    known = (*places(game.shape, notation.place), notation.hidden)
    pieces = (Table(notation.who), Table(notation.verbs), Table(known))
    if game.view == "local":
        pieces += (Table(("", *(notation.sight + place for place in known))),)
    return *pieces, _counts(game, notation.event_count)


def _event_indices(
    game: Pursuit, before: PursuitState, action: jax.Array, after: PursuitState, seat: jax.Array
) -> jax.Array:
    """Return the indices of `_event_pieces`: int32 [4], or [5] in the local view."""
    mover, action, seat = game.player(before), jnp.asarray(action, jnp.int32), jnp.asarray(seat, jnp.int32)
    place, sight = after.cells[mover], []
    if game.view == "local":
        evader, watched = _evader(game, after, seat), (mover == EVADER) & (seat != EVADER)
        action = jnp.where(watched, AT, action)
        place = jnp.where(watched, evader, place)
        sight = [jnp.where((mover == EVADER) | (seat == EVADER), 0, evader + 1)]
    who = jnp.where(mover == seat, 0, mover + 1)
    return jnp.stack([who, action, place, *sight, _rounds_left(game, after)]).astype(jnp.int32)
