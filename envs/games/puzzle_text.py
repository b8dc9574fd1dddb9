"""The text of a puzzle, alone or with the roles of planner and executor; each puzzle brings its `Words`.

Axis letters: C cells of the board, row by row.

With roles both seats read the same kind of board. The executor also reads the proposal, and in the local view "?"
stands for every cell that it cannot see.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from envs.games.game import State
from envs.games.puzzle import Puzzle
from envs.games.roles import EXECUTOR, TwoRole, puzzle_state
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text, grid

HIDDEN = "?"


@dataclasses.dataclass(frozen=True)
class Words:
    """What a puzzle says in one style.

    rules, symbols, names: its rules, a string for every code of `codes`, and its action names
    ask: how to answer
    header, labels: a line above the board, and what stands at the start of each of its rows
    codes(state) -> int[C]; facts: lines between board and question, whose tables `fact_indices(state, seen)` fills,
        `seen` being bool[C], or None where everything is seen
    """

    rules: str
    symbols: tuple[str, ...]
    names: tuple[str, ...]
    codes: Callable[[State], jax.Array]
    ask: str = ""
    header: str = ""
    labels: tuple[str, ...] = ()
    facts: tuple[Piece, ...] = ()
    fact_indices: Callable[[State, jax.Array | None], jax.Array] = lambda state, seen: jnp.zeros((0,), jnp.int32)


def puzzle_text(game: Puzzle | TwoRole, style: str, words: Words) -> Text:
    """The text of the puzzle in one of its forms."""
    full, roles = style == "full", isinstance(game, TwoRole)
    puzzle = game.game if roles else game
    hides = roles and game.view == "local"
    symbols = (*words.symbols, HIDDEN) if hides else words.symbols

    def indices(state: State, player: jax.Array) -> jax.Array:
        inner = puzzle_state(state)
        seen = game.visible(state, player) if hides else None
        codes = words.codes(inner)
        parts = [codes if seen is None else jnp.where(seen, codes, len(words.symbols)), words.fact_indices(inner, seen)]
        parts.append((puzzle.max_turns - inner.turn)[None])
        if roles:
            parts.append(jnp.where(jnp.asarray(player) == EXECUTOR, state.proposal + 1, 0)[None])
        return jnp.concatenate([part.astype(jnp.int32) for part in parts])

    return Text(
        game=game,
        style=style,
        rules=words.rules + (_roles_rules(game) if roles else "") if full else "",
        roles=_roles(hides) if full and roles else ("",) * game.n_players,
        observation=Template(
            (*_board(puzzle.shape, symbols, words, full), *words.facts, *_tail(game, puzzle, words, full))
        ),
        indices=indices,
        questions=_questions(words, roles) if full else ("P:", "E:") if roles else (":",),
        names=words.names,
    )


def _board(shape: tuple[int, int], symbols: tuple[str, ...], words: Words, full: bool) -> tuple[Piece, ...]:
    if not full:
        return grid(shape, symbols, spaced=False)
    cells = grid(shape, symbols, labels=words.labels)
    return Fixed(f"Board:\n{words.header}"), *cells


def _tail(game: Puzzle | TwoRole, puzzle: Puzzle, words: Words, full: bool) -> tuple[Piece, ...]:
    """Moves left, and with roles the proposal: nothing for the planner."""
    digits = len(str(puzzle.max_turns))
    counts = range(puzzle.max_turns + 1)
    if not full:
        left = (Fixed(" "), Table(tuple(str(n).rjust(digits, "0") for n in counts)))
        longest = max(map(len, words.names))
        proposals = Table(("-" * longest, *(name.ljust(longest) for name in words.names)))
        return (*left, Fixed(" "), proposals) if isinstance(game, TwoRole) else left
    left = (Fixed("Moves left:"), Table(tuple(f" {n}\n" for n in counts)))
    proposals = Table(("", *(f"The planner proposes {name}.\n" for name in words.names)))
    return (*left, proposals) if isinstance(game, TwoRole) else left


def _roles_rules(game: TwoRole) -> str:
    rules = (
        " Two of you solve it together. For every move the planner proposes one and the executor, who reads the "
        "proposal, then makes the same move or a better one."
    )
    if game.view == "local":
        rules += " The planner sees the whole board, the executor only a part of it."
    return rules


def _roles(hides: bool) -> tuple[str, str]:
    executor = "You are the executor."
    if hides:
        executor += f" {HIDDEN} is a cell that you cannot see."
    return "You are the planner.", executor


def _questions(words: Words, roles: bool) -> tuple[str, ...]:
    if not roles:
        return (f"What is your move? {words.ask}",)
    return f"Which move do you propose? {words.ask}", f"Which move do you make? {words.ask}"
