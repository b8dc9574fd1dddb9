"""The compiled programs of an engine.

All programs take the weights as an argument, so new weights need no recompilation. They are compiled on first use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Generic

import jax
import jax.numpy as jnp

from marl_jax.devices.aot import compiler_options as options
from marl_jax.sampling import choice, decode, draw
from marl_jax.sampling.batch_settings import row_keys
from marl_jax.sampling.decode import Array
from marl_jax.sampling.images import ImageInputs
from models import cache as kv
from models import lora
from models.cache import Cache
from models.model import Model
from models.sharding import constrain


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights that an update replaces.

    Attributes:
        params: Parameters, laid out for decoding.
        adapters: Adapters, laid out for decoding, or None.
        scale: float32 [n], scales of the adapters, or None.
    """

    params: dict
    adapters: tuple | None
    scale: jax.Array | None

    def lora(self, ids: jax.Array) -> lora.Lora | None:
        """Return the adapters of rows with these ids, int32 [B]; None without LoRA."""
        if self.adapters is None:
            return None
        assert self.scale is not None
        return lora.Lora(self.adapters, self.scale, ids)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lines(Generic[Array]):
    """Lines of C tokens to be prefilled into pages.

    A long context may have several lines.

    Attributes:
        tokens: int32 [B, C], right-padded.
        starts: int32 [B], position of each line's first token.
        lengths: int32 [B], tokens per line; 0 for padding.
        table: int32 [B, M], pages of the context.
        adapter_ids: int32 [B].
        images: The images of all contexts; None for a model of text.
    """

    tokens: Array
    starts: Array
    lengths: Array
    table: Array
    adapter_ids: Array
    images: ImageInputs | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowBatch(Generic[Array]):
    """Rows that decode together.

    Attributes:
        token: int32 [B], the last token, not yet in the cache.
        lengths: int32 [B], tokens in the cache.
        budget: int32 [B], tokens that may still be generated; 0 for padding.
        seeds: uint32 [B].
        temperature: float32 [B].
        stop_ids: int32 [B, n], padded with −1.
        adapter_ids: int32 [B].
        table: int32 [B, M], pages of each row.
        filters: See `decode.Settings`.
        allowed: See `decode.Settings`.
        offset: int32 [B], next position minus the number of tokens, for a model with mRoPE; otherwise None.
    """

    token: Array
    lengths: Array
    budget: Array
    seeds: Array
    temperature: Array
    stop_ids: Array
    adapter_ids: Array
    table: Array
    filters: decode.Filters[Array] | None = None
    allowed: Array | None = None
    offset: Array | None = None


def last(hidden: jax.Array, lengths: jax.Array) -> jax.Array:
    """Select the hidden state of each row's last token: [B, T, D] -> [B, D]."""
    where = jnp.maximum(lengths - 1, 0)[:, None, None]
    return jnp.take_along_axis(hidden, where, axis=1)[:, 0]


def spread(tree):
    """Constrain rows to the data axes and heads of a cache to the tensor axis.

    All programs use the same sharding, so none is recompiled.
    """
    return jax.tree.map(lambda x: constrain(x, "BSKH" if x.ndim == 4 else "B" + "_" * (x.ndim - 1)), tree)


