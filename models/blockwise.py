"""Attention to a cache for CPUs, as a loop over blocks of slots.

The loop ends after the longest row. Empty slots are never read, whatever the capacity of the rows. The sums of a row do
not depend on the number of blocks that its neighbors need: blocks after its last one add exactly nothing. Paged rows
and rows of one page use blocks of the same size, so both give the same numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from models import cache as kv
from models.layouts import band

BLOCK = 64  # slots per iteration
NEVER = -1e30  # far below any score, but finite, so that it can be subtracted from itself


def supported(size: int, pages: int) -> bool:
    """Return whether rows of `pages` pages of `size` slots can be read in blocks."""
    return size % BLOCK == 0 or (BLOCK % size == 0 and (size * pages) % BLOCK == 0)


def attend(q: jax.Array, layer, table, starts: jax.Array, lengths: jax.Array, window: int | None = None) -> jax.Array:
    """Attend from tokens that are already in the cache and return [B, T, N, H].

    Args:
        q: [B, T, N, H].
        layer: (k, v), each [P, S, K, H].
        table: See `models.cache.Cache`.
        starts: int32 [B], position of each row's first query.
        lengths: int32 [B], number of queries of each row.
        window: Number of tokens that a token attends to, including itself. None: all.
    """
    batch, time, heads, size = q.shape
    kv_heads = layer[0].shape[2]
    groups = q.reshape(batch, time, kv_heads, heads // kv_heads, size).transpose(0, 2, 3, 1, 4)  # [B, K, G, T, H]
    groups = groups.reshape(batch, kv_heads, -1, size)
    query = starts[:, None] + jnp.arange(time)  # [B, T]
    last = jnp.max(jnp.where(lengths > 0, starts + lengths, 0))
    first = 0
    if window is not None:
        seen = jnp.min(jnp.where(lengths > 0, starts, jnp.iinfo(jnp.int32).max)) + 1 - window
        first = jnp.maximum(seen, 0) // BLOCK
    exact = dict(preferred_element_type=jnp.float32)

    def block(i, carry):
        top, total, mixed = carry  # float32 [B, K, G·T] and [B, K, G·T, H]
        k, v = (x.astype(q.dtype) for x in _read(layer, batch, table, i))
        scores = jnp.einsum("bkqh,bskh->bkqs", groups, k, **exact) * size**-0.5
        slot = i * BLOCK + jnp.arange(BLOCK)
        # Slots after those of the row may hold NaN, and 0 · NaN would spread.
        v = jnp.where((slot < (starts + lengths)[:, None])[..., None, None], v, 0)
        mask = band(query[:, :, None], slot, window)  # [B, T, S]
        mask = jnp.broadcast_to(mask[:, None, None], (batch, kv_heads, heads // kv_heads, time, BLOCK))
        scores = jnp.where(mask.reshape(scores.shape), scores, NEVER)
        peak = jnp.maximum(top, jnp.max(scores, axis=-1))
        fade, shares = jnp.exp(top - peak), jnp.exp(scores - peak[..., None])
        total = total * fade + jnp.sum(shares, axis=-1)
        mixed = mixed * fade[..., None] + jnp.einsum("bkqs,bskh->bkqh", shares.astype(q.dtype), v, **exact)
        return peak, total, mixed

    rows = groups.shape[:3]
    carry = jnp.full(rows, NEVER, jnp.float32), jnp.zeros(rows, jnp.float32), jnp.zeros(groups.shape, jnp.float32)
    _, total, mixed = jax.lax.fori_loop(first, -(-last // BLOCK), block, carry)
    out = (mixed / jnp.maximum(total, 1e-30)[..., None]).astype(q.dtype)
    return out.reshape(batch, kv_heads, -1, time, size).transpose(0, 3, 1, 2, 4).reshape(q.shape)


def _read(layer, batch: int, table, i):
    """Return block i of every row, [B, BLOCK, K, H] each."""
    size = layer[0].shape[1]
    if size < BLOCK:
        pages = BLOCK // size
        return kv.pick(layer, batch, jax.lax.dynamic_slice_in_dim(table, i * pages, pages, axis=1))
    if table is not None and table.shape[1] > 1:
        page = jax.lax.dynamic_slice_in_dim(table, i * BLOCK // size, 1, axis=1)
    else:
        page = table
    part = tuple(jax.lax.dynamic_slice_in_dim(x, i * BLOCK % size, BLOCK, axis=1) for x in layer)
    return kv.pick(part, batch, page)
