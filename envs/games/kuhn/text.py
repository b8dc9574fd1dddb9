"""The text of Kuhn poker; an answer is a move.

A seat sees its card and all moves so far.
"""

import jax
import jax.numpy as jnp

from envs.games.game import Game
from envs.games.kuhn.rules import RANKS, ROUND, KuhnState
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text

RULES = (
    "You play Kuhn poker, a game of two players with three cards: a jack, a queen and a king, the highest. Each player "
    "puts one chip into the pot and gets one card, which the other does not see. The players take turns to pass or to "
    "bet one more chip. If both pass, or both bet, the higher card wins the pot. Who passes after a bet loses the pot."
)
COMPACT_RULES = (
    "Kuhn poker: jack, queen, king, one card each, one chip each in the pot. Pass, or bet one chip. Who passes after a "
    "bet loses the pot, otherwise the higher card wins it. Shown are your card and all moves, the first player's first."
)


def text(game: Game, style: str) -> Text:
    """Build the text in one style.

    The style `full` has sentences, `compact` words, and `brief` the first letters of the card and the moves, padded
    with dashes.
    """
    if style == "full":
        return _text(
            game, style, RULES, ("You are the first player.", "You are the second player."),
            (Fixed("Your card is the"), Table(tuple(f" {rank}.\n" for rank in RANKS)),
             Fixed("Moves so far:"), Table(tuple(f" {_listed(game, s)}.\n" for s in ROUND.sequences))),
            (Table(("You decided to", "The other player decided to")), Table((" pass.\n", " bet.\n"))),
            game.action_names, "Do you pass or bet? Answer with one word only.", "Do you pass or bet?",
        )  # fmt: skip
    if style == "compact":
        return _text(
            game, style, COMPACT_RULES, ("", ""),
            (Fixed("card"), Table(tuple(f" {rank}\n" for rank in RANKS)),
             Fixed("moves"), Table(tuple(f" {_listed(game, s)}\n" for s in ROUND.sequences))),
            (Table(("you", "other")), Table((" pass\n", " bet\n"))),
            game.action_names, "Your move?", "Your move?",
        )  # fmt: skip
    letters = tuple(name[0] for name in game.action_names)
    longest = max(map(len, ROUND.sequences))
    moves = ("".join(letters[a] for a in sequence).ljust(longest, "-") for sequence in ROUND.sequences)
    return _text(
        game, style, "", ("", ""),
        (Table(tuple(rank[0].upper() for rank in RANKS)), Table(tuple(f"{m}:" for m in moves))),
        (Table(("x", "o")), Table(letters)), letters, "", ":",
    )  # fmt: skip


def _listed(game: Game, sequence: tuple[int, ...]) -> str:
    return ", ".join(game.action_names[a] for a in sequence) or "none"


def _text(
    game: Game, style: str, rules: str, roles: tuple[str, str], seen: tuple[Piece, ...], event: tuple[Piece, ...],
    names: tuple[str, ...], question: str, ask: str,
) -> Text:  # fmt: skip
    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=roles,
        observation=Template(seen),
        indices=lambda state, seat: jnp.stack([state.cards[seat], state.moves]),
        questions=(question, question),
        names=names,
        events=Template(event),
        event_indices=_event,
        asks=(ask, ask),
    )


def _event(before: KuhnState, action: jax.Array, after: KuhnState, seat: jax.Array) -> jax.Array:
    """Return whether the other player moved, and the move: int32 [2]."""
    return jnp.stack([jnp.asarray(ROUND.mover)[before.moves] != seat, action]).astype(jnp.int32)