class Programs:
    """Programs of an `Engine` and its `Batcher`."""

    def __init__(self, model: Model, dtype, mesh: jax.sharding.Mesh | None):
        self.model, self.dtype, self.mesh = model, dtype, mesh

    @staticmethod
    def compiler_options() -> dict | None:
        """Return the compiler options of this machine."""
        return options()

    def jit(self, function, **kwargs):
        """Jit a function under the engine's mesh and compiler options."""
        jitted = jax.jit(function, compiler_options=self.compiler_options(), **kwargs)
        if self.mesh is None:
            return jitted

        def under_mesh(*args):
            with jax.set_mesh(self.mesh):
                return jitted(*args)

        def lower(*args):
            with jax.set_mesh(self.mesh):
                return jitted.lower(*args)

        under_mesh._cache_size = jitted._cache_size  # pyright: ignore[reportAttributeAccessIssue]  # not in JAX's stubs
        under_mesh.lower = lower
        return under_mesh

    def page_bytes(self, size: int) -> int:
        """Return the bytes of a page of `size` tokens on a device."""
        with contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh):
            return kv.page_nbytes(self.model.cfg, size, self.dtype)

    # Conversations

    @functools.cached_property
    def _prefill(self):
        """Prefill prompts into a new cache."""

        def run(weights, tokens, lengths, ids, slots):
            hidden, cache = self.model.forward(
                weights.params, tokens, lengths=lengths, new_cache=slots, adapters=weights.lora(ids), dtype=self.dtype
            )
            return spread((cache, last(hidden, lengths)))

        return self.jit(run, static_argnums=4)

    @functools.cached_property
    def _append(self):
        """Prefill more tokens into a cache."""

        def run(weights, cache, before, tokens, lengths, ids):
            hidden, cache = self.model.forward(
                weights.params, tokens, lengths=lengths, cache=cache, adapters=weights.lora(ids), dtype=self.dtype
            )
            return spread((cache, jnp.where((lengths > 0)[:, None], last(hidden, lengths), before)))

        return self.jit(run, donate_argnums=1)

    @functools.cached_property
    def _take(self):
        """Gather rows of a conversation."""
        return self.jit(lambda arrays, source: spread(jax.tree.map(lambda x: x[source], arrays)))

    @functools.cached_property
    def _share(self):
        """Copy rows of a prefix into a larger cache."""

        def run(cache, hidden, source, slots):
            room = ((0, 0), (0, slots - cache.slots), (0, 0), (0, 0))
            layers = jax.tree.map(lambda x: jnp.pad(x, room)[source], cache.layers)
            return spread((Cache(layers, cache.lengths[source]), hidden[source]))

        return self.jit(run, static_argnums=3)

    @functools.cached_property
    def _begin(self):
        """Sample the first token of completions."""

        def run(weights, hidden, cache, settings):
            return spread(decode.begin(self.model, weights.params, hidden, cache, settings))

        return self.jit(run, donate_argnums=2)

    @functools.cached_property
    def _chunk(self):
        """Decode a chunk of a conversation."""

        def run(weights, rows, settings, ids, steps):
            rows, *written = decode.chunk(
                self.model, weights.params, rows, settings, steps, weights.lora(ids), self.dtype
            )
            return spread(rows), *written

        return self.jit(run, static_argnums=4, donate_argnums=1)

    @functools.cached_property
    def _choose(self):
        """Choose one legal action per row."""

        def run(weights, hidden, cache, choices, legal, temperature, seeds, ids):
            return spread(
                choice.choose(
                    self.model,
                    weights.params,
                    hidden,
                    cache.lengths,
                    choices,
                    legal,
                    temperature,
                    row_keys(seeds),
                    cache=cache,
                    adapters=weights.lora(ids),
                    dtype=self.dtype,
                )
            )

        return self.jit(run, donate_argnums=2)

    @functools.cached_property
    def _top_logprobs(self):
        """Compute the most likely tokens at every position."""

        def run(weights, tokens, lengths, ids, settings, k):
            """Return the k most likely tokens and their log-probs, both [B, T, k]."""
            hidden, _ = self.model.forward(
                weights.params, tokens, lengths=lengths, adapters=weights.lora(ids), dtype=self.dtype
            )

            def one(x):  # hidden [B, D] of one position, since logits of all positions would be large
                logits = draw.scaled(self.model.logits(weights.params, x), settings.temperature)
                if settings.filters is not None:
                    logits = draw.keep_top_p(draw.keep_top_k(logits, settings.filters.top_k), settings.filters.top_p)
                values, best = jax.lax.top_k(logits, k)
                return best, values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)

            return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), jax.lax.map(one, jnp.moveaxis(hidden, 1, 0)))

        return self.jit(run, static_argnums=5)

    @functools.cached_property
    def _logprobs(self):
        """Compute the log-probs of the tokens of full rows."""

        def run(weights, tokens, lengths, ids):
            """Return the log-prob of every token after the first, float32 [B, T - 1]."""
            hidden, _ = self.model.forward(
                weights.params, tokens, lengths=lengths, adapters=weights.lora(ids), dtype=self.dtype
            )

            def one(row):  # hidden [B, D] of one position and the next token [B]
                x, token = row
                logits = self.model.logits(weights.params, x).astype(jnp.float32)
                return jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=1)[:, 0]

            rows = jnp.moveaxis(hidden, 1, 0)[:-1], jnp.moveaxis(tokens, 1, 0)[1:]
            return jnp.moveaxis(jax.lax.map(one, rows), 0, 1)

        return self.jit(run)

    @functools.cached_property
    def _put_adapter(self):
        """Replace one adapter."""

        def run(adapters, new, which):
            new = lora.unstack(new, len(adapters), self.dtype)
            return jax.tree.map(lambda old, one: old.at[which].set(one), adapters, new)

        return self.jit(run)

    # Continuous batching: the device holds only pages, and the state of rows is passed with every call

    @functools.cached_property
    def _empty_pages(self):
        """Allocate the pages of a batcher."""

        def run(pages, size):
            return spread(kv.empty_pages(self.model.cfg, pages, size, self.dtype))

        return self.jit(run, static_argnums=(0, 1))

    @functools.cached_property
    def _read_lines(self):
        """Prefill lines into pages."""

        def run(weights, pages, lines: Lines[jax.Array]):
            images, vocab = lines.images, self.model.cfg.vocab_size
            seen = {} if images is None else images.arguments(lines.tokens, vocab)
            _, cache = self.model.forward(
                weights.params,
                lines.tokens,
                lengths=lines.lengths,
                cache=Cache(pages, lines.starts, lines.table),
                adapters=weights.lora(lines.adapter_ids),
                dtype=self.dtype,
                **seen,
            )
            assert cache is not None
            return spread(cache.layers)

        return self.jit(run, donate_argnums=1)

    @functools.cached_property
    def _decode_rows(self):
        """Decode a chunk of a batcher's rows."""

        def run(weights, pages, rows: RowBatch[jax.Array], steps):
            zeros, filters = jnp.zeros_like(rows.token), rows.filters
            state = decode.Rows(
                Cache(pages, rows.lengths, rows.table, rows.offset),
                rows.token,
                zeros,
                jnp.where(rows.budget > 0, decode.GOING, decode.LENGTH).astype(jnp.int32),
                None if filters is None else filters.seen,
            )
            keys = row_keys(rows.seeds)
            settings = decode.Settings(keys, rows.temperature, rows.stop_ids, rows.budget, filters, rows.allowed)
            state, tokens, logps, taken = decode.chunk(
                self.model, weights.params, spread(state), settings, steps, weights.lora(rows.adapter_ids), self.dtype
            )
            return spread(state.cache.layers), (tokens, logps, state.written, state.finish, taken)

        return self.jit(run, static_argnums=3, donate_argnums=1)

    @functools.cached_property
    def _copy_pages(self):
        """Copy pages."""

        def run(pages, source, target):
            """Copy page source[d, i] to page target[d, i] in part d, both int32 [D, n].

            Indices outside the part are ignored.
            """

            def one(x, source, target):
                # The barrier prevents fusing the read with the write, which would copy all pages.
                return x.at[target].set(jax.lax.optimization_barrier(x[source]), mode="drop")

            return spread(jax.tree.map(lambda x: _in_parts(one, x, source, target), pages))

        return self.jit(run, donate_argnums=0)

    @functools.cached_property
    def _wipe_pages(self):
        """Clear pages."""

        def run(pages, which):
            """Set pages int32 [D, n] of each part to zero.

            Masked positions have weight 0, and 0 · NaN would spread.
            """

            def one(x, which):
                return x.at[which].set(0, mode="drop")

            return spread(jax.tree.map(lambda x: _in_parts(one, x, which), pages))

        return self.jit(run, donate_argnums=0)


def _in_parts(function, pages, *indices):
    """Apply a function of pages and page indices to each of D parts."""
    split = pages.reshape(len(indices[0]), -1, *pages.shape[1:])
    return jax.vmap(function)(split, *indices).reshape(pages.shape)
