"""The text of Hanabi, with exactly the information available to the seat.

Axis letters: P players, H cards in a hand, C colors, R ranks.

A seat sees the other players' cards, the hints about all cards, fireworks, discards, tokens, the size of the deck and
the latest move of every player. It does not see its own cards or the order of the deck, which this module never reads
for that seat. Players are named by their distance from the reader; number 1 moves next.

An event names the player, the action and its outcome. Then follow, if they changed, the number of copies of the card in
the discard pile, tokens, lives, deck and turns left, and the affected hand: its cards, if another player played or
discarded, and what its holder knows from hints. `full_text` and `short_text` define the tables of both templates.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import State
from envs.games.hanabi import cards, full_text, short_text
from envs.games.hanabi.rules import Hanabi, copies
from envs.games.template import Piece, Template
from envs.games.text import Text


def text(game: Hanabi, style: str) -> Text:
    """Build the text in one style.

    The style `full` has sentences and lists in words, `compact` one token per fact, and `brief` fields of fixed width.
    """
    if style == "full":
        pieces, events = full_text.observation(game), full_text.events(game)
        question, ask = "What do you do? Answer with one letter only.", "What do you do?"
        return _text(game, style, full_text.rules(game), pieces, events, question, ask)
    if style == "brief":
        return _text(game, style, "", short_text.brief_observation(game), short_text.brief_events(game), ":", ":")
    words, signs = (
        _text(
            game,
            style,
            short_text.rules(game, notation),
            short_text.observation(game, notation),
            short_text.events(game, notation),
            notation.question,
            notation.ask,
        )
        for notation in (short_text.WORDS, short_text.SIGNS)
    )
    return dataclasses.replace(words, others=(signs,))


def _text(
    game: Hanabi, style: str, rules: str, pieces: tuple[Piece, ...], events: tuple[Piece, ...], question: str, ask: str
) -> Text:
    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=("",) * game.players,
        observation=Template(pieces),
        indices=lambda state, seat: _indices(game, state, seat, style),
        questions=(question,) * game.players,
        names=game.action_names,
        events=Template(events),
        event_indices=lambda before, action, after, seat: _event_indices(
            game, before, action, after, seat, by_card=style == "full"
        ),
        asks=(ask,) * game.players,
    )


# --- Observations ---------------------------------------------------------------------------------------------------


def _indices(game: Hanabi, state: State, seat: jax.Array, style: str) -> jax.Array:
    """Return the indices of an observation, in the order of its tables."""
    seats = (seat + jnp.arange(game.players)) % game.players
    left = game.n_cards - state.dealt
    known = _known(state, seats)
    parts = [
        state.fireworks,
        state.information,
        state.lives,
        left,
        jnp.where(left == 0, state.turns_left, 0),
        _piles(game, state),
        _moves(game, state, seats),
        _partners(game, state, state.hands[seats[1:]].astype(jnp.int32), known[1:], style),
        known[0],
    ]
    return jnp.concatenate([jnp.ravel(part).astype(jnp.int32) for part in parts])


def _partners(game: Hanabi, state: State, hands: jax.Array, known: jax.Array, style: str) -> jax.Array:
    """Return the indices of the other players' hands.

    In the style `full`, each card is followed by the knowledge of its holder; in `brief`, by its `cards.prospects` and
    that knowledge. In `compact`, all cards are followed by bit masks of the playable and of the useless ones, and then
    by the knowledge.

    Args:
        game: The game.
        state: Current state.
        hands: int32 [P-1, H].
        known: int32 [P-1, H, 2]. Knowledge of the holders.
        style: Text style.
    """
    shown = hands[..., None] + 1
    if style == "full":
        return _hands(shown, known, by_card=True)
    prospects = cards.prospects(game, state, hands)
    if style == "brief":
        return _hands(jnp.concatenate([shown, prospects[..., None]], axis=-1), known, by_card=True)
    masks = [
        jnp.sum((prospects == which) << jnp.arange(game.cards_per_hand), axis=-1, keepdims=True) for which in (2, 1)
    ]
    return jnp.concatenate([hands + 1, *masks, known.reshape(*hands.shape[:-1], -1)], axis=-1)


def _hands(shown: jax.Array, known: jax.Array, by_card: bool) -> jax.Array:
    """Concatenate cards int32 [..., H, 1 or 2] and knowledge int32 [..., H, 2].

    They are interleaved by card, or concatenated.
    """
    parts = (shown, known) if by_card else (part.reshape(*part.shape[:-2], -1) for part in (shown, known))
    return jnp.concatenate(list(parts), axis=-1)


def _known(state: State, seats: jax.Array) -> jax.Array:
    """Return the colors and ranks that hints allow, as bit masks: int32 [..., H, 2]."""
    return jnp.stack([state.colors[seats], state.ranks[seats]], axis=-1).astype(jnp.int32)


def _piles(game: Hanabi, state: State) -> jax.Array:
    """Return the index of each color's discard pile, lowest rank changing fastest: int32 [C]."""
    places = np.array([1, *np.cumprod([c + 1 for c in copies(game.ranks)])[:-1]])
    return state.discards.astype(jnp.int32) @ places


def _moves(game: Hanabi, state: State, seats: jax.Array) -> jax.Array:
    """Return the action + 1 and outcome of each latest move: int32 [P, 2].

    Moves are ordered from the oldest to the newest. Outcomes, in this order: none; a card discarded, built or lost, C·R
    each; the bit mask of places that a hint named.
    """
    action, card, scored, touched = (field[seats].astype(jnp.int32) for field in state.last)
    move = game.decode(action)
    cards = game.max_score
    outcome = jnp.where(move.discard, card, jnp.where(scored == 1, cards + card, 2 * cards + card))
    outcome = jnp.where(move.discard | move.play, 1 + outcome, 3 * cards + 1 + touched)
    return jnp.stack([action + 1, jnp.where(action < 0, 0, outcome)], axis=-1)


# --- Events ---------------------------------------------------------------------------------------------------------


def _event_indices(
    game: Hanabi, before: State, action: jax.Array, after: State, seat: jax.Array, by_card: bool
) -> jax.Array:
    """Return the indices of an event, in the order of its tables; 0 means unchanged."""
    mover, move = before.seat, game.decode(jnp.asarray(action))
    offset = (mover - seat) % game.players
    leaves = move.discard | move.play
    outcome = _moves(game, after, mover[None])[0, 1]
    card = after.last.card[mover].astype(jnp.int32)
    lost = leaves & ~after.last.scored[mover]
    held = jnp.where(leaves, mover, (mover + move.offset) % game.players)
    shows = leaves & (held != seat)
    hand = jnp.where(shows, after.hands[held].astype(jnp.int32) + 2, 0)

    def changed(field: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(field == old, 0, field + 1)

    left, old_left = game.n_cards - after.dealt, game.n_cards - before.dealt
    parts = [
        offset * game.n_actions + action,
        outcome,
        jnp.where(lost, after.discards.reshape(-1)[jnp.clip(card, 0)], 0),
        changed(after.information, before.information),
        changed(after.lives, before.lives),
        changed(left, old_left),
        jnp.where(left == 0, after.turns_left, 0),
        jnp.where(shows, 1, 0),
        _hands(hand[:, None], _known(after, held), by_card),
    ]
    return jnp.concatenate([jnp.ravel(part).astype(jnp.int32) for part in parts])
