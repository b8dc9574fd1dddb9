"""Permutations of the colors, which are interchangeable, for self-play augmentation."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.hanabi.rules import Hanabi, HanabiState


@functools.cache
def _permutations(colors: int) -> np.ndarray:
    """Return all permutations of the colors: int32 [C!, C].

    Row i maps each color to its image. Row 0 is the identity.
    """
    return np.array(list(itertools.permutations(range(colors))), np.int32)


@dataclasses.dataclass(frozen=True)
class HanabiSymmetry:
    """The C! symmetries of Hanabi.

    Symmetry 0 is the identity, and `step(apply(s, i), map_action(a, i)) == apply(step(s, a), i)` for all.
    """

    game: Hanabi

    @property
    def n_symmetries(self) -> int:
        """Number of symmetries: C!."""
        return math.factorial(self.game.colors)

    def apply(self, state: HanabiState, i: jax.Array) -> HanabiState:
        """Permute the colors of a position by permutation `i` (int [])."""
        becomes = jnp.asarray(_permutations(self.game.colors))[i]
        comes_from = jnp.argsort(becomes)
        return state._replace(
            deck=self._card(state.deck, becomes),
            hands=self._card(state.hands, becomes),
            colors=self._mask(state.colors, becomes),
            fireworks=state.fireworks[comes_from],
            discards=state.discards[comes_from],
            last=state.last._replace(
                action=jnp.where(state.last.action >= 0, self.map_action(state.last.action, i), -1),
                card=self._card(state.last.card, becomes),
            ),
        )

    def map_action(self, action: jax.Array, i: jax.Array) -> jax.Array:
        """Map actions (int [...]) to their equivalents under permutation `i`: int32 [...]."""
        becomes = jnp.asarray(_permutations(self.game.colors))[i]
        move = self.game.decode(jnp.asarray(action))
        image = becomes[jnp.where(move.hint_color, move.value, 0)]
        return jnp.where(move.hint_color, action - move.value + image, action).astype(jnp.int32)

    def _mask(self, colors: jax.Array, becomes: jax.Array) -> jax.Array:
        bits = colors[..., None] >> jnp.arange(self.game.colors, dtype=jnp.uint8) & 1
        return jnp.sum(bits.astype(jnp.int32) << becomes, axis=-1).astype(jnp.uint8)

    def _card(self, card: jax.Array, becomes: jax.Array) -> jax.Array:
        ranks = self.game.ranks
        renamed = becomes[jnp.maximum(card, 0) // ranks] * ranks + card % ranks
        return jnp.where(card >= 0, renamed, -1).astype(card.dtype)
