"""The text of the referential game; an answer is a message or a card."""

import jax
import jax.numpy as jnp

from envs.games.referential.rules import CARDS, MESSAGES, SPEAKER, Referential, ReferentialState
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text


def text(game: Referential, style: str) -> Text:
    """Build the text in one style.

    The style `full` has sentences, `compact` words, and `brief` one character for the seat and one for what it knows.
    """
    cards, messages = CARDS[: game.cards], MESSAGES[: game.messages]
    known = (*cards, *messages, "-")
    if style == "full":
        said = f"The speaker says one of the messages {', '.join(messages)}, and the" if messages else "The"
        return _text(
            game, style,
            f"A speaker sees one of the cards {', '.join(cards)}. {said} listener, who does not see the card, names "
            "one. Both get one point if it is the right card.",
            ("You are the speaker.", "You are the listener."),
            (Fixed("You know:"), Table((*(f" the card is {card}.\n" for card in cards),
             *(f" the speaker said {message}.\n" for message in messages), " nothing.\n"))),
            (Table(("You", "The other player")), Table((*(f" said {message}.\n" for message in messages),
             *(f" named {card}.\n" for card in cards)))),
            ("Which message do you say? Answer with one digit only.",
             "Which card is it? Answer with one letter only."),
            asks=("Which message do you say?", "Which card is it?"),
        )  # fmt: skip
    if style == "compact":
        return _text(
            game, style, "The speaker sees a card, the listener names it; a point for the right one.",
            ("You: speaker", "You: listener"),
            (Fixed("known"), Table(tuple(f" {fact}\n" for fact in (*known[:-1], "nothing")))),
            (Table(("you", "other")), Table(tuple(f" {name}\n" for name in game.action_names))),
            ("Your message?", "Which card?"),
        )  # fmt: skip
    return _text(
        game, style, "", ("", ""), (Table(("s", "l")), Table(tuple(f"{fact}:" for fact in known))),
        (Table(("s", "l")), Table(game.action_names)), ("", ""), asks=(":", ":"), seat=True,
    )  # fmt: skip


def _text(
    game: Referential, style: str, rules: str, roles: tuple[str, str], seen: tuple[Piece, ...],
    event: tuple[Piece, ...], questions: tuple[str, str], asks: tuple[str, ...] = (), seat: bool = False,
) -> Text:  # fmt: skip
    """Build the text; `seat` is whether the observation starts with the seat."""

    def indices(state: ReferentialState, player: jax.Array) -> jax.Array:
        """Return the card or the message, after the seat if it is shown."""
        heard = jnp.where(state.message < 0, game.messages, state.message)
        fact = jnp.where(player == SPEAKER, state.card, game.cards + heard)
        return jnp.stack([player, fact] if seat else [fact]).astype(jnp.int32)

    def events(before: ReferentialState, action: jax.Array, after: ReferentialState, player: jax.Array) -> jax.Array:
        """Return who moved, as the style counts it, and the move: int32 [2]."""
        mover = game.player(before)
        return jnp.stack([mover if seat else (mover != player), action]).astype(jnp.int32)

    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=roles,
        observation=Template(seen),
        indices=indices,
        questions=questions,
        names=game.action_names,
        events=Template(event),
        event_indices=events,
        asks=asks,
    )
