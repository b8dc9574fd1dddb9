"""Exchanges of the two suits of each rank, which never matter."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.leduc.rules import RANKS, SUITS, Leduc, LeducState


@dataclasses.dataclass(frozen=True)
class LeducSymmetry:
    """Symmetries of Leduc poker.

    Bit r of a symmetry's number says whether the cards of rank r are exchanged. Actions do not change.
    """

    game: Leduc

    @property
    def n_symmetries(self) -> int:
        """Number of symmetries: all subsets of ranks."""
        return 2 ** len(RANKS)

    def apply(self, state: LeducState, i: jax.Array) -> LeducState:
        """Exchange the suits of the ranks in the bits of `i` (int [])."""
        exchanged = jnp.asarray(i) >> (state.cards // len(SUITS)) & 1
        return state._replace(cards=state.cards ^ exchanged)

    def map_action(self, action: jax.Array, i: jax.Array) -> jax.Array:
        """Return the same action: int32 []."""
        return jnp.asarray(action, jnp.int32)
