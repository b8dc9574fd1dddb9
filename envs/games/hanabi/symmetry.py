"""The permutations of the colours, for augmenting self-play: no rule of Hanabi tells colours apart."""

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
    """All orders of the colours: int32[C!, C]; row i says what colour each colour becomes; row 0 changes nothing."""
    return np.array(list(itertools.permutations(range(colors))), np.int32)


@dataclasses.dataclass(frozen=True)
class HanabiSymmetry:
    """C! symmetries; 0 changes nothing, and `step(apply(s, i), map_action(a, i)) == apply(step(s, a), i)` for all."""

    game: Hanabi

    @property
    def n_symmetries(self) -> int:
        """C!."""
        return math.factorial(self.game.colors)

    def apply(self, state: HanabiState, i: jax.Array) -> HanabiState:
        """The position with its colours renamed by permutation `i` (int[])."""
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
        """The action that does in the renamed position what `action` (int[...]) does in the original: int32[...]."""
        becomes = jnp.asarray(_permutations(self.game.colors))[i]
        move = self.game.decode(jnp.asarray(action))
        told = becomes[jnp.where(move.hint_color, move.value, 0)]
        return jnp.where(move.hint_color, action - move.value + told, action).astype(jnp.int32)

    def _mask(self, colors: jax.Array, becomes: jax.Array) -> jax.Array:
        bits = colors[..., None] >> jnp.arange(self.game.colors, dtype=jnp.uint8) & 1
        return jnp.sum(bits.astype(jnp.int32) << becomes, axis=-1).astype(jnp.uint8)

    def _card(self, card: jax.Array, becomes: jax.Array) -> jax.Array:
        ranks = self.game.ranks
        renamed = becomes[jnp.maximum(card, 0) // ranks] * ranks + card % ranks
        return jnp.where(card >= 0, renamed, -1).astype(card.dtype)
