"""A GPU kernel for attention of new tokens to a paged cache.

Written in Pallas (Triton). The cache already contains the new tokens. A program handles one row and one query head. Its
queries stay in registers while it reads the row's pages block by block. Neither a copy of the pages nor a mask is
materialized.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

BLOCK = 64  # slots per iteration


def supported(time: int, size: int) -> bool:
    """Return whether the kernel supports `time` queries per row and heads of `size`."""
    return all(n >= 16 and n & (n - 1) == 0 for n in (time, size)) and time <= 128


def _kernel(starts_ref, lengths_ref, table_ref, q_ref, k_ref, v_ref, out_ref, *, scale, window):
    """Run one program: one row and one query head.

    q_ref is [T, H]. k_ref and v_ref are [P, S, H], all pages of its key/value head.
    """
    time, size = q_ref.shape
    page_size, dtype = k_ref.shape[1], q_ref.dtype
    start = starts_ref[0]
    query = start + jnp.arange(time)
    q = q_ref[...]

    def body(i, carry):
        top, total, mixed = carry
        slot = i * BLOCK + jnp.arange(BLOCK)
        filled = slot < start + lengths_ref[0]
        page = plgpu.load(table_ref.at[slot // page_size], mask=filled, other=0)
        where = page[:, None], (slot % page_size)[:, None], jnp.arange(size)[None]
        k = plgpu.load(k_ref.at[where], mask=filled[:, None], other=0.0).astype(dtype)
        scores = jnp.dot(q, k.T, preferred_element_type=jnp.float32) * scale
        seen = (slot[None] <= query[:, None]) & filled[None]
        if window is not None:
            seen &= slot[None] > query[:, None] - window
        scores = jnp.where(seen, scores, -1e30)
        peak = jnp.maximum(top, jnp.max(scores, axis=1))
        fade = jnp.exp(top - peak)
        shares = jnp.exp(scores - peak[:, None])
        v = plgpu.load(v_ref.at[where], mask=filled[:, None], other=0.0).astype(dtype)
        total = total * fade + jnp.sum(shares, axis=1)
        mixed = mixed * fade[:, None] + jnp.dot(shares.astype(dtype), v, preferred_element_type=jnp.float32)
        return peak, total, mixed

    first = 0 if window is None else jnp.maximum(start + 1 - window, 0) // BLOCK
    carry = jnp.full((time,), -1e30, jnp.float32), jnp.zeros((time,), jnp.float32), jnp.zeros((time, size), jnp.float32)
    _, total, mixed = jax.lax.fori_loop(first, pl.cdiv(start + lengths_ref[0], BLOCK), body, carry)
    out_ref[...] = (mixed / jnp.maximum(total, 1e-30)[:, None]).astype(dtype)


# All layers of a model share one jitted function, so that the kernel is lowered once.
@functools.partial(jax.jit, static_argnames=("window", "warps", "interpret"))
def read_attention(q, k_pages, v_pages, table, starts, lengths, *, window=None, warps=4, interpret=False):
    """Attend from tokens that are already in the pages and return [B, T, N, H].

    Args:
        q: [B, T, N, H], rotated.
        k_pages: [P, S, K, H].
        v_pages: [P, S, K, H].
        table: int32 [B, M], the pages of each row.
        starts: int32 [B], the position of each row's first query.
        lengths: int32 [B], number of real queries among the T. The output of the others is undefined.
        window: Number of tokens that a token attends to, including itself. None: all.
        warps: Number of warps per program.
        interpret: Whether to run the kernel in interpret mode.
    """
    batch, time, heads, size = q.shape
    group = heads // k_pages.shape[2]
    row = pl.BlockSpec((1,), lambda b, n: (b,))
    queries = pl.BlockSpec((None, time, None, size), lambda b, n: (b, 0, n, 0))
    pages = pl.BlockSpec((*k_pages.shape[:2], None, size), lambda b, n: (0, 0, n // group, 0))
    lines = pl.BlockSpec((None, table.shape[1]), lambda b, n: (b, 0))

    def kernel(*refs):
        _kernel(*refs, scale=size**-0.5, window=window)

    return pl.pallas_call(
        kernel,
        grid=(batch, heads),
        in_specs=[row, row, lines, queries, pages, pages],
        out_specs=queries,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=2),
        interpret=interpret,
        name="read_attention",
    )(starts, lengths, table, q, k_pages, v_pages)
