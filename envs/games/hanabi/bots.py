"""A bot that plays Hanabi by a simple convention, using only its seat's information.

The convention: **a hint asks for the newest card it names to be played**, unless it is common knowledge that this card
is not playable. On its turn the bot takes the first applicable action:

1. Play the card that a hint since its last turn asked for, if it may be playable.
2. Play a card that is certainly playable, given all visible cards.
3. Give a hint whose newest named card is playable, to a player who does not know it yet.
4. Gamble in the last round, if there is a life to spare.
5. Discard the card that is most likely useless and least likely the last of its kind, unless discarding is illegal, or
   the next player is about to lose a last copy that a harmless hint can save.
6. Give a harmless hint, one that nobody interprets as a request, or else any hint.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.hanabi import cards
from envs.games.hanabi.cards import CardTable
from envs.games.hanabi.rules import Hanabi, HanabiState, copies


@dataclasses.dataclass(frozen=True)
class ConventionBot:
    """A bot that plays the convention with copies of itself.

    It scores far above random play with any number of players.
    """

    game: Hanabi

    def act(self, state: HanabiState, key: jax.Array) -> jax.Array:
        """Return a legal action, independent of the key: int32 []."""
        del key
        game, hand = self.game, self.game.cards_per_hand
        table = cards.table(game, state)
        chances = self._own_chances(state)
        held = state.hands[state.seat] >= 0
        p_playable, p_useless, p_critical = (jnp.sum(chances * kind, axis=(1, 2)) for kind in table)
        places = jnp.arange(hand)

        requested = self._asked(state, state.seat) & (p_playable > 0) & held
        sure = (p_playable > 1 - 1e-5) & held
        last_round = (state.dealt == game.n_cards) & (state.lives > 1) & (jnp.max(p_playable) > 0)
        request, harmless, any_hint, rescue = self._hint_values(state, table)
        may_discard = state.information < game.max_information_tokens
        may_hint = state.information > 0
        fresh = (state.colors[state.seat] == 2**game.colors - 1) & (state.ranks[state.seat] == 2**game.ranks - 1)
        discard_value = jnp.where(held, 2 * p_useless - 3 * p_critical + 0.5 * fresh - 0.01 * places, -jnp.inf)

        # In order of increasing urgency: each line overrides those before it.
        action = hand + jnp.argmax(held)
        action = jnp.where(may_hint, 2 * hand + jnp.argmax(any_hint), action)
        action = jnp.where(may_hint & jnp.any(harmless > 0), 2 * hand + jnp.argmax(harmless), action)
        action = jnp.where(may_discard & ~(may_hint & rescue), jnp.argmax(discard_value), action)
        action = jnp.where(last_round, hand + jnp.argmax(jnp.where(held, p_playable, -1)), action)
        action = jnp.where(may_hint & jnp.any(request > 0), 2 * hand + jnp.argmax(request), action)
        action = jnp.where(jnp.any(sure), hand + jnp.argmax(sure), action)
        action = jnp.where(jnp.any(requested), hand + jnp.argmax(requested), action)
        return jnp.where(state.over, 0, action).astype(jnp.int32)

    def _own_chances(self, state: HanabiState) -> jax.Array:
        """Return the probability of every kind for every own card: float32 [H, C, R].

        The unseen cards are assumed to be shuffled uniformly.
        """
        game = self.game
        kinds = jnp.arange(game.max_score).reshape(game.colors, game.ranks)
        others = jnp.where(jnp.arange(game.players)[:, None] == state.seat, -1, state.hands)
        seen = jnp.sum(others[:, :, None, None] == kinds, axis=(0, 1))
        played = jnp.arange(game.ranks) < state.fireworks[:, None]
        unseen = jnp.asarray(copies(game.ranks)) - state.discards - played - seen
        weight = unseen * _possible(state.colors[state.seat], state.ranks[state.seat], game)
        return weight / jnp.maximum(jnp.sum(weight, axis=(1, 2), keepdims=True), 1)

    def _asked(self, state: HanabiState, seat: jax.Array) -> jax.Array:
        """Return the places of `seat` that hints since its last turn asked for: bool [H]."""
        game = self.game
        speakers = jnp.arange(game.players)
        move = game.decode(state.last.action)
        # Seats that have moved since `seat` did: from `seat` + 1 up to the one before the player to move.
        since = (speakers - seat - 1) % game.players < (state.seat - seat - 1) % game.players
        to_seat = (speakers + move.offset) % game.players == seat
        hint = (state.last.action >= 0) & (move.hint_color | move.hint_rank) & since & to_seat
        newest = _newest(state.last.touched[:, None] >> jnp.arange(game.cards_per_hand, dtype=jnp.uint8) & 1 == 1)
        return jnp.any(newest & hint[:, None], axis=0)

    def _hint_values(self, state: HanabiState, table: CardTable) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Return the values of all hints.

        Returns:
            The values of every hint as a request, as a harmless hint and as any hint: float32 [A - 2 H] each, in action
                order. Then whether the next player is about to discard a last copy that a harmless hint can save: bool
                [].
        """
        game = self.game
        seats = (state.seat + jnp.arange(1, game.players)) % game.players
        cards, colors, ranks = state.hands[seats], state.colors[seats], state.ranks[seats]
        flat = CardTable(*(kind.ravel() for kind in table))
        held = cards >= 0
        playable = flat.playable[cards] & held
        playable_ranks = jnp.left_shift(jnp.uint8(1), state.fireworks.astype(jnp.uint8))  # bit masks, one per color
        waiting = jax.vmap(self._asked, (None, 0))(state, seats)  # bool[P-1, H]
        # Another copy of the card is about to be played.
        expected = jnp.any((cards[:, :, None, None] == cards) & waiting, axis=(2, 3))
        known = ~_may_be(colors, ranks, ~playable_ranks)
        wanted = playable & ~known & ~expected & ~jnp.any(waiting, axis=1, keepdims=True)
        chop = (colors == 2**game.colors - 1) & (ranks == 2**game.ranks - 1) & held
        chop &= jnp.cumsum(chop, axis=1) == 1
        endangered = chop & flat.critical[cards]

        def values(named: jax.Array, colors: jax.Array, ranks: jax.Array) -> tuple[jax.Array, ...]:
            """Return the values of hints: four arrays [P-1, V].

            Args:
                named: bool [P-1, V, H]. Cards that each hint names.
                colors: Color masks after the hint, [P-1, V, H].
                ranks: Rank masks after the hint, [P-1, V, H].
            """
            newest = _newest(named)
            exists = jnp.any(named, axis=2)
            good = jnp.any(newest & wanted[:, None], axis=2)
            quiet = exists & ~jnp.any(newest & _may_be(colors, ranks, playable_ranks), axis=2)
            nearness = jnp.arange(game.players - 1, 0, -1)[:, None] / game.players
            more = jnp.sum(named & playable[:, None], axis=2) - 0.3 * jnp.sum(named & ~playable[:, None], axis=2)
            saves = jnp.any(named & endangered[:, None], axis=2)
            request = jnp.where(good, 10 + more + nearness, 0)
            harmless = jnp.where(quiet, 1 + 10 * saves + nearness, 0)
            wasted = jnp.any(newest & (held & flat.useless[cards])[:, None], axis=2)
            return request, harmless, jnp.where(exists, 1.0 + wasted, 0), quiet & saves & (nearness == nearness[0])

        by_color = _after_hint(cards // game.ranks, held, colors, game.colors)
        by_rank = _after_hint(cards % game.ranks, held, ranks, game.ranks)
        color_hints = values(by_color[0], by_color[1], jnp.broadcast_to(ranks[:, None], by_color[1].shape))
        rank_hints = values(by_rank[0], jnp.broadcast_to(colors[:, None], by_rank[1].shape), by_rank[1])
        request, harmless, any_hint, saves = (
            jnp.concatenate([c.ravel(), r.ravel()]) for c, r in zip(color_hints, rank_hints, strict=True)
        )
        return request, harmless, any_hint, jnp.any(saves)


def _possible(colors: jax.Array, ranks: jax.Array, game: Hanabi) -> jax.Array:
    """Return the kinds that the masks (uint8 [...]) allow: bool [..., C, R]."""
    by_color = colors[..., None] >> jnp.arange(game.colors, dtype=jnp.uint8) & 1 == 1
    by_rank = ranks[..., None] >> jnp.arange(game.ranks, dtype=jnp.uint8) & 1 == 1
    return by_color[..., :, None] & by_rank[..., None, :]


def _may_be(colors: jax.Array, ranks: jax.Array, wanted: jax.Array) -> jax.Array:
    """Return whether the masks allow a card with a wanted rank: bool [...].

    Args:
        colors: uint8 [...]. Bit masks.
        ranks: uint8 [...]. Bit masks.
        wanted: uint8 [C]. Bit mask of the wanted ranks of each color.
    """
    by_color = colors[..., None] >> jnp.arange(len(wanted), dtype=jnp.uint8) & 1 == 1
    return jnp.any(by_color & (ranks[..., None] & wanted != 0), axis=-1)


def _newest(named: jax.Array) -> jax.Array:
    """Keep only the last True place of each row (bool [..., H])."""
    later = np.triu(np.ones((named.shape[-1],) * 2, bool), 1)
    return named & ~jnp.any(named[..., None, :] & later, axis=-1)


def _after_hint(values: jax.Array, held: jax.Array, masks: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Return the cards that each of n hints names, and the masks after it.

    Both are [P-1, n, H], for hands `values` int [P-1, H].
    """
    named = (values[:, None] == jnp.arange(n)[:, None]) & held[:, None]
    bits = jnp.asarray(1 << np.arange(n), jnp.uint8)[:, None]
    return named, jnp.where(named, bits, masks[:, None] & ~bits)
