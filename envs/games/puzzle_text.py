"""The text of a puzzle, for one player or for planner and executor.

Each puzzle provides its `PuzzleWords`. Axis letters: C cells of the board, row by row.

With two roles, both seats read the same kind of board. The executor also reads the proposal, and in the local view "?"
replaces every cell that it cannot see. Its view changes with every proposal, so the event of a proposal shows the view
again. Events of moves mention nothing outside of it.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from envs.games.game import State
from envs.games.puzzle import Puzzle
from envs.games.puzzle_notation import FULL, PuzzleNotation
from envs.games.roles import EXECUTOR, PLANNER, TwoRole, puzzle_state
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text, grid

HIDDEN = "?"


@dataclasses.dataclass(frozen=True)
class PuzzleWords:
    """The words of a puzzle in one style.

    Attributes:
        rules: Rules of the puzzle.
        symbols: One string for every code of `codes`.
        names: Action names.
        codes: Function `codes(state) -> int [C]`.
        outcome: Tables that an event shows after the name of a move. Each has the empty string first, for proposals.
        outcome_indices: Function `outcome_indices(before, action, after, seen)` that returns the indices of `outcome`.
        sight: Function that builds the board shown by an event of a proposal in the local view, from the symbols.
        sight_cells: Function `sight_cells(state, action) -> int [n]` that returns the cell of each table of `sight`, -1
            for cells off the board.
        off_board: Code shown for cells off the board.
        ask: How to answer.
        header: Line above the board.
        labels: Text at the start of each row.
        facts: Lines between board and question.
        fact_indices: Function `fact_indices(state, seen)` that returns the indices of `facts`. `seen` is bool [C], or
            None if everything is visible.
    """

    rules: str
    symbols: tuple[str, ...]
    names: tuple[str, ...]
    codes: Callable[[State], jax.Array]
    outcome: tuple[Table, ...]
    outcome_indices: Callable[[State, jax.Array, State, jax.Array | None], jax.Array]
    sight: Callable[[tuple[str, ...]], tuple[Piece, ...]]
    sight_cells: Callable[[State, jax.Array], jax.Array]
    off_board: int = 0
    ask: str = ""
    header: str = ""
    labels: tuple[str, ...] = ()
    facts: tuple[Piece, ...] = ()
    fact_indices: Callable[[State, jax.Array | None], jax.Array] = lambda state, seen: jnp.zeros((0,), jnp.int32)


def puzzle_text(game: Puzzle | TwoRole, style: str, words: PuzzleWords, notation: PuzzleNotation) -> Text:
    """Build the text of a puzzle in one style and notation."""
    with_roles = isinstance(game, TwoRole)
    hides = with_roles and game.view != "full"
    symbols = (*words.symbols, HIDDEN) if hides else words.symbols
    brief = style == "brief"
    board = (*_board(game.shape, symbols, words, notation), *words.facts)
    return Text(
        game=game,
        style=style,
        rules=_rules(game, style, words, notation) if words.rules else "",
        roles=_roles(game) if with_roles and not brief else ("",) * game.n_players,
        observation=Template((*board, *_tail(game, words, notation))),
        board=len(board),
        indices=_indices(game, words),
        questions=_questions(words, with_roles, style, notation),
        names=words.names,
        events=Template(_event_pieces(game, symbols, words, notation)),
        event_indices=_event_indices(game, words),
        asks=_asks(with_roles, style, notation),
    )


def in_notations(make: Callable[[PuzzleNotation], Text], notations: tuple[PuzzleNotation, ...]) -> Text:
    """Build a text in several notations."""
    first, *others = map(make, notations)
    return dataclasses.replace(first, others=tuple(others))


# --- Observations ---------------------------------------------------------------------------------------------------


def _indices(game: Puzzle | TwoRole, words: PuzzleWords) -> Callable[[State, jax.Array], jax.Array]:
    with_roles = isinstance(game, TwoRole)
    hides = with_roles and game.view != "full"
    budget = (game.game if with_roles else game).max_turns

    def indices(state: State, seat: jax.Array) -> jax.Array:
        inner = puzzle_state(state)
        seen = game.visible(state, seat) if hides else None
        codes = words.codes(inner)
        parts = [codes if seen is None else jnp.where(seen, codes, len(words.symbols)), words.fact_indices(inner, seen)]
        parts.append((budget - inner.turn)[None])
        if with_roles:
            parts.append(jnp.where(jnp.asarray(seat) == EXECUTOR, state.proposal + 1, 0)[None])
        return jnp.concatenate([part.astype(jnp.int32) for part in parts])

    return indices


def _board(
    shape: tuple[int, int], symbols: tuple[str, ...], words: PuzzleWords, notation: PuzzleNotation
) -> tuple[Piece, ...]:
    cells = grid(shape, symbols, notation.between, labels=words.labels)
    return Fixed(notation.board + words.header), *cells


def _tail(game: Puzzle | TwoRole, words: PuzzleWords, notation: PuzzleNotation) -> tuple[Piece, ...]:
    """Return the pieces for the moves left and, with two roles, the proposal."""
    left = (Fixed(notation.left), _left(game, notation, "", notation.left_end))
    if not isinstance(game, TwoRole):
        return left
    longest = max(map(len, words.names)) if notation.padded else 0
    none = notation.no_proposal + "-" * longest
    made = (f"{notation.proposal}{name.ljust(longest)}{notation.proposal_end}" for name in words.names)
    return *left, Table((none, *made))


def _left(game: Puzzle | TwoRole, notation: PuzzleNotation, start: str, end: str) -> Table:
    """Return a table of the number of moves left."""
    budget = (game.game if isinstance(game, TwoRole) else game).max_turns
    digits = len(str(budget)) if notation.padded else 0
    space = " " if notation is FULL else ""
    return Table(tuple(f"{start}{space}{str(n).rjust(digits, '0')}{end}" for n in range(budget + 1)))


# --- Events ---------------------------------------------------------------------------------------------------------


def _event_pieces(
    game: Puzzle | TwoRole, symbols: tuple[str, ...], words: PuzzleWords, notation: PuzzleNotation
) -> tuple[Piece, ...]:
    """Return the pieces of an event: actor, action, outcome and moves left.

    For a proposal the last two are empty, and the local view may follow instead.
    """
    with_roles = isinstance(game, TwoRole)
    who = notation.who if with_roles else notation.who[:1]
    left = _left(game, notation, notation.event_left, notation.event_end).variants
    pieces = (
        Table(who),
        Table(tuple(notation.gap + name for name in words.names)),
        *words.outcome,
        Table((notation.end, *left)),
    )
    if not with_roles or game.view == "full":
        return pieces
    shown = (p.variants if isinstance(p, Table) else (p.text,) for p in (Fixed(notation.sight), *words.sight(symbols)))
    return *pieces, *(Table(("", *variants), linked=i > 0) for i, variants in enumerate(shown))


def _event_indices(game: Puzzle | TwoRole, words: PuzzleWords) -> Callable[..., jax.Array]:
    with_roles = isinstance(game, TwoRole)
    hides = with_roles and game.view != "full"
    budget = (game.game if with_roles else game).max_turns

    def event_indices(before: State, action: jax.Array, after: State, seat: jax.Array) -> jax.Array:
        inner = puzzle_state(after)
        action, seat = jnp.asarray(action, jnp.int32), jnp.asarray(seat, jnp.int32)
        mover = game.player(before)
        proposed = jnp.bool_(with_roles) & (mover == PLANNER)
        seen = game.visible(before, seat) if hides else None
        outcome = words.outcome_indices(puzzle_state(before), action, inner, seen)
        parts = [
            (2 * proposed + (mover != seat))[None],
            action[None],
            jnp.where(proposed, 0, outcome),
            jnp.where(proposed, 0, 1 + budget - inner.turn)[None],
        ]
        if hides:
            assert isinstance(game, TwoRole)
            parts.append(_sight_indices(game, words, after, action, proposed & (seat == EXECUTOR)))
        return jnp.concatenate([part.astype(jnp.int32) for part in parts])

    return event_indices


def _sight_indices(game: TwoRole, words: PuzzleWords, state: State, action: jax.Array, shown: jax.Array) -> jax.Array:
    """Return the indices of the executor's local view, all 0 if it is not shown."""
    inner = puzzle_state(state)
    cells = words.sight_cells(inner, action)
    codes = jnp.where(game.visible(state, EXECUTOR), words.codes(inner), len(words.symbols))
    codes = jnp.where(cells < 0, words.off_board, codes[cells])
    kinds = [isinstance(piece, Table) for piece in (Fixed(""), *words.sight(words.symbols))]
    numbers, cell = [], 0
    for is_cell in kinds:
        numbers.append(codes[cell] + 1 if is_cell else jnp.int32(1))
        cell += is_cell
    return jnp.where(shown, jnp.stack(numbers), 0)


