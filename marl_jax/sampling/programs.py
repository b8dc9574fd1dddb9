"""The compiled programs of one engine: what runs on the device between two looks from the host.

All of them take the weights as an argument, so new weights need no new program. They are compiled when first used.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from marl_jax.devices import compiler
from marl_jax.sampling import choice, decode
from marl_jax.sampling.settings import row_keys
from models import cache as kv
from models import lora
from models.cache import Cache
from models.model import Model
from models.sharding import constrain


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
    """What changes with an update: parameters and adapters laid out for decoding, and the adapters' scale [n]."""

    params: dict
    adapters: tuple | None
    scale: jax.Array | None

    def lora(self, ids: jax.Array) -> lora.Lora | None:
        return None if self.adapters is None else lora.Lora(self.adapters, self.scale, ids)


def last(hidden: jax.Array, lengths: jax.Array) -> jax.Array:
    """hidden [B, T, D] at each row's last real token -> [B, D]."""
    where = jnp.maximum(lengths - 1, 0)[:, None, None]
    return jnp.take_along_axis(hidden, where, axis=1)[:, 0]


def spread(tree):
    """Rows over the data axes, heads of a cache over the tensor axis: the same in every program, so none recompiles."""
    return jax.tree.map(lambda x: constrain(x, "BSKH" if x.ndim == 4 else "B" + "_" * (x.ndim - 1)), tree)


class Programs:
    """What an `Engine` and its `Batcher` run."""

    def __init__(self, model: Model, dtype, mesh: jax.sharding.Mesh | None):
        self.model, self.dtype, self.mesh = model, dtype, mesh

    @staticmethod
    def compiler_options() -> dict | None:
        return compiler.options()

    def jit(self, function, **kwargs):
        """Compiles under this engine's mesh and options."""
        jitted = jax.jit(function, compiler_options=self.compiler_options(), **kwargs)
        if self.mesh is None:
            return jitted

        def under_mesh(*args):
            with jax.set_mesh(self.mesh):
                return jitted(*args)

        under_mesh._cache_size = jitted._cache_size
        return under_mesh

    # Conversations

    @functools.cached_property
    def _prefill(self):
        def run(weights, tokens, lengths, ids, slots):
            hidden, cache = self.model.forward(
                weights.params, tokens, lengths=lengths, new_cache=slots, adapters=weights.lora(ids), dtype=self.dtype
            )
            return spread((cache, last(hidden, lengths)))

        return self.jit(run, static_argnums=4)

    @functools.cached_property
    def _append(self):
        def run(weights, cache, before, tokens, lengths, ids):
            hidden, cache = self.model.forward(
                weights.params, tokens, lengths=lengths, cache=cache, adapters=weights.lora(ids), dtype=self.dtype
            )
            return spread((cache, jnp.where((lengths > 0)[:, None], last(hidden, lengths), before)))

        return self.jit(run, donate_argnums=1)

    @functools.cached_property
    def _take(self):
        return self.jit(lambda arrays, source: spread(jax.tree.map(lambda x: x[source], arrays)))

    @functools.cached_property
    def _share(self):
        def run(cache, hidden, source, slots):
            room = ((0, 0), (0, slots - cache.slots), (0, 0), (0, 0))
            layers = jax.tree.map(lambda x: jnp.pad(x, room)[source], cache.layers)
            return spread((Cache(layers, cache.lengths[source]), hidden[source]))

        return self.jit(run, static_argnums=3)

    @functools.cached_property
    def _begin(self):
        def run(weights, hidden, cache, settings):
            return spread(decode.begin(self.model, weights.params, hidden, cache, settings))

        return self.jit(run, donate_argnums=2)

    @functools.cached_property
    def _chunk(self):
        def run(weights, rows, settings, ids, steps):
            rows, *written = decode.chunk(
                self.model, weights.params, rows, settings, steps, weights.lora(ids), self.dtype
            )
            return spread(rows), *written

        return self.jit(run, static_argnums=4, donate_argnums=1)

    @functools.cached_property
    def _choose(self):
        def run(weights, hidden, cache, choices, legal, temperature, seeds, ids):
            return spread(choice.choose(
                self.model, weights.params, hidden, cache.lengths, choices, legal, temperature, row_keys(seeds),
                cache=cache, adapters=weights.lora(ids), dtype=self.dtype,
            ))

        return self.jit(run, donate_argnums=2)

    @functools.cached_property
    def _put_adapter(self):
        def run(adapters, new, which):
            new = lora.unstack(new, len(adapters), self.dtype)
            return jax.tree.map(lambda old, one: old.at[which].set(one), adapters, new)

        return self.jit(run)

    # Continuous batching

    @functools.cached_property
    def _idle(self):
        def run(rows, slots):
            zeros = jnp.zeros((rows,), jnp.int32)
            cache = kv.empty(self.model.cfg, rows, slots, self.dtype)
            return spread(decode.Rows(cache, zeros, zeros, zeros + decode.LENGTH))

        return self.jit(run, static_argnums=(0, 1))

    @functools.cached_property
    def _admission(self):
        def run(weights, rows, tokens, lengths, where, ids, settings):
            hidden, fresh = self.model.forward(
                weights.params, tokens, lengths=lengths, new_cache=tokens.shape[1], adapters=weights.lora(ids),
                dtype=self.dtype,
            )
            begun, token, logp = decode.begin(self.model, weights.params, last(hidden, lengths), fresh, settings)

            def put(old, new):
                """Behind a prompt's end stays what the row's last tenant left: it is never attended to."""
                at = (where, slice(new.shape[1])) if new.ndim == 4 else where
                return old.at[at].set(new, mode="drop")

            seen = rows.seen if begun.seen is None else put(rows.seen, begun.seen)
            rows, begun = (dataclasses.replace(x, seen=None) for x in (rows, begun))
            rows = dataclasses.replace(jax.tree.map(put, rows, begun), seen=seen)
            return spread(rows), (token[:, None], logp[:, None], begun.written, begun.finish)

        return self.jit(run, donate_argnums=1)

    @functools.cached_property
    def _wipe(self):
        def run(rows, which):
            """Zeros in the cache of some rows: what is masked counts with weight 0, and 0 · nan would spread."""
            clear = lambda x: jnp.where(which[:, None, None, None], 0, x)  # noqa: E731
            cache = dataclasses.replace(rows.cache, layers=jax.tree.map(clear, rows.cache.layers))
            return spread(dataclasses.replace(rows, cache=cache))

        return self.jit(run, donate_argnums=0)

    @functools.cached_property
    def _move(self):
        def run(rows, source):
            moved = jax.tree.map(lambda x: x[jnp.maximum(source, 0)], rows)
            finish = jnp.where(source >= 0, moved.finish, decode.LENGTH)
            return spread(dataclasses.replace(moved, finish=finish))

        return self.jit(run)
