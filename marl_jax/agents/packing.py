"""Packing: samples of unequal length share the rows that the learner reads.

Rows are as long as `pack` of the longest samples, and a sample goes into the first row that still has room for it, long
ones first. A row that holds fewer than `pack` samples always has room, so N samples never need more than N / pack rows,
and with unequal lengths they need fewer. How many is known only at run time: the update works through parts of the
rows and stops behind the last one that is used. Samples that teach nothing are not packed at all.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples

SLOTS = 2  # times `pack`: samples of a row at most; attention runs over all slots, filled or not


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
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

    def cut(self, start: jax.Array, n: int) -> Rows:
        """The n rows from `start` on."""
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, n), self)


def plan(samples: Samples, pack: int, skip: int = 0, multiple: int = 1) -> Rows:
    """Which sample goes where, first fit by falling length; `skip` tokens in front of each are read elsewhere.

    multiple  R is one of this
    """
    time, n = samples.tokens.shape[1] - skip, samples.n
    room, answer_room, slots = pack * time, pack * samples.width, SLOTS * pack
    rows = -(-n // (pack * multiple)) * multiple
    sizes = samples.prompt_lengths - skip + samples.answer_lengths - 1
    counts = samples.weights > 0

    def place(state, i):
        free, answers_free, taken = state
        fits = (free >= sizes[i]) & (answers_free >= samples.answer_lengths[i]) & (taken < slots)
        row = jnp.argmax(fits)
        spot = (jnp.where(counts[i], row, rows), taken[row], room - free[row], answer_room - answers_free[row])
        used = jnp.where(counts[i], jnp.array([sizes[i], samples.answer_lengths[i], -1]), 0)
        return tuple(x.at[row].add(-u) for x, u in zip(state, used, strict=True)), spot

    order = jnp.argsort(-sizes)
    state = tuple(jnp.full((rows,), x, jnp.int32) for x in (room, answer_room, 0))
    _, (row, slot, starts, answer_starts) = jax.lax.scan(place, state, order)
    spread = lambda x, empty: jnp.full((rows, slots), empty, jnp.int32).at[row, slot].set(x, mode="drop")  # noqa: E731
    return Rows(spread(order, -1), spread(starts, 0), spread(answer_starts, 0), room, answer_room)
