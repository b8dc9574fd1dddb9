"""Kuhn poker: three cards, one for each player, one bet.

Both players put a chip into the pot. A bet adds one more chip. A player who passes after a bet loses the pot; otherwise
the higher card wins it. With perfect play the first player loses 1/18 of a chip per game.
"""

import dataclasses
import itertools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.betting import enumerate_round
from envs.games.game import Game, Reward, keep_if_done, legal_or_end

RANKS = ("jack", "queen", "king")
PASS, BET = 0, 1
DEALS = np.array(list(itertools.permutations(range(len(RANKS)), 2)), np.int32)


def _legal(sequence: tuple[int, ...]) -> tuple[int, ...]:
    """Return both actions until the round is over.

    It is over after two passes, or after the reply to a bet.
    """
    answered = sequence == (PASS, PASS) or (len(sequence) > 1 and sequence[-2] == BET)
    return () if answered else (PASS, BET)


ROUND = enumerate_round(2, _legal)
_BETS = np.array([[sum(a == BET for a in s[seat::2]) for seat in (0, 1)] for s in ROUND.sequences], np.int32)


class KuhnState(NamedTuple):
    """State of a hand.

    Attributes:
        cards: int32 [2]. Cards of the players; 2 is the highest.
        moves: int32 []. Index of the moves so far in `ROUND.sequences`.
    """

    cards: jax.Array
    moves: jax.Array


@dataclasses.dataclass(frozen=True)
class Kuhn(Game):
    """Kuhn poker for two players, zero-sum.

    The agent reward at the end is the number of chips won or lost, 1 or 2.
    """

    name: ClassVar[str] = "kuhn"
    competitive: ClassVar[bool] = True
    stakes: ClassVar[bool] = True
    reward_levels: ClassVar[tuple[str, ...]] = ("agent",)
    n_players: ClassVar[int] = 2
    n_actions: ClassVar[int] = 2
    max_turns: ClassVar[int] = 3
    action_names: ClassVar[tuple[str, ...]] = ("pass", "bet")

    def reset(self, key: jax.Array) -> KuhnState:
        """Deal two of the three cards."""
        return self.deal(jax.random.randint(key, (), 0, len(DEALS)))

    def deal(self, number: jax.Array) -> KuhnState:
        """Return the first state of one of the six equally likely deals."""
        return KuhnState(jnp.asarray(DEALS)[number], jnp.int32(0))

    @property
    def n_deals(self) -> int:
        """Number of deals: six."""
        return len(DEALS)

    def information(self, state: KuhnState, seat: jax.Array) -> jax.Array:
        """Encode the seat's own card and all moves: int32 []."""
        return state.cards[seat] * len(ROUND.sequences) + state.moves

    def player(self, state: KuhnState) -> jax.Array:
        """Return the seat that moves next: int32 []."""
        return jnp.asarray(ROUND.mover)[state.moves]

    def legal(self, state: KuhnState) -> jax.Array:
        """Return the legal actions; both are always legal: bool [2]."""
        return legal_or_end(jnp.asarray(ROUND.next)[state.moves] >= 0, self.done(state))

    def step(self, state: KuhnState, action: jax.Array) -> tuple[KuhnState, Reward]:
        """Pass or bet."""
        over = self.done(state)
        new = keep_if_done(over, state, KuhnState(state.cards, jnp.asarray(ROUND.next)[state.moves, action]))
        gain = jnp.where(self.done(new) & ~over, self._won(new), 0.0).astype(jnp.float32)
        return new, Reward(jnp.float32(0), jnp.stack([gain, -gain]), jnp.zeros(2))

    def done(self, state: KuhnState) -> jax.Array:
        """Return whether the betting is over: bool []."""
        return jnp.asarray(ROUND.over)[state.moves]

    def _won(self, state: KuhnState) -> jax.Array:
        """Return the chips that the first player has won, negative if lost."""
        bets = jnp.asarray(_BETS)[state.moves]
        higher = jnp.where(state.cards[0] > state.cards[1], 1, -1)
        winner = jnp.where(bets[0] == bets[1], higher, jnp.sign(bets[0] - bets[1]))
        return winner * (1 + jnp.min(bets))
