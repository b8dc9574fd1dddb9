"""The referential game: a speaker sees a card, and a listener names it.

With `messages` > 0, the speaker first says one of them. With 0, only the listener moves. Players that know the card by
nothing but a choice of m messages name at most m of n cards correctly, so the best success rate is max(m, 1) / n. A
soft message (`env.message_tokens`) is no move of the game; its speaker is the seat in `speakers`.
"""

import dataclasses
import string
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs.games.game import Game, Reward, check_range, keep_if_done, legal_or_end

SPEAKER, LISTENER = 0, 1
MESSAGES, CARDS = string.digits, string.ascii_uppercase


class ReferentialState(NamedTuple):
    """State of a game.

    Attributes:
        card: int32 []. The card, which only the speaker sees.
        message: int32 []. The named message, -1 before it.
        over: bool []. Whether the listener has named a card.
        right: bool []. Whether it was the card of the speaker.
    """

    card: jax.Array
    message: jax.Array
    over: jax.Array
    right: jax.Array


@dataclasses.dataclass(frozen=True)
class Referential(Game):
    """A speaker and a listener, who share a reward of 1 for the right card.

    Attributes:
        cards: Number of cards, all equally likely.
        messages: Number of messages that the speaker can name; 0 skips its move.
    """

    cards: int = 16
    messages: int = 2

    name: ClassVar[str] = "referential"
    roles: ClassVar[tuple[str, ...]] = ("speaker", "listener")
    reward_levels: ClassVar[tuple[str, ...]] = ("team",)
    solvable: ClassVar[bool] = True
    speakers: ClassVar[tuple[int, ...]] = (-1, SPEAKER)
    n_players: ClassVar[int] = 2

    def __post_init__(self):
        check_range(self.name, "cards", self.cards, 2, len(CARDS))
        check_range(self.name, "messages", self.messages, 0, len(MESSAGES))

    @property
    def n_actions(self) -> int:
        """A: number of messages and cards."""
        return self.messages + self.cards

    @property
    def max_turns(self) -> int:
        """Maximum number of moves: the message, if any, and the card."""
        return 2 if self.messages else 1

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the messages, which are digits, then of the cards, which are letters."""
        return (*MESSAGES[: self.messages], *CARDS[: self.cards])

    def reset(self, key: jax.Array) -> ReferentialState:
        """Draw a card."""
        card = jax.random.randint(key, (), 0, self.cards, jnp.int32)
        return ReferentialState(card, jnp.int32(-1), jnp.bool_(False), jnp.bool_(False))

    def player(self, state: ReferentialState) -> jax.Array:
        """Return the seat that moves next: int32 []."""
        speaks = (state.message < 0) & (self.messages > 0)
        return jnp.where(speaks, SPEAKER, LISTENER).astype(jnp.int32)

    def legal(self, state: ReferentialState) -> jax.Array:
        """Return the messages for the speaker, the cards for the listener: bool [A]."""
        is_message = jnp.arange(self.n_actions) < self.messages
        return legal_or_end(is_message == (self.player(state) == SPEAKER), state.over)

    def step(self, state: ReferentialState, action: jax.Array) -> tuple[ReferentialState, Reward]:
        """Say a message, or name a card."""
        speaks = self.player(state) == SPEAKER
        right = ~speaks & (action - self.messages == state.card)
        message = jnp.where(speaks, action, state.message).astype(jnp.int32)
        new = ReferentialState(state.card, message, ~speaks, right)
        reward = jnp.where(right & ~state.over, 1.0, 0.0)
        return keep_if_done(state.over, state, new), Reward(reward, jnp.zeros(2), jnp.zeros(2))

    def done(self, state: ReferentialState) -> jax.Array:
        """Return whether a card was named: bool []."""
        return state.over

    def success(self, state: ReferentialState) -> jax.Array:
        """Return whether the right card was named: bool []."""
        return state.right
