"""Attention to a paged cache on TPUs with JAX's `ragged_paged_attention` kernel.

The kernel expects the keys and values of a layer in one array [P, S, 2K', H'] without gaps in memory: head 0's key,
head 0's value, head 1's key, and so on. H' is H padded to the 128 lanes of a TPU, and K' is K padded to 1, 2, 4 or a
multiple of 8. It reads the filled pages in place, in blocks, both for single-token steps and for several tokens per
row.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as rpa
from jax.sharding import PartitionSpec

from models.sharding import ACTIVATION_RULES, partition_spec, platform

LANES = 128
# JAX tunes both for the TPU of this process, which need not be the one that a program is compiled for. These are its
# values on v5e and v6e for contexts of 512 tokens and 12 or 28 query heads.
BLOCK = 512  # slots per iteration
QUERIES = 32  # queries per iteration, from one row or several
TABLE = 2**19  # maximum bytes of a page table, which is kept in scalar memory (1 MiB on v5e)


def supported(kv_heads: int) -> bool:
    """Return whether layers should be stored in the layout of the kernel.

    That is the case on TPUs if the tensor axis of the mesh can hold complete heads.
    """
    tensor = dict(jax.sharding.get_abstract_mesh().shape).get("tensor", 1)
    own, rest = divmod(_padded_heads(kv_heads), tensor)
    return platform() == "tpu" and rest == 0 and own == _padded_heads(own)


def page_shape(size: int, kv_heads: int, head_dim: int) -> tuple[int, int, int]:
    """Return the shape [S, 2K', H'] of a page with `size` slots."""
    return size, 2 * _padded_heads(kv_heads), -(-head_dim // LANES) * LANES


def _padded_heads(n: int) -> int:
    """Return K' for K = n."""
    return -(-n // 8) * 8 if n > 4 else 4 if n == 3 else n


def combine(k: jax.Array, v: jax.Array, heads: int, size: int) -> jax.Array:
    """Combine k and v [B, T, K, H] in the layout of a page.

    Returns:
        [B, T, heads, size], padded with zeros.
    """
    room = ((0, 0), (0, 0), (0, heads // 2 - k.shape[2]), (0, size - k.shape[3]))
    pairs = jnp.stack([jnp.pad(k, room), jnp.pad(v, room)], axis=3)
    return pairs.reshape(*k.shape[:2], heads, size)


def attend(
    q: jax.Array, pages: jax.Array, table: jax.Array, starts: jax.Array, lengths: jax.Array, *, kv_heads: int,
    window: int | None = None,
) -> jax.Array:  # fmt: skip
    """Attend from tokens that are already in the pages and return [B, T, N, H].

    Args:
        q: [B, T, N, H].
        pages: [P, S, 2K', H'].
        table: int32 [B, M], the pages of each row. On a mesh see `models.cache.pick`.
        starts: int32 [B], the position of each row's first query.
        lengths: int32 [B], number of real queries among the T. The output of the others is undefined.
        kv_heads: K.
        window: Number of tokens that a token attends to, including itself. None: all.
    """
    _, _, heads, size = q.shape
    padded = pages.shape[2] // 2 * (heads // kv_heads)
    padding = ((0, 0), (0, 0), (0, padded - heads), (0, pages.shape[3] - size))
    q = jnp.pad(q, padding)
    run = functools.partial(_run, scale=size**-0.5, window=window)
    mesh = jax.sharding.get_abstract_mesh()
    if not (mesh.empty or mesh.size == 1):
        # XLA cannot shard a kernel. Rows need the pages of their shard of the batch only, and heads are independent.
        rows, _, split_heads, _ = partition_spec("BTNH", q.shape, dict(mesh.shape), ACTIVATION_RULES)
        whole = PartitionSpec(rows, None, split_heads, None)
        own = PartitionSpec(rows)
        run = functools.partial(run, parts=rows)
        run = jax.shard_map(run, in_specs=(whole, whole, own, own, own), out_specs=whole, check_vma=False)
    return run(q, pages, table, starts, lengths)[:, :, :heads, :size]


def _run(q, pages, table, starts, lengths, *, scale, window, parts=None):
    """Run the kernel on one device with its shard over the mesh axes `parts`."""
    if parts is not None:
        table = table - jax.lax.axis_index(parts) * len(pages)
    most = max(TABLE // (4 * LANES * -(-table.shape[1] // LANES)), 1)
    at = range(0, len(q), most)
    rows = [tuple(x[i : i + most] for x in (q, table, starts, lengths)) for i in at]
    outs = [_call(pages, *some, scale=scale, window=window) for some in rows]
    return outs[0] if len(outs) == 1 else jnp.concatenate(outs)


def _call(pages, q, table, starts, lengths, *, scale, window):
    """Call the kernel once, for rows whose page table is small enough."""
    batch, time = q.shape[:2]
    # Every row has T queries, real or not, so that rows need not be moved. Queries of an idle row attend to its first T
    # slots: the kernel prefetches the pages of the next row before it reads its length, and waits for them there.
    seen = time + jnp.where(lengths > 0, starts, 0)
    out = rpa.ragged_paged_attention(
        q.reshape(-1, *q.shape[2:]),
        pages,
        seen,
        jnp.clip(table, 0, len(pages) - 1),
        time * jnp.arange(batch + 1, dtype=jnp.int32),
        jnp.full((1,), batch, jnp.int32),
        sm_scale=scale,
        sliding_window=window,
        num_kv_pages_per_block=min(max(BLOCK // pages.shape[1], 1), table.shape[1]),
        num_queries_per_block=min(QUERIES, batch * time),
    )
    return out.reshape(q.shape)
