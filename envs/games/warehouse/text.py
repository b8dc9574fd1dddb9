"""The text of the warehouse game; an answer is an action.

In the full view, a seat reads the grid, all robots and the requested shelves. In the local view, it reads exactly what
the sensors of RWARE give: its own robot, and the cells around it with the directions of the robots in them.

An event of a choice that ends a round says what the seat sees afterwards; other events say only that a robot chose.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.puzzle_notation import places
from envs.games.puzzle_text import HIDDEN
from envs.games.template import Fixed, Image, Piece, Table, Template
from envs.games.text import Text
from envs.games.warehouse import layout
from envs.games.warehouse.draw import FLOOR, symbols
from envs.games.warehouse.rules import NOTHING, Warehouse, WarehouseState, contents

RULES = (
    "{robots} work in a warehouse. A robot lifts a shelf that is requested, carries it to a goal and then returns it "
    "to an empty storage place. Every delivery counts, and another shelf is requested at once. In every round all "
    "robots choose an action at the same time: forward drives one cell in the direction that the robot faces, left "
    "and right turn on the spot, toggle lifts the shelf in the robot's cell or lowers the carried one, wait does "
    "nothing. Shelves are lowered on storage places only. A robot without a shelf can drive below shelves, a robot "
    "with one cannot. Robots cannot share a cell or swap cells. On the grid a dot is a corridor, _ an empty storage "
    "place, G a goal, x a shelf and X a requested one. A robot is ^, >, v or < by its direction, u, r, d or l in a "
    "cell with a shelf, and U, R, D or L in a cell with a requested shelf. The goals are at {goals}."
)
COMPACT_RULES = (
    "{robots} lift requested shelves, carry them to a goal and return them to empty storage places; each delivery "
    "counts. All choose at the same time: forward (one cell), left and right (turn), toggle (lift or lower a shelf; "
    "lower on storage places only), wait. Only a robot without a shelf drives below shelves. A dot is a corridor, _ "
    "an empty storage place, G a goal, x a shelf, X a requested one; robots face up, right, down, left as ^ > v <, as "
    "u r d l with a shelf in their cell, as U R D L with a requested one. r3 c2 is the second cell of the third row. "
    "Goals: {goals}. Later lines give choices and what follows from the round. Answer with one word only: wait, "
    "forward, left, right or toggle."
)
LOCAL_RULES = " You sense only the cells around your robot; ? is a cell out of range, # is outside the warehouse."
OUTSIDE = "#"


@dataclasses.dataclass(frozen=True)
class Notation:
    """How a style writes positions and events.

    Attributes:
        board: Text before the grid.
        between: Text between the cells of a row.
        row_end: Text after a row.
        place: Pattern of a cell, with row and column.
        robot: Pattern of the text before a robot's cell, with its letter.
        facing: Text of each direction.
        loads: Text of a robot without and with a shelf.
        requests: Text before the cells of the requested shelves.
        next: Text between these cells.
        requests_end: Text after these cells.
        left: Text before the number of rounds left.
        count: Pattern of that number.
        you: Beginning of an event if the reader chose.
        other: The same for another robot, with its letter.
        choices: Text of each action and of a hidden one.
        waits: Text after a choice that does not end the round.
        ends: Text after one that does.
        senses: Text before the cells around a robot.
    """

    board: str
    between: str
    row_end: str
    place: str
    robot: str
    facing: tuple[str, str, str, str]
    loads: tuple[str, str]
    requests: str
    next: str
    requests_end: str
    left: str
    count: str
    you: str
    other: str
    choices: tuple[str, ...]
    waits: str
    ends: str
    senses: str


FULL = Notation(
    board="Board:\n",
    between=" ",
    row_end="\n",
    place=" row {}, column {}",
    robot="Robot {} is at",
    facing=(", faces up", ", faces right", ", faces down", ", faces left"),
    loads=(" and carries nothing.\n", " and carries a shelf.\n"),
    requests="Requested shelves:",
    next=";",
    requests_end=".\n",
    left="Rounds left:",
    count=" {}\n",
    you="You chose",
    other="Robot {} chose",
    choices=(" wait", " forward", " left", " right", " toggle", " in secret"),
    waits=".\n",
    ends=". All robots act.\n",
    senses="You sense:\n",
)
COMPACT = Notation(
    board="board\n",
    between=" ",
    row_end="\n",
    place=" r{} c{}",
    robot=" robot {}",
    facing=(" up", " right", " down", " left"),
    loads=(" empty", " loaded"),
    requests=" requested",
    next="",
    requests_end="",
    left=" rounds",
    count="{}",
    you=" you",
    other=" robot {}",
    choices=(" wait", " forward", " left", " right", " toggle", " hidden"),
    waits="",
    ends=" round\n",
    senses=" senses\n",
)
BRIEF = Notation(
    board="",
    between="",
    row_end="",
    place="{}{}",
    robot="",
    facing=("^", ">", "v", "<"),
    loads=("-", "+"),
    requests="",
    next="",
    requests_end="",
    left="",
    count="{:03}",
    you="!",
    other="{}",
    choices=tuple("wflrt?"),
    waits="",
    ends="=",
    senses="",
)


def text(game: Warehouse, style: str) -> Text:
    """Build the text in one style.

    The styles `full` and `compact` have words, the style `brief` one character per cell, digits, and the first letters
    of actions.
    """
    notation = {"full": FULL, "compact": COMPACT, "brief": BRIEF}[style]
    if style == "brief" and max(game.shape) > 9:
        notation = dataclasses.replace(notation, place="{:02}{:02}")
    brief, local = style == "brief", game.view == "local"
    letters = _letters(game)
    known = places(game.shape, notation.place)
    rules = {"full": RULES, "compact": COMPACT_RULES, "brief": ""}[style].format(
        robots=f"Robots {', '.join(letters[:-1])} and {letters[-1]}" if len(letters) > 1 else "Robot A",
        goals=" and".join(known[goal] for goal in game.layout.goals).strip(),
    )
    roles = tuple(f"You control robot {letter}." for letter in letters)
    ask = {"full": "What do you do?", "compact": " Your action?", "brief": ":"}[style]
    how = " Answer with one word only: wait, forward, left, right or toggle." if style == "full" else ""
    board = _board(game, notation)
    return Text(
        game=game,
        style=style,
        rules=rules + LOCAL_RULES if rules and local else rules,
        roles=("",) * game.players if brief else roles,
        observation=Template((*board, *_facts(game, notation))),
        board=len(board),  # a picture does not show loads, requests and the number of rounds left
        indices=lambda state, seat: _indices(game, state, seat),
        questions=(f"{ask}{how}",) * game.players,
        names=tuple(name[0] for name in game.action_names) if brief else game.action_names,
        events=Template(_event_pieces(game, notation)),
        event_indices=lambda before, action, after, seat: _event_indices(game, before, action, after, seat),
        asks=(ask,) * game.players,
    )


def _letters(game: Warehouse) -> str:
    return "ABCDEFGHIJ"[: game.players]


# --- Observations ---------------------------------------------------------------------------------------------------


def _board(game: Warehouse, notation: Notation) -> tuple[Piece, ...]:
    """Return a table for each cell: its contents, and hidden in the local view."""
    hidden, width = HIDDEN if game.view == "local" else "", game.shape[1]
    tables = []
    for cell, kind in enumerate(game.layout.floor.reshape(-1)):
        start = notation.between if cell % width else ""
        end = notation.row_end if cell % width == width - 1 else ""
        tables.append(Table(tuple(start + sign + end for sign in symbols(FLOOR[kind]) + hidden)))
    return Fixed(notation.board), *tables


def _facts(game: Warehouse, notation: Notation) -> tuple[Piece, ...]:
    """Return the robots, the requested shelves and the rounds left."""
    known = places(game.shape, notation.place)
    where, facing, loads = Table(known), Table(notation.facing), Table(notation.loads)
    if game.view == "local":  # the robot of the reader only
        robots = (Table(tuple(notation.robot.format(letter) for letter in _letters(game))), where, facing, loads)
        return *robots, Fixed(notation.left), _counts(game, notation)
    robots = (p for letter in _letters(game) for p in (Fixed(notation.robot.format(letter)), where, facing, loads))
    last = Table(tuple(place + notation.requests_end for place in known))
    between = Table(tuple(place + notation.next for place in known))
    requests = Fixed(notation.requests), *(between,) * (game.requests - 1), last
    return *robots, *requests, Fixed(notation.left), _counts(game, notation)


def _counts(game: Warehouse, notation: Notation) -> Table:
    """Return a table of the number of rounds left."""
    return Table(tuple(notation.count.format(n) for n in range(game.rounds + 1)))


def _fact_indices(game: Warehouse, state: WarehouseState, seat: jax.Array) -> jax.Array:
    left = (game.rounds - state.turn // game.players)[None]
    robots = jnp.stack([state.robots, state.facing, state.loads != NOTHING], axis=1)
    if game.view == "local":
        parts = [jnp.stack([seat, *robots[seat]]), left]
    else:
        parts = [robots.reshape(-1), state.shelves[state.requests], left]
    return jnp.concatenate([part.astype(jnp.int32) for part in parts])


def _indices(game: Warehouse, state: WarehouseState, seat: jax.Array) -> jax.Array:
    """Return the cells and the facts: int32 [tables]."""
    visible, cells = game.visible(state, seat), contents(state)
    if visible is not None:
        cells = jnp.where(visible, cells, len(symbols(FLOOR[layout.CORRIDOR])))
    return jnp.concatenate([cells, _fact_indices(game, state, jnp.asarray(seat))])


# --- Events ---------------------------------------------------------------------------------------------------------


def _event_pieces(game: Warehouse, notation: Notation) -> tuple[Piece, ...]:
    """Return the pieces of an event: the robot, its choice, the round's outcome."""
    who = Table((notation.you, *(notation.other.format(letter) for letter in _letters(game))))
    first, *rest = (*_facts(game, notation), *_window(game, notation))
    outcome = (_optional(first), *(dataclasses.replace(_optional(piece), linked=True) for piece in rest))
    return who, Table(notation.choices), Table((notation.waits, notation.ends)), *outcome


