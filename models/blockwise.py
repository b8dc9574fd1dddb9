"""Attention to a cache by a loop over blocks of slots that ends behind the longest row: for CPUs.

What is not filled is not read, whatever the rows may grow to. A row's sums do not depend on how many blocks its
neighbours make the loop run: blocks beyond its own add nothing, bit for bit. Blocks have the same size over pages and
over rows of one page, so both give the same numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from models import cache as kv
from models.layouts import band

BLOCK = 64  # slots read at once
NEVER = -1e30  # a score that any other drowns, and a number that can be subtracted from itself


def supported(size: int, pages: int) -> bool:
    """Whether rows of this many pages of `size` slots can be read in blocks."""
    return size % BLOCK == 0 or (BLOCK % size == 0 and (size * pages) % BLOCK == 0)


def attend(q: jax.Array, layer, table, starts: jax.Array, lengths: jax.Array, window: int | None = None) -> jax.Array:
    """q [B, T, N, H] of tokens that are in the cache already, (k, v) [P, S, K, H] -> [B, T, N, H].

    table            see `models.cache.Cache`
    starts, lengths  int32 [B]: the position of each row's first query, and how many there are
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
        # Somebody else's values may lie behind the row's own: 0 · nan would spread.
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
    """Block i of every row, [B, BLOCK, K, H] each."""
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
