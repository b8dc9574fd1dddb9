"""The key/value cache: per layer, keys and values apart, in pages; one length per row.

A row's tokens lie in the pages that its line of a table names, in order, so that rows of any length share one pool and
hold what they need. Where shapes are fixed, a row has one page that is long enough, and there is no table.
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
    """What a batch of rows has read so far.

    layers   one `(k, v)` per layer, each [P, S, K, H]: P pages of S slots. With a table, on TPUs: one `(kv,)` per
             layer, [P, S, 2K', H'], see `models.tpu_attention`
    lengths  int32 [B], how many tokens a row has; what lies beyond is never attended to
    table    int32 [B, M], the pages of each row: its token at position s is in slot s % S of page table[b, s // S].
             None: row b has page b alone. On a mesh see `pick`
    """

    layers: tuple[tuple[jax.Array, ...], ...]
    lengths: jax.Array
    table: jax.Array | None = None

    @property
    def slots(self) -> int:
        """Tokens that a row can have."""
        return self.layers[0][0].shape[1] * (1 if self.table is None else self.table.shape[1])

    @property
    def combined(self) -> bool:
        """Whether keys and values of a layer are in one array."""
        return len(self.layers[0]) == 1


def empty(cfg: ModelConfig, batch: int, slots: int, dtype=jnp.bfloat16) -> Cache:
    """A cache for `batch` rows in which nothing has been read."""
    shape = (batch, slots, cfg.n_kv_heads, cfg.head_dim)
    layers = tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(cfg.n_layers))
    return Cache(layers, jnp.zeros((batch,), jnp.int32))


def nbytes(cfg: ModelConfig, batch: int, slots: int, dtype=jnp.bfloat16) -> int:
    """Bytes that a cache of this shape holds."""
    return 2 * cfg.n_layers * batch * slots * cfg.n_kv_heads * cfg.head_dim * jnp.dtype(dtype).itemsize


def empty_pages(cfg: ModelConfig, pages: int, size: int, dtype=jnp.bfloat16) -> tuple:
    """The layers of a cache with this many pages of `size` slots, laid out for the platform of the mesh in scope."""
    if not tpu_attention.supported(cfg.n_kv_heads):
        return empty(cfg, pages, size, dtype).layers
    shape = pages, *tpu_attention.page_shape(size, cfg.n_kv_heads, cfg.head_dim)
    return tuple((jnp.zeros(shape, dtype),) for _ in range(cfg.n_layers))


def page_nbytes(cfg: ModelConfig, size: int, dtype=jnp.bfloat16) -> int:
    """Bytes that a page of `empty_pages` has in all layers, on each device of the tensor axis of the mesh in scope."""
    arrays = jax.tree.leaves(jax.eval_shape(lambda: empty_pages(cfg, 1, size, dtype)))
    return sum(x.size * x.dtype.itemsize // num_shards("K", x.shape[2]) for x in arrays)


def write(layer, k: jax.Array, v: jax.Array, starts: jax.Array, lengths: jax.Array, table: jax.Array | None = None):
    """Puts new keys and values [B, T, K, H] behind what their rows have; padding is dropped.

    starts   int32 [B], first position to write
    lengths  int32 [B], how many of the T new tokens are real
    table    int32 [B, M], see `Cache`; None: one page per row
    """
    batch, time = k.shape[:2]
    total, size = layer[0].shape[:2]
    offsets = jnp.arange(time)[None]
    at = starts[:, None] + offsets
    # Padding goes out of bounds, each token to a place of its own, so that the indices are as unique as we say.
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
    """The keys and values of rows, [B, M·S, K, H] each, copied.

    table  int32 [B, M], or None for all pages, one per row. Where a mesh splits the batch into D parts, the pages are
           split the same way: part d of the rows has pages d·P/D … (d + 1)·P/D − 1, so that nothing travels; pages of
           other parts are read as NaN.
    """
    if table is None:
        return layer
    parts = num_shards("B", batch)

    def one(x, table):
        found = x.at[table].get(mode="fill", fill_value=jnp.nan)
        return found.reshape(table.shape[0], -1, *x.shape[2:])

    if parts == 1:
        return tuple(one(x, table) for x in layer)
    local = _split(_local(table, parts, len(layer[0])), parts)
    return tuple(jax.vmap(one)(_split(x, parts), local).reshape(batch, -1, *x.shape[2:]) for x in layer)


def _split(x, parts: int):
    return x.reshape(parts, -1, *x.shape[1:])


def _local(pages, parts: int, total: int):
    """Page numbers [B, …] as counted inside the part of their row; those of other parts are out of bounds."""
    if total % parts:
        raise ValueError(f"the cache has {total} pages, not a multiple of the {parts} parts of the batch")
    own = total // parts
    part = jnp.arange(len(pages)) // (len(pages) // parts)
    local = pages - own * part.reshape(-1, *(1,) * (pages.ndim - 1))
    return jnp.where((local >= 0) & (local < own), local, own)


def take(cache: Cache, rows: jax.Array) -> Cache:
    """A cache of the rows `rows` int32 [B] only, copied (see `pick`): to try several answers and keep the cache."""
    table = rows[:, None] if cache.table is None else cache.table[rows]
    return Cache(tuple(pick(layer, len(rows), table) for layer in cache.layers), cache.lengths[rows])


def restart(cache: Cache, where: jax.Array) -> Cache:
    """The cache with the rows marked in `where` bool [B] forgotten: their next token is their first."""
    return dataclasses.replace(cache, lengths=jnp.where(where, 0, cache.lengths))


def repeat(cache: Cache, times: int) -> Cache:
    """Row b becomes rows b·times … b·times + times − 1: K samples of a prompt that was read once."""
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), cache)


def broadcast(cache: Cache, batch: int, slots: int) -> Cache:
    """A one-row cache (the rules of a game) given to every row of a batch, with room to grow to `slots`."""

    def one(x):
        room = jnp.zeros((batch, slots - x.shape[1], *x.shape[2:]), x.dtype)
        return jnp.concatenate([jnp.broadcast_to(x, (batch, *x.shape[1:])), room], axis=1)

    layers = tuple((one(k), one(v)) for k, v in cache.layers)
    return Cache(layers, jnp.broadcast_to(cache.lengths, (batch,)))
