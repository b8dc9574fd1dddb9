"""Packing: conversations of different lengths share the rows that the learner processes.

A packed row has room for `pack` samples of maximum length. Samples are placed first-fit in order of decreasing length.
A row with fewer than `pack` samples always has room for another one, so N samples need at most N / pack rows, and fewer
if their lengths differ. The number of rows is known only at run time, so the update loops over parts of the rows and
stops after the last used one. Samples that do not contribute to the loss are not packed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples

SLOTS = 2  # slots per row, as a multiple of `pack`; attention computes all of them, filled or not


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedRows:
    """R rows with S slots each.

    Attributes:
        table: int32 [R, S], index of the sample in each slot, -1 for an empty slot.
        starts: int32 [R, S], position in the row where the sample begins.
        answer_starts: int32 [R, S], position of its completion tokens among those of the row.
        room: Tokens per row.
        answer_room: Completion tokens per row.
    """

    table: jax.Array
    starts: jax.Array
    answer_starts: jax.Array
    room: int = dataclasses.field(metadata=dict(static=True))
    answer_room: int = dataclasses.field(metadata=dict(static=True))

    @property
    def filled(self) -> jax.Array:
        """Filled slots, bool [R, S]."""
        return self.table >= 0

    def used(self) -> jax.Array:
        """Return the number of rows that are not empty, int32 []; these come first."""
        return jnp.sum(jnp.any(self.filled, axis=1))

    def cut(self, start: jax.Array, n: int) -> PackedRows:
        """Return n rows, beginning with row `start`."""
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, n), self)

    def pick(self, tree: Any) -> Any:
        """Gather arrays [N, …] into slots [R·S, …]. Empty slots are undefined."""
        return jax.tree.map(lambda x: x[jnp.maximum(self.table.reshape(-1), 0)], tree)

    def put(self, tree: Any, values: Any) -> Any:
        """Scatter values of slots [R·S, …] into arrays [N, …]."""
        number = self.table.reshape(-1)

        def one(x, y):
            return x.at[jnp.where(number >= 0, number, len(x))].set(y, mode="drop")

        return jax.tree.map(one, tree, values)


def sizes(samples: Samples) -> jax.Array:
    """Return how many tokens of each row have to be processed, int32 [N].

    Tokens after the last position that predicts a completion token are not needed.
    """
    return jnp.max(jnp.where(samples.completion_of >= 0, samples.logits_index + 1, 0), axis=1)


def answer_sizes(samples: Samples) -> jax.Array:
    """Return the number of completion tokens of each row, int32 [N]."""
    return jnp.sum(samples.completion_of >= 0, axis=1)


def plan(samples: Samples, pack: int, wanted: jax.Array, multiple: int = 1) -> PackedRows:
    """Assign samples to packed rows, first-fit by decreasing length.

    Args:
        samples: The samples.
        pack: Number of samples of maximum length that fit into a row.
        wanted: bool [N], the samples to pack.
        multiple: The number of rows R is a multiple of this.
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
