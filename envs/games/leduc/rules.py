"""Leduc poker: three ranks in two suits, one public card, two rounds of betting.

Both players put a chip into the pot. A raise is 2 chips in the first round and 4 in the second, with at most two raises
per round, and the first player starts both rounds. The public card is shown between the rounds. A pair with it wins the
pot, otherwise the higher rank; equal ranks split it. With perfect play the first player loses about 0.0856 chips per
game.

Cards are numbered by rank, then by suit, as in OpenSpiel: 0 and 1 are the jacks, 4 and 5 the kings.
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
SUITS = ("spades", "hearts")
N_CARDS = len(RANKS) * len(SUITS)
FOLD, CALL, RAISE = 0, 1, 2
MAX_RAISES = 2
RAISES = (2, 4)
"""Size of a raise in each round, in chips."""
DEALS = np.array(list(itertools.permutations(range(N_CARDS), 3)), np.int32)


def _legal(sequence: tuple[int, ...]) -> tuple[int, ...]:
    """Return the legal actions: call, raise up to the limit, fold after a raise."""
    if sequence and (sequence[-1] == FOLD or (sequence[-1] == CALL and len(sequence) > 1)):
        return ()
    raises = sequence.count(RAISE)
    return ((FOLD,) if raises else ()) + (CALL,) + ((RAISE,) if raises < MAX_RAISES else ())


def _raised(sequence: tuple[int, ...]) -> list[int]:
    """Count the raises that each player has put into the pot.

    A raise is one more than the other player's, a call the same number.
    """
    raises = [0, 0]
    for turn, action in enumerate(sequence):
        raises[turn % 2] = max(raises) + (action == RAISE) if action != FOLD else raises[turn % 2]
    return raises


ROUND = enumerate_round(3, _legal)
N_SEQUENCES = len(ROUND.sequences)
_RAISED = np.array([_raised(sequence) for sequence in ROUND.sequences], np.int32)
_FOLDED = np.array([FOLD in sequence for sequence in ROUND.sequences])


class LeducState(NamedTuple):
    """State of a hand.

    Attributes:
        cards: int32 [3]. Cards of the players, then the public card, which is hidden in the first round.
        moves: int32 [2]. Index of the moves of each round in `ROUND.sequences`.
        round: int32 []. Current round, 0 or 1.
    """

    cards: jax.Array
    moves: jax.Array
    round: jax.Array


@dataclasses.dataclass(frozen=True)
class Leduc(Game):
    """Leduc poker for two players, zero-sum.

    The agent reward at the end is the number of chips won or lost, 1 to 13.

    Attributes:
        suits: Whether a seat sees suits, which never matter: 936 information sets with them, 288 without.
    """

    name: ClassVar[str] = "leduc"
    competitive: ClassVar[bool] = True
    stakes: ClassVar[bool] = True
    reward_levels: ClassVar[tuple[str, ...]] = ("agent",)
    n_players: ClassVar[int] = 2
    n_actions: ClassVar[int] = 3
    max_turns: ClassVar[int] = 8
    action_names: ClassVar[tuple[str, ...]] = ("fold", "call", "raise")

    suits: bool = True

    def reset(self, key: jax.Array) -> LeducState:
        """Deal three of the six cards."""
        return self.deal(jax.random.randint(key, (), 0, len(DEALS)))

    def deal(self, number: jax.Array) -> LeducState:
        """Return the first state of one of the 120 equally likely deals."""
        return LeducState(jnp.asarray(DEALS)[number], jnp.zeros(2, jnp.int32), jnp.int32(0))

    @property
    def n_deals(self) -> int:
        """Number of deals, including the public card: 120."""
        return len(DEALS)

    def information(self, state: LeducState, seat: jax.Array) -> jax.Array:
        """Encode the seat's own card, the public card if shown, and all moves: int32 []."""
        cards = self.seen_cards(state, seat)
        numbers = (cards[0], cards[1], state.moves[0], state.moves[1])
        sizes = (N_CARDS, N_CARDS + 1, N_SEQUENCES, N_SEQUENCES)
        code = jnp.int32(0)
        for number, size in zip(numbers, sizes, strict=True):
            code = code * size + number
        return code

    def seen_cards(self, state: LeducState, seat: jax.Array) -> jax.Array:
        """Return the seat's own card, and 1 + the public card: int32 [2].

        The latter is 0 before the public card is shown. Without suits, all cards are spades.
        """
        cards = state.cards if self.suits else state.cards - state.cards % 2
        return jnp.stack([cards[seat], jnp.where(state.round == 1, cards[2] + 1, 0)])

    def player(self, state: LeducState) -> jax.Array:
        """Return the seat that moves next: int32 []."""
        return jnp.asarray(ROUND.mover)[state.moves[state.round]]

    def legal(self, state: LeducState) -> jax.Array:
        """Return the legal actions (see `_legal`): bool [3]."""
        return legal_or_end(jnp.asarray(ROUND.next)[state.moves[state.round]] >= 0, self.done(state))

    def step(self, state: LeducState, action: jax.Array) -> tuple[LeducState, Reward]:
        """Fold, call or raise; the call that ends the first round shows the public card."""
        over = self.done(state)
        moves = jnp.asarray(ROUND.next)[state.moves[state.round], action]
        shown = jnp.asarray(ROUND.over & ~_FOLDED)[moves] & (state.round == 0)
        after = LeducState(state.cards, state.moves.at[state.round].set(moves), jnp.where(shown, 1, state.round))
        new = keep_if_done(over, state, after)
        gain = jnp.where(self.done(new) & ~over, self._won(new), 0.0).astype(jnp.float32)
        return new, Reward(jnp.float32(0), jnp.stack([gain, -gain]), jnp.zeros(2))

    def done(self, state: LeducState) -> jax.Array:
        """Return whether a player has folded or the second round is over: bool []."""
        return jnp.asarray(ROUND.over)[state.moves[state.round]]

    def chips(self, state: LeducState) -> jax.Array:
        """Return the chips that each player has put into the pot: int32 [2]."""
        return 1 + jnp.asarray(RAISES) @ jnp.asarray(_RAISED)[state.moves]

    def _won(self, state: LeducState) -> jax.Array:
        """Return the chips that the first player has won, negative if lost."""
        chips = self.chips(state)
        ranks = state.cards // len(SUITS)
        strength = jnp.where(ranks[:2] == ranks[2], len(RANKS), ranks[:2])
        folded = jnp.any(jnp.asarray(_FOLDED)[state.moves])
        return jnp.sign(jnp.where(folded, chips[0] - chips[1], strength[0] - strength[1])) * jnp.min(chips)
