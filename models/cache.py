"""The paged KV cache: keys and values of each layer, and one length per row.

The tokens of a row are stored in order in the pages that its line of a table lists, so rows of any length share one
pool of pages. Where shapes are fixed, each row has a single page that is long enough, and there is no table.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from models import tpu_attention
from models.config import ModelConfig
from models.sharding import num_shards


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The keys and values of a batch of rows.

    Attributes:
        layers: One `(k, v)` per layer, each [P, S, K, H]: P pages of S slots. On TPUs, a cache with a table has one
            `(kv,)` per layer instead, [P, S, 2K', H'], see `models.tpu_attention`.
        lengths: int32 [B], number of tokens of each row. Later slots are never attended to.
        table: int32 [B, M], the pages of each row: the token at position s is in slot s % S of page table[b, s // S].
            None: row b has page b only. On a mesh see `pick`.
        offset: int32 [B], the position of the next token of each row minus the number of its tokens. It differs from
            zero after images with mRoPE, whose tokens share positions. None: zero.
    """

    layers: tuple[tuple[jax.Array, ...], ...]
    lengths: jax.Array
    table: jax.Array | None = None
    offset: jax.Array | None = None

    @property
    def slots(self) -> int:
        """Maximum number of tokens per row."""
        return self.layers[0][0].shape[1] * (1 if self.table is None else self.table.shape[1])

    @property
    def combined(self) -> bool:
        """Whether the keys and values of a layer share one array."""
        return len(self.layers[0]) == 1


def empty(cfg: ModelConfig, batch: int, slots: int, dtype=jnp.bfloat16) -> Cache:
    """Return an empty cache for `batch` rows."""
    shape = (batch, slots, cfg.n_kv_heads, cfg.head_dim)
    layers = tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(cfg.n_layers))
    return Cache(layers, jnp.zeros((batch,), jnp.int32))


def nbytes(cfg: ModelConfig, batch: int, slots: int, dtype=jnp.bfloat16) -> int:
    """Return the size in bytes of a cache of this shape."""
    return 2 * cfg.n_layers * batch * slots * cfg.n_kv_heads * cfg.head_dim * jnp.dtype(dtype).itemsize


def empty_pages(cfg: ModelConfig, pages: int, size: int, dtype=jnp.bfloat16) -> tuple:
    """Return the layers of an empty cache of `pages` pages with `size` slots each.

    The layout is that of the platform of the mesh in scope.
    """
    if not tpu_attention.supported(cfg.n_kv_heads):
        return empty(cfg, pages, size, dtype).layers
    shape = pages, *tpu_attention.page_shape(size, cfg.n_kv_heads, cfg.head_dim)
    return tuple((jnp.zeros(shape, dtype),) for _ in range(cfg.n_layers))


