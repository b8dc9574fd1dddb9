"""The text of matrix games; an answer is a choice.

A seat sees the state, but not the choice of the other seat in this round.
"""

import jax
import jax.numpy as jnp

from envs.games.matrix.rules import END, Matrix, MatrixState
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text

RULES = (
    "You play a game with a partner. In every round both players choose at the same time, without seeing the choice of "
    "the other, and both get the same reward. The rewards depend on the state of the game; the choice of the first "
    "player is named first."
)
COMPACT_RULES = (
    "Two players choose at the same time and share the reward. Rewards by state, first player's choice first:"
)


def text(game: Matrix, style: str) -> Text:
    """Build the text in one style.

    The style `full` has sentences, `compact` words, and `brief` one character for the seat and one for the state.
    """
    names, states = game.action_names, [*map(str, range(game.n_stages)), "over"]
    if style == "full":
        return _text(
            game, style, f"{RULES} {_outcomes(game, ' and ', ' gives ', ' and leads to state ')}",
            (Fixed("You are the"), Table((" first player.\n", " second player.\n")),
             Fixed("The state is"), Table(tuple(f" {state}.\n" for state in states))),
            (Table(("You chose", "The other player chose")), Table((*(f" {name}" for name in names), " in secret")),
             Table(tuple(f". The state is {state}.\n" for state in states))),
            f"Which one do you choose: {', '.join(names)}? Answer with one letter only.", "Which one do you choose?",
        )  # fmt: skip
    if style == "compact":
        return _text(
            game, style, f"{COMPACT_RULES} {_outcomes(game, ' ', ' ', ' to ')}",
            (Fixed("player"), Table((" first\n", " second\n")),
             Fixed("state"), Table(tuple(f" {state}\n" for state in states))),
            (Table(("you", "other")), Table((*(f" {name}" for name in names), " hidden")),
             Table(tuple(f" state {state}\n" for state in states))),
            "Your choice?", "Your choice?",
        )  # fmt: skip
    signs = [*(chr(ord("a") + stage) for stage in range(game.n_stages)), "-"]
    return _text(
        game, style, "", (Table(("x", "o")), Table(tuple(f"{sign}:" for sign in signs))),
        (Table(("x", "o")), Table((*names, "-")), Table(tuple(signs))), "", ":",
    )  # fmt: skip


def _outcomes(game: Matrix, joined: str, gives: str, leads: str) -> str:
    """List the reward and the next state of every joint action."""
    sentences = []
    for stage, payoffs in enumerate(game.payoffs):
        links = game.leads_to[stage] if stage < len(game.leads_to) else None
        outcomes = []
        for first, row in enumerate(payoffs):
            for second, payoff in enumerate(row):
                following = END if links is None else links[first][second]
                after = "" if following == END else f"{leads}{following}"
                pair = f"{game.action_names[first]}{joined}{game.action_names[second]}"
                outcomes.append(f"{pair}{gives}{payoff:g}{after}")
        sentences.append(f"State {stage}: {', '.join(outcomes)}.")
    return " ".join(sentences)


def _text(
    game: Matrix, style: str, rules: str, seen: tuple[Piece, ...], event: tuple[Piece, ...], question: str, ask: str
) -> Text:
    def events(before: MatrixState, action: jax.Array, after: MatrixState, seat: jax.Array) -> jax.Array:
        """Return whether the other player moved, the visible choice and the state: int32 [3]."""
        other = game.player(before) != seat
        return jnp.stack([other, jnp.where(other, game.n_actions, action), after.stage]).astype(jnp.int32)

    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=("", ""),
        observation=Template(seen),
        indices=lambda state, seat: jnp.stack([seat, state.stage]).astype(jnp.int32),
        questions=(question, question),
        names=game.action_names,
        events=Template(event),
        event_indices=events,
        asks=(ask, ask),
    )