# --- Rules, roles and questions -------------------------------------------------------------------------------------


def _rules(game: Puzzle | TwoRole, style: str, words: PuzzleWords, notation: PuzzleNotation) -> str:
    """Return the rules of the puzzle, of the roles, and of signs without explanation."""
    with_roles = isinstance(game, TwoRole)
    rules = words.rules + (_roles_rules(game, style) if with_roles else "")
    if notation.between is None:
        actors = ("your move", "the executor's", "your proposal", "the planner's")
        signs: dict[str, str] = dict(zip(notation.who[: 4 if with_roles else 1], actors, strict=False))
        if with_roles and game.view != "full" and game.proposes:
            signs[notation.sight] = "what is seen"
        signs[notation.left] = "the moves left"
        rules += f" {', '.join(f'{sign} stands before {what}' for sign, what in signs.items())}."
    return rules


def _roles_rules(game: TwoRole, style: str) -> str:
    rules = (
        " Two of you solve it together. For every move the planner proposes one and the executor, who reads the "
        "proposal, then makes the same move or a better one."
    )
    if not game.proposes:
        rules = " Two of you solve it together. The planner sends messages, and the executor makes the moves."
    if game.view == "local":
        rules += " The planner sees the whole board, the executor only a part of it."
    if game.view == "half":
        rules += " The planner sees the upper half of the board, the executor the lower half."
    if style == "compact" and game.view != "full" and game.proposes:
        rules += " Behind a proposal the executor reads what it sees now."
    return rules


def _roles(game: TwoRole) -> tuple[str, str]:
    hidden = f" {HIDDEN} is a cell that you cannot see."
    return (
        "You are the planner." + (hidden if game.view == "half" else ""),
        "You are the executor." + (hidden if game.view != "full" else ""),
    )


def _questions(words: PuzzleWords, with_roles: bool, style: str, notation: PuzzleNotation) -> tuple[str, ...]:
    if style == "brief":
        return ("P:", "E:") if with_roles else (":",)
    if style == "compact":
        return _compact_question(notation, with_roles)
    if not with_roles:
        return (f"What is your move? {words.ask}",)
    return f"Which move do you propose? {words.ask}", f"Which move do you make? {words.ask}"


def _asks(with_roles: bool, style: str, notation: PuzzleNotation) -> tuple[str, ...]:
    if style == "brief":
        return ("P:", "E:") if with_roles else (":",)
    if style == "compact":
        return _compact_question(notation, with_roles)
    return ("Which move do you propose?", "Which move do you make?") if with_roles else ("What is your move?",)


def _compact_question(notation: PuzzleNotation, with_roles: bool) -> tuple[str, ...]:
    return ("?" if notation.between is None else " Your move?",) * (1 + with_roles)