def page_nbytes(cfg: ModelConfig, size: int, dtype=jnp.bfloat16) -> int:
    """Return the bytes of one page in all layers on one device.

    The tensor axis of the mesh in scope splits the heads over devices.
    """
    arrays = jax.tree.leaves(jax.eval_shape(lambda: empty_pages(cfg, 1, size, dtype)))
    return sum(x.size * x.dtype.itemsize // num_shards("K", x.shape[2]) for x in arrays)


def write(layer, k: jax.Array, v: jax.Array, starts: jax.Array, lengths: jax.Array, table: jax.Array | None = None):
    """Append new keys and values to their rows; padding is dropped.

    Args:
        layer: The layer's part of a `Cache`.
        k: [B, T, K, H].
        v: [B, T, K, H].
        starts: int32 [B], first position to write.
        lengths: int32 [B], number of real tokens among the T new ones.
        table: int32 [B, M], see `Cache`. None: one page per row.
    """
    batch, time = k.shape[:2]
    total, size = layer[0].shape[:2]
    offsets = jnp.arange(time)[None]
    at = starts[:, None] + offsets
    # Padding is written out of bounds, each token to a different slot, so that all indices are unique.
    if table is None:
        page = jnp.arange(batch)[:, None]
        slot = at + jnp.where(offsets < lengths[:, None], 0, size)
    else:
        page = jnp.take_along_axis(table, jnp.minimum(at // size, table.shape[1] - 1), axis=1)
        real = (offsets < lengths[:, None]) & (at < table.shape[1] * size)
        slot = jnp.where(real, at % size, size + jnp.arange(batch * time).reshape(batch, time))

    def one(old, new, page, slot):
        return old.at[page, slot].set(new.astype(old.dtype), mode="drop", unique_indices=True)

    news = (k, v) if len(layer) == 2 else (tpu_attention.combine(k, v, *layer[0].shape[2:]),)
    parts = 1 if table is None else num_shards("B", batch)
    if parts == 1:
        return tuple(one(old, new, page, slot) for old, new in zip(layer, news, strict=True))
    page = _local(page, parts, total)

    def on_each(old, new):
        after = jax.vmap(one)(*(_split(x, parts) for x in (old, new, page, slot)))
        return after.reshape(old.shape)

    return tuple(on_each(old, new) for old, new in zip(layer, news, strict=True))


def pick(layer, batch: int, table: jax.Array | None):
    """Return a copy of the keys and values of some rows.

    Args:
        layer: The layer's part of a `Cache`.
        batch: B.
        table: int32 [B, M], or None for all pages, one per row. If a mesh splits the batch into D shards, it splits the
            pages in the same way: shard d of the rows has pages d·P/D to (d + 1)·P/D - 1, so no data is moved between
            devices. Pages of other shards are read as NaN.

    Returns:
        Keys and values, each [B, M·S, K, H].
    """
    if table is None:
        return layer
    parts = num_shards("B", batch)

    def one(x, table):
        pages = x.at[table].get(mode="fill", fill_value=jnp.nan)
        return pages.reshape(table.shape[0], -1, *x.shape[2:])

    if parts == 1:
        return tuple(one(x, table) for x in layer)
    local = _split(_local(table, parts, len(layer[0])), parts)
    return tuple(jax.vmap(one)(_split(x, parts), local).reshape(batch, -1, *x.shape[2:]) for x in layer)


def _split(x, parts: int):
    """Split the first axis into `parts`."""
    return x.reshape(parts, -1, *x.shape[1:])


def _local(pages, parts: int, total: int):
    """Return page numbers relative to the row's shard, out of bounds for others."""
    if total % parts:
        raise ValueError(
            f"the cache has {total} pages, but must have a multiple of {parts}, the number of shards of the batch"
        )
    own = total // parts
    part = jnp.arange(len(pages)) // (len(pages) // parts)
    local = pages - own * part.reshape(-1, *(1,) * (pages.ndim - 1))
    return jnp.where((local >= 0) & (local < own), local, own)


def take(cache: Cache, rows: jax.Array) -> Cache:
    """Return a copy of the cache with only the rows `rows`, int32 [B].

    Use it to sample several completions and keep the original cache. See `pick` about meshes.
    """
    table = rows[:, None] if cache.table is None else cache.table[rows]
    layers = tuple(pick(layer, len(rows), table) for layer in cache.layers)
    return Cache(layers, cache.lengths[rows], offset=None if cache.offset is None else cache.offset[rows])


def restart(cache: Cache, where: jax.Array) -> Cache:
    """Return the cache with the rows marked in `where`, bool [B], emptied."""
    offset = None if cache.offset is None else jnp.where(where, 0, cache.offset)
    return dataclasses.replace(cache, lengths=jnp.where(where, 0, cache.lengths), offset=offset)


def repeat(cache: Cache, times: int) -> Cache:
    """Return the cache with each row repeated `times` times.

    Row b becomes rows b·times to b·times + times - 1, for example for K samples of a prompt that was prefilled once.
    """
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), cache)


def broadcast(cache: Cache, batch: int, slots: int) -> Cache:
    """Return a one-row cache copied to every row of a batch, with `slots` slots."""

    def one(x):
        room = jnp.zeros((batch, slots - x.shape[1], *x.shape[2:]), x.dtype)
        return jnp.concatenate([jnp.broadcast_to(x, (batch, *x.shape[1:])), room], axis=1)

    layers = tuple((one(k), one(v)) for k, v in cache.layers)
    offset = None if cache.offset is None else jnp.broadcast_to(cache.offset, (batch,))
    return Cache(layers, jnp.broadcast_to(cache.lengths, (batch,)), offset=offset)
