"""Beliefs about the own hand in Hanabi, from the moves of deterministic partners.

A hypothetical hand is possible if the hints allow it, the unseen cards contain it, and every earlier move of the others
is the one that the bot makes when it sees this hand. `believe` samples such hands with a particle filter: it draws each
card when the seat drew it, from the cards that are unseen now, replays the moves that followed with `bot.act`, and
resamples the hands that explain them. Nothing is kept between decisions except the moves (`Memory`), so a filter that
lost the right hands once starts again at the next decision.

Axis letters: P players, H cards in a hand, K kinds of cards, T remembered moves, N hypothetical hands.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Bot
from envs.games.hanabi.rules import Hanabi, HanabiState, copies


class Memory(NamedTuple):
    """The moves of the other players, with what they saw.

    Attributes:
        seat: int32 []. Seat that remembers.
        places: int32 [H]. Deck positions of its cards, -1 for an empty place.
        count: int32 []. Number of remembered moves.
        states: Positions before these moves, arrays [T, …], without the deck.
        held: int32 [T, H]. `places` at that time.
        actions: int32 [T]. The moves.
    """

    seat: jax.Array
    places: jax.Array
    count: jax.Array
    states: HanabiState
    held: jax.Array
    actions: jax.Array


class Belief(NamedTuple):
    """Weighted hypothetical hands.

    Attributes:
        hands: int32 [N, H]. Cards, -1 in empty places.
        weights: float32 [N].
        lost: int32 []. Number of remembered moves that none of the hands explained and that were therefore ignored.
    """

    hands: jax.Array
    weights: jax.Array
    lost: jax.Array


def begin(game: Hanabi, state: HanabiState, seat: jax.Array | int) -> Memory:
    """Start the memory of a seat at the first position of a game."""
    length = game.max_turns - game.max_turns // game.players
    hand = game.cards_per_hand
    empty = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), without_deck(state))
    seat = jnp.asarray(seat, jnp.int32)
    places = seat * hand + jnp.arange(hand, dtype=jnp.int32)
    held = jnp.zeros((length, hand), jnp.int32)
    return Memory(seat, places, jnp.int32(0), empty, held, jnp.zeros((length,), jnp.int32))


def observe(game: Hanabi, memory: Memory, before: HanabiState, action: jax.Array) -> Memory:
    """Remember a move.

    Args:
        game: The game.
        memory: Memory before the move.
        before: Position in which it was made. Nothing changes if the game is over.
        action: int32 []. The move.
    """
    move, own = game.decode(action), before.seat == memory.seat
    leaves = own & (move.discard | move.play) & ~before.over
    drawn = jnp.where(before.dealt < game.n_cards, before.dealt, -1)
    shifted = jnp.append(memory.places[1:], drawn)
    moves_down = leaves & (jnp.arange(game.cards_per_hand) >= move.place)
    # Out of range, and therefore dropped, unless another player moved.
    at = jnp.where(own | before.over, len(memory.actions), memory.count)
    return Memory(
        memory.seat,
        jnp.where(moves_down, shifted, memory.places),
        memory.count + ~(own | before.over),
        jax.tree.map(lambda xs, x: xs.at[at].set(x, mode="drop"), memory.states, without_deck(before)),
        memory.held.at[at].set(memory.places, mode="drop"),
        memory.actions.at[at].set(action, mode="drop"),
    )


def without_deck(state: HanabiState) -> HanabiState:
    """Return a position without its deck, which no player sees."""
    return state._replace(deck=jnp.zeros((0,), state.deck.dtype))


def believe(game: Hanabi, bot: Bot, memory: Memory, state: HanabiState, key: jax.Array, hands: int) -> Belief:
    """Sample hypothetical hands of the seat that remembers.

    Args:
        game: The game.
        bot: Deterministic bot that the others play.
        memory: The game so far.
        state: Current position. The cards of the seat and the deck are not used.
        key: Source of randomness.
        hands: Number of hands N.
    """
    kinds, unseen = jnp.arange(game.max_score), _unseen(game, memory.seat, state)
    held = state.hands[memory.seat] >= 0
    allowed = _allowed(game, memory.seat, state)

    def draw(sampled: jax.Array, weights: jax.Array, due: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw the cards that are due (bool [H]) and weight them by the choices."""
        chosen = jax.random.uniform(key, sampled.shape)
        for place in range(game.cards_per_hand):
            used = jnp.sum(sampled[:, :, None] == kinds, axis=1)
            left = jnp.cumsum(jnp.maximum(unseen - used, 0) * allowed[place], axis=1)
            ticket = jnp.minimum(jnp.floor(chosen[:, place] * left[:, -1]), left[:, -1] - 1)
            card = jnp.minimum(jnp.sum(left <= ticket[:, None], axis=1), game.max_score - 1)
            sampled = jnp.where(due[place] & (jnp.arange(game.cards_per_hand) == place), card[:, None], sampled)
            weights = jnp.where(due[place], weights * left[:, -1], weights)
        return sampled, weights

    def replay(turn: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]):
        """Keep the hands for which the bot makes the remembered move."""
        sampled, weights, lost = carry
        past, then = jax.tree.map(lambda x: x[turn], (memory.states, memory.held))
        draw_key, pick_key = jax.random.split(jax.random.fold_in(key, turn))
        due = held & (memory.places < past.dealt) & (sampled[0] < 0)
        sampled, weights = draw(sampled, weights, due, draw_key)
        still = (then[:, None] == memory.places) & held  # bool [H, H]: places at that time and now
        cards = jnp.sum(jnp.where(still, sampled[:, None, :], 0), axis=2)
        cards = jnp.where(jnp.any(still, axis=1), cards, past.hands[memory.seat])
        acts = jax.vmap(lambda own: bot.act(_with_hand(past, memory.seat, own), key))(cards)
        kept = weights * (acts == memory.actions[turn])
        explained = jnp.sum(kept) > 0
        picked = _resample(jnp.where(explained, kept, weights), hands, pick_key)
        return sampled[picked], jnp.ones((hands,), jnp.float32), lost + ~explained

    start = (
        jnp.full((hands, game.cards_per_hand), -1, jnp.int32),
        jnp.ones((hands,), jnp.float32),
        jnp.int32(0),
    )
    sampled, weights, lost = jax.lax.fori_loop(0, memory.count, replay, start)
    sampled, weights = draw(sampled, weights, held & (sampled[0] < 0), jax.random.fold_in(key, len(memory.actions)))
    return Belief(sampled, weights, lost + (jnp.sum(weights) == 0))


