"""Suits of Leduc poker mean nothing: the two cards of any rank can be exchanged."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.leduc.rules import RANKS, SUITS, Leduc, LeducState


@dataclasses.dataclass(frozen=True)
class LeducSymmetry:
    """Bit r of a symmetry's number says whether the cards of rank r are exchanged; no action changes."""

    game: Leduc

    @property
    def n_symmetries(self) -> int:
        """One for each choice of ranks to exchange."""
        return 2 ** len(RANKS)

    def apply(self, state: LeducState, i: jax.Array) -> LeducState:
        """The position with the suits exchanged as `i` (int[]) says."""
        exchanged = jnp.asarray(i) >> (state.cards // len(SUITS)) & 1
        return state._replace(cards=state.cards ^ exchanged)

    def map_action(self, action: jax.Array, i: jax.Array) -> jax.Array:
        """The same action: int32[]."""
        return jnp.asarray(action, jnp.int32)
