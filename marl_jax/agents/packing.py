"""Packing: conversations of unequal length share the rows that the learner reads.

Packed rows are as long as `pack` of the longest samples, and a sample goes into the first that still has room for it,
long ones first. A row that holds fewer than `pack` samples always has room, so N samples never need more than N / pack
rows, and with unequal lengths they need fewer. How many is known only at run time: the update works through parts of
the rows and stops behind the last one that is used. Samples that are not wanted, such as those that do not count in
the loss, are not packed at all.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples

SLOTS = 2  # times `pack`: samples of a row at most; attention runs over all slots, filled or not


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedRows:
    """R rows with S slots each.

    table          int32 [R, S], the number of the sample in each slot, -1 for none
    starts         int32 [R, S], where in the row it begins
    answer_starts  int32 [R, S], where its answer begins among the answers of the row
    room           tokens of a row
    answer_room    tokens of answers of a row
    """

    table: jax.Array
    starts: jax.Array
    answer_starts: jax.Array
    room: int = dataclasses.field(metadata=dict(static=True))
    answer_room: int = dataclasses.field(metadata=dict(static=True))

    @property
    def filled(self) -> jax.Array:
        """bool [R, S]."""
        return self.table >= 0

    def used(self) -> jax.Array:
        """int32 []: rows with anything in them; they come first."""
        return jnp.sum(jnp.any(self.filled, axis=1))

    def cut(self, start: jax.Array, n: int) -> PackedRows:
        """The n rows from `start` on."""
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, n), self)

    def pick(self, tree: Any) -> Any:
        """Of arrays [N, …] what is in the slots, [R·S, …]; in empty slots anything."""
        return jax.tree.map(lambda x: x[jnp.maximum(self.table.reshape(-1), 0)], tree)

    def put(self, tree: Any, found: Any) -> Any:
        """Arrays [N, …] with what was found for the slots, [R·S, …], in its places."""
        number = self.table.reshape(-1)

        def one(x, y):
            return x.at[jnp.where(number >= 0, number, len(x))].set(y, mode="drop")

        return jax.tree.map(one, tree, found)


def sizes(samples: Samples) -> jax.Array:
    """int32 [N]: the tokens of each row that have to be read, up to the last whose state predicts something."""
    return jnp.max(jnp.where(samples.completion_of >= 0, samples.logits_index + 1, 0), axis=1)


def answer_sizes(samples: Samples) -> jax.Array:
    """int32 [N]: the answer tokens of each row, which stand without gaps from the first on."""
    return jnp.sum(samples.completion_of >= 0, axis=1)


def plan(samples: Samples, pack: int, wanted: jax.Array, multiple: int = 1) -> PackedRows:
    """Which sample goes where, first fit by falling length.

    wanted    bool [N], which samples to pack
    multiple  R is one of this
    """
    time, n = samples.tokens.shape[1], samples.n
    room, answer_room, slots = pack * time, pack * samples.width, SLOTS * pack
    rows = -(-n // (pack * multiple)) * multiple
    tokens, said = sizes(samples), answer_sizes(samples)

    def place(state, i):
        free, answers_free, taken = state
        fits = (free >= tokens[i]) & (answers_free >= said[i]) & (taken < slots)
        row = jnp.argmax(fits)
        spot = (jnp.where(wanted[i], row, rows), taken[row], room - free[row], answer_room - answers_free[row])
        used = jnp.where(wanted[i], jnp.array([tokens[i], said[i], -1]), 0)
        return tuple(x.at[row].add(-u) for x, u in zip(state, used, strict=True)), spot

    order = jnp.argsort(-tokens)
    state = tuple(jnp.full((rows,), x, jnp.int32) for x in (room, answer_room, 0))
    _, (row, slot, starts, answer_starts) = jax.lax.scan(place, state, order)
    table = lambda x, empty: jnp.full((rows, slots), empty, jnp.int32).at[row, slot].set(x, mode="drop")  # noqa: E731
    return PackedRows(table(order, -1), table(starts, 0), table(answer_starts, 0), room, answer_room)