def _optional(piece: Piece) -> Table:
    assert not isinstance(piece, Image)
    return Table(("", piece.text) if isinstance(piece, Fixed) else ("", *piece.variants))


def _window(game: Warehouse, notation: Notation) -> tuple[Piece, ...]:
    """Return a table for each cell around a robot in the local view."""
    if game.view == "full":
        return ()
    side, signs = 2 * game.radius + 1, FLOOR + symbols("")
    tables = []
    for cell in range(side * side):
        start = notation.between if cell % side else ""
        end = notation.row_end if cell % side == side - 1 else ""
        tables.append(Table(tuple(start + sign + end for sign in signs + OUTSIDE)))
    return Fixed(notation.senses), *tables


def _window_indices(game: Warehouse, state: WarehouseState, seat: jax.Array) -> jax.Array:
    """Return the indices of the tables of `_window`: int32 [cells around]."""
    (height, width), span = game.shape, jnp.arange(-game.radius, game.radius + 1)
    row, column = jnp.divmod(state.robots[seat], width)
    rows, columns = (row + span)[:, None], column + span
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    cells = jnp.where(inside, rows * width + columns, 0)
    codes, kinds = contents(state)[cells], state.floor.reshape(-1)[cells].astype(jnp.int32)
    seen = jnp.where(codes == 0, kinds, codes + len(FLOOR) - 1)
    return jnp.where(inside, seen, len(FLOOR + symbols(""))).reshape(-1)


def _event_indices(
    game: Warehouse, before: WarehouseState, action: jax.Array, after: WarehouseState, seat: jax.Array
) -> jax.Array:
    """Return the indices of `_event_pieces`: int32 [tables]."""
    mover, seat = game.player(before), jnp.asarray(seat, jnp.int32)
    own, ends = mover == seat, mover == game.players - 1
    choice = jnp.stack([jnp.where(own, 0, mover + 1), jnp.where(own, action, game.n_actions), ends])
    outcome = _with_fixed(_facts(game, FULL), _fact_indices(game, after, seat))
    if game.view == "local":
        outcome = jnp.concatenate([outcome, jnp.zeros(1, jnp.int32), _window_indices(game, after, seat)])
    return jnp.concatenate([choice, jnp.where(ends, 1 + outcome, 0)]).astype(jnp.int32)


def _with_fixed(pieces: tuple[Piece, ...], indices: jax.Array) -> jax.Array:
    """Return `indices` of the tables among `pieces`, with 0 for fixed pieces: int32 [pieces]."""
    at = [number for number, piece in enumerate(pieces) if isinstance(piece, Table)]
    return jnp.zeros(len(pieces), jnp.int32).at[jnp.asarray(at)].set(indices)
