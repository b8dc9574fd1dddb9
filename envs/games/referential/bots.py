"""Optimal play of the referential game."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.referential.rules import SPEAKER, Referential, ReferentialState


@dataclasses.dataclass(frozen=True)
class OptimalBot:
    """A bot with a fixed code.

    The first cards have a message each, all others share the last one.
    """

    game: Referential

    def act(self, state: ReferentialState, key: jax.Array) -> jax.Array:
        """Return the message of the card, or the first card with the message: int32 []."""
        message = jnp.minimum(state.card, self.game.messages - 1)
        card = self.game.messages + jnp.maximum(state.message, 0)
        action = jnp.where(self.game.player(state) == SPEAKER, message, card)
        return jnp.where(state.over, 0, action).astype(jnp.int32)
