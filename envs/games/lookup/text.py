"""The text of Lookup; an answer is one digit."""

import jax
import jax.numpy as jnp

from envs.games.lookup.rules import Lookup, LookupState
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text

RULES = "A tone names a row of a table; tone 1 is the lowest. Every row holds one value"
HIDDEN = "?"


def text(game: Lookup, style: str) -> Text:
    """Build the text in one style; `brief` has one character per fact."""
    rows = [str(row + 1) for row in range(game.rows)]
    if style == "full":
        lines = [(f"Row {row}:", tuple(f" {v}.\n" for v in (*rows, HIDDEN))) for row in rows]
        questions = (
            "Which value is in the row of the tone?", "Which number has the tone?",
            *(f"Which value is in row {row}?" for row in rows),
        )  # fmt: skip
        rules = RULES + ("." if game.repeats else ", and no value occurs twice.")
        return _text(
            game, style, rules, Fixed("The tone is"), tuple(f" {row}.\n" for row in (*rows, HIDDEN)), lines,
            tuple(f"{question}\n" for question in questions), "Answer with one digit only.",
            "Which digit is the answer?",
        )  # fmt: skip
    if style == "compact":
        lines = [(f"row {row}", tuple(f" {v}\n" for v in (*rows, HIDDEN))) for row in rows]
        questions = ("value of the tone\n", "tone\n", *(f"value of row {row}\n" for row in rows))
        rules = f"A tone names a row of a table of {'' if game.repeats else 'different '}values."
        return _text(
            game, style, rules, Fixed("tone"),
            tuple(f" {row}\n" for row in (*rows, HIDDEN)), lines, questions, "Your answer?",
        )  # fmt: skip
    lines = [("", (*rows, HIDDEN)) for _ in rows]
    return _text(game, style, "", Fixed("t"), (*rows, HIDDEN), lines, ("v", "k", *rows), ":")


def _text(
    game: Lookup, style: str, rules: str, before: Fixed, tones: tuple[str, ...],
    lines: list[tuple[str, tuple[str, ...]]], questions: tuple[str, ...], question: str, ask: str = "",
) -> Text:  # fmt: skip
    board: list[Piece] = [piece for label, values in lines for piece in (Fixed(label), Table(values))]
    pieces = (before, Table(tones), *board, Table(questions))

    def indices(state: LookupState, seat: jax.Array) -> jax.Array:
        tone = jnp.where(game.hidden == "sound", game.rows, state.heard)
        values = jnp.where(game.hidden == "table", game.rows, state.values)
        question = jnp.where(state.question < 2, state.question, 2 + state.key)
        return jnp.concatenate([tone[None], values, question[None]]).astype(jnp.int32)

    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=("",),
        observation=Template(pieces),
        indices=indices,
        questions=(question,),
        asks=(ask or question,),
        names=game.action_names,
        spans=((1, 2), (2, 2 + len(board))),
        events=Template((Table(("You answered",)), Table(tuple(f" {name}.\n" for name in game.action_names)))),
        event_indices=lambda before, action, after, seat: jnp.stack([jnp.int32(0), action]).astype(jnp.int32),
    )
