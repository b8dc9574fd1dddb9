"""Hanabi as text: what the seat knows and nothing else.

Axis letters: P players, H cards in a hand, C colours, R ranks.

Seen are the partners' cards, what the hints say about everybody's cards, fireworks, discards, tokens, the size of the
deck and the latest move of every player. Not seen are the own cards and the order of the deck: neither is read here for
the seat that looks. Players are named by their distance from the reader, number 1 being the next to move.

An event says who did what and what came of it; then how often the card lies in the discard pile, tokens, lives, deck
and turns left, where they changed; and the hand it changed: its cards, where a partner played or discarded, and what
its holder knows from hints. `full_text` and `short_text` write the tables of both templates.
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
    """Full: sentences and lists in words. Compact: a token per fact. Brief: fields of fixed width, letters."""
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


# --- What is seen, as numbers ---------------------------------------------------------------------------------------


def _indices(game: Hanabi, state: State, seat: jax.Array, style: str) -> jax.Array:
    """The numbers of an observation, in the order of its tables."""
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
    """The partners' hands int32[P-1, H] and what they know of them int32[P-1, H, 2].

    Full: each card with what is known of it. Brief: also what fireworks and discards make of it (`cards.prospects`).
    Compact: all cards, then as bit masks which of them are playable and which are useless, then what is known.
    """
    shown = hands[..., None] + 1
    if style == "full":
        return _hands(shown, known, by_card=True)
    found = cards.prospects(game, state, hands)
    if style == "brief":
        return _hands(jnp.concatenate([shown, found[..., None]], axis=-1), known, by_card=True)
    masks = [jnp.sum((found == which) << jnp.arange(game.cards_per_hand), axis=-1, keepdims=True) for which in (2, 1)]
    return jnp.concatenate([hands + 1, *masks, known.reshape(*hands.shape[:-1], -1)], axis=-1)


def _hands(shown: jax.Array, known: jax.Array, by_card: bool) -> jax.Array:
    """Cards int32[..., H, 1 or 2] and what is known of them int32[..., H, 2], by card or one behind the other."""
    parts = (shown, known) if by_card else (part.reshape(*part.shape[:-2], -1) for part in (shown, known))
    return jnp.concatenate(list(parts), axis=-1)


def _known(state: State, seats: jax.Array) -> jax.Array:
    """The colours and ranks that hints leave possible, as bit masks: int32[..., H, 2]."""
    return jnp.stack([state.colors[seats], state.ranks[seats]], axis=-1).astype(jnp.int32)


def _piles(game: Hanabi, state: State) -> jax.Array:
    """The number of each colour's discard pile among all that can be; the lowest rank changes fastest: int32[C]."""
    places = np.array([1, *np.cumprod([c + 1 for c in copies(game.ranks)])[:-1]])
    return state.discards.astype(jnp.int32) @ places


def _moves(game: Hanabi, state: State, seats: jax.Array) -> jax.Array:
    """Each player's latest move, oldest first: the action + 1 and its outcome: int32[P, 2].

    Outcomes, in this order: none; a card discarded, built or lost, C·R each; the places that a hint named, a bit mask.
    """
    action, card, scored, touched = (field[seats].astype(jnp.int32) for field in state.last)
    move = game.decode(action)
    cards = game.max_score
    outcome = jnp.where(move.discard, card, jnp.where(scored == 1, cards + card, 2 * cards + card))
    outcome = jnp.where(move.discard | move.play, 1 + outcome, 3 * cards + 1 + touched)
    return jnp.stack([action + 1, jnp.where(action < 0, 0, outcome)], axis=-1)


# --- What happened, as numbers --------------------------------------------------------------------------------------


def _event_indices(
    game: Hanabi, before: State, action: jax.Array, after: State, seat: jax.Array, by_card: bool
) -> jax.Array:
    """The numbers of an event, in the order of its tables; 0 stands for what did not change."""
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