def deal(game: Hanabi, memory: Memory, state: HanabiState, belief: Belief, key: jax.Array, number: int) -> HanabiState:
    """Deal positions that the seat considers possible: [M, …].

    Each has a hand drawn from the belief, and the other unseen cards in random order as its deck.

    Args:
        game: The game.
        memory: Memory of the seat.
        state: Current position.
        belief: The belief of the seat.
        key: Source of randomness.
        number: Number of positions M.
    """
    pick_key, deck_key = jax.random.split(key)
    own = belief.hands[_resample(belief.weights, number, pick_key)]
    unseen = _unseen(game, memory.seat, state)
    cards = np.repeat(np.arange(game.max_score), np.tile(copies(game.ranks), game.colors)).astype(np.uint32)
    which = np.concatenate([np.arange(n) for n in np.tile(copies(game.ranks), game.colors)])

    def one(own: jax.Array, key: jax.Array) -> HanabiState:
        left = unseen - jnp.sum(own[:, None] == jnp.arange(game.max_score), axis=0)
        # As in `Hanabi.reset`. Cards that are not in the deck come first, so that `dealt` points to the others.
        tickets = jax.random.bits(key, cards.shape, jnp.uint32) & np.uint32(~31 & 0xFFFFFFFF) | np.uint32(1 << 31)
        tickets = jnp.where(which < left[cards], tickets, 0) | cards
        deck = (jnp.sort(tickets) & 31).astype(state.deck.dtype)
        return _with_hand(state, memory.seat, own)._replace(deck=deck)

    return jax.vmap(one)(own, jax.random.split(deck_key, number))


def _unseen(game: Hanabi, seat: jax.Array, state: HanabiState) -> jax.Array:
    """Return how many cards of each kind a seat does not see: int32 [K]."""
    others = jnp.where(jnp.arange(game.players)[:, None] == seat, -1, state.hands)
    seen = jnp.sum(others[:, :, None] == jnp.arange(game.max_score), axis=(0, 1))
    played = jnp.arange(game.ranks) < state.fireworks[:, None]
    return (jnp.asarray(copies(game.ranks)) - state.discards - played).reshape(-1) - seen


def _allowed(game: Hanabi, seat: jax.Array, state: HanabiState) -> jax.Array:
    """Return which kinds the hints allow for each card of a seat: bool [H, K]."""
    kinds = np.arange(game.max_score)
    by_color = state.colors[seat][:, None] >> (kinds // game.ranks).astype(np.uint8) & 1
    by_rank = state.ranks[seat][:, None] >> (kinds % game.ranks).astype(np.uint8) & 1
    return by_color & by_rank == 1


def _with_hand(state: HanabiState, seat: jax.Array, own: jax.Array) -> HanabiState:
    """Return the position with other cards (int [H]) in the hand of a seat."""
    is_own = (jnp.arange(len(state.hands)) == seat)[:, None]
    return state._replace(hands=jnp.where(is_own, own, state.hands).astype(state.hands.dtype))


def _resample(weights: jax.Array, number: int, key: jax.Array) -> jax.Array:
    """Sample indices in proportion to weights [N], evenly spread: int32 [number].

    All weights may be 0, in which case the sample is uniform.
    """
    total = jnp.cumsum(jnp.where(jnp.sum(weights) > 0, weights, 1.0))
    points = (jnp.arange(number) + jax.random.uniform(key)) / number * total[-1]
    return jnp.minimum(jnp.searchsorted(total, points, side="right"), len(weights) - 1).astype(jnp.int32)
