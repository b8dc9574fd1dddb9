"""A GPU kernel for one decode step of attention.

Written in Pallas (Triton). A program handles one row and one key/value head with all query heads that share it, and
reads only the filled slots of the row. It takes the unmodified output of the fused q/k/v projection. Queries and the
new key are rotated in registers, and the new key and value go directly to the softmax and to their slot, so the step
needs no separate split, rotation or scatter. `docs/performance.md` has measurements.

The keys and values of a row are in the pages that its line of a table lists, or in a single page. They may follow a
prefix that rows share. All of them are read in place.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

TILE = 16  # smallest tile of the tensor cores; query heads beyond the group are masked
BLOCK = 64  # slots per iteration


def supported(head_dim: int, size: int, pages: int = 1) -> bool:
    """Return whether the kernel supports these heads and rows of `pages` pages of `size` slots.

    Triton needs powers of two.
    """
    fits = size % BLOCK == 0 if pages == 1 else size & (size - 1) == 0
    return head_dim >= 2 * TILE and head_dim & (head_dim - 1) == 0 and fits


def _rotated(ref, rows, mask, cos, sin):
    """Return the two halves [rows, H/2] of some heads, rotated, in float32."""
    half = ref.shape[-1] // 2
    other = None if mask is None else 0.0
    a, b = (
        plgpu.load(ref.at[rows, pl.ds(i * half, half)], mask=mask, other=other).astype(jnp.float32) for i in range(2)
    )
    return a * cos - b * sin, b * cos + a * sin


def _kernel(
    refs: dict,
    out_ref,
    k_ref,
    v_ref,
    *,
    block: int,
    tile: int,
    scale: float,
    window: int | None,
):
    """Run one program: one row and one key/value head.

    Args:
        refs: Inputs by name.
        out_ref: [G, H], output.
        k_ref: [P, S, H], the pages of keys, which are also outputs.
        v_ref: [P, S, H], the pages of values, which are also outputs.
        block: Number of slots per iteration.
        tile: Number of query heads, padded.
        scale: Factor on the scores.
        window: Size of the sliding window, or None.
    """
    q_ref, table = refs["q"], refs.get("table")
    group, size = q_ref.shape
    page_size, pages = k_ref.shape[1], 1 if table is None else table.shape[0]
    slots = page_size * pages
    half, start, dtype = size // 2, jnp.minimum(refs["starts"][0], slots), out_ref.dtype
    own = jnp.zeros((), jnp.int32) if table is None else table[0]
    cos, sin = refs["cos"][...][None], refs["sin"][...][None]
    heads = (jnp.arange(tile) < group)[:, None]
    q = _rotated(q_ref, pl.ds(0, tile), heads, cos, sin)
    k_new = _rotated(refs["k_new"], pl.ds(0, 1), None, cos, sin)
    v_new = refs["v_new"][pl.ds(0, 1), :]

    @pl.when((refs["going"][0] > 0) & (start < slots))  # a full row writes nothing, as in the other kernels
    def _():
        page, slot = (own, start) if table is None or pages == 1 else (table[start // page_size], start % page_size)
        for i in range(2):
            k_ref[page, pl.ds(slot, 1), pl.ds(i * half, half)] = k_new[i].astype(k_ref.dtype)
        v_ref[page, pl.ds(slot, 1), :] = v_new.astype(v_ref.dtype)

    # The token attends to itself first: its score is the running maximum, and its weight is one.
    top = sum(jnp.sum(q[i] * k_new[i].astype(dtype).astype(jnp.float32), axis=1) for i in range(2)) * scale
    total = jnp.ones_like(top)
    mixed = jnp.broadcast_to(v_new.astype(jnp.float32), (tile, size))
    q = [x.astype(dtype) for x in q]

    def in_page(page):
        """Return a function for the place of block i in a row with one page."""
        return lambda i, slot, seen: lambda first, n: (page, pl.ds(i * block, block), pl.ds(first, n))

    def in_pages(i, slot, seen):
        """Return the place of block i in this row's pages, slot by slot."""
        assert table is not None
        page = plgpu.load(table.at[slot // page_size], mask=seen, other=0)
        return lambda first, n: (page[:, None], (slot % page_size)[:, None], first + jnp.arange(n)[None])

    def read(carry, k_ref, v_ref, place, filled, position):
        """Add the first `filled` slots of a row to the running softmax.

        `position` is that of the new token, counted from slot 0.
        """

        def body(i, carry):
            top, total, mixed = carry
            slot = i * block + jnp.arange(block)
            seen = slot < filled
            if window is not None:
                seen &= slot > position - window
            where = place(i, slot, seen)

            def part(ref, first, n):
                return plgpu.load(ref.at[where(first, n)], mask=seen[:, None], other=0.0).astype(dtype)

            k = [part(k_ref, j * half, half) for j in range(2)]
            scores = sum(jnp.dot(q[j], k[j].T, preferred_element_type=jnp.float32) for j in range(2)) * scale
            scores = jnp.where(seen[None], scores, -jnp.inf)
            peak = jnp.maximum(top, jnp.max(scores, axis=1))
            fade = jnp.exp(top - peak)
            weights = jnp.exp(scores - peak[:, None])
            v = part(v_ref, 0, size)
            total = total * fade + jnp.sum(weights, axis=1)
            mixed = mixed * fade[:, None] + jnp.dot(weights.astype(dtype), v, preferred_element_type=jnp.float32)
            return peak, total, mixed

        first = 0 if window is None else jnp.maximum(position + 1 - window, 0) // block
        return jax.lax.fori_loop(first, pl.cdiv(filled, block), body, carry)

    carry = top, total, mixed
    if "prefix_k" in refs:
        reader = refs["readers"][0] if "readers" in refs else jnp.zeros((), jnp.int32)
        length = refs["prefix_k"].shape[1]
        carry = read(carry, refs["prefix_k"], refs["prefix_v"], in_page(reader), length, length + start)
    _, total, mixed = read(carry, k_ref, v_ref, in_page(own) if pages == 1 else in_pages, start, start)
    plgpu.store(out_ref.at[pl.ds(0, tile), :], (mixed / total[:, None]).astype(dtype), mask=heads)


# All layers of a model share one jitted function, so that the kernel is lowered once.
@functools.partial(jax.jit, static_argnames=("heads", "window", "block", "warps", "interpret"))
def decode_attention(
    qkv, cos, sin, k_cache, v_cache, starts, going, *, heads: int, window=None, table=None, prefix=None, readers=None,
    block=BLOCK, warps=4, interpret=False,
):  # fmt: skip
    """Attend from one new token per row and append it to the cache.

    Args:
        qkv: [B, N + 2K, H], before rotation.
        cos: float32 [B, H/2], of each row's position.
        sin: float32 [B, H/2].
        k_cache: [P, S, K, H].
        v_cache: [P, S, K, H].
        starts: int32 [B], number of filled slots of each row.
        going: int32 [B], 0 for idle rows. They write nothing, and their output is undefined.
        heads: N.
        window: Number of tokens that a token attends to, including itself. None: all.
        table: int32 [B, M], the pages of each row. Rows must not share a page that one of them writes to. None: row b
            has page b.
        prefix: Keys and values [n, P, K, H] that precede the cache, or None.
        readers: int32 [B], which of the n prefixes each row continues. None: the first.
        block: Number of slots per iteration.
        warps: Number of warps per program.
        interpret: Whether to run the kernel in interpret mode.

    Returns:
        The output [B, N, H], and the caches of keys and values with the new token.
    """
    batch, _, size = qkv.shape
    slots, kv = k_cache.shape[1:3]
    group = heads // kv
    if slots % block and (table is None or table.shape[1] == 1):
        raise ValueError(
            f"the cache has {slots} slots, but must have a multiple of {block}, the block size of the kernel"
        )
    row = pl.BlockSpec((1,), lambda b, k: (b,))
    angle = pl.BlockSpec((None, size // 2), lambda b, k: (b, 0))
    queries = pl.BlockSpec((None, group, size), lambda b, k: (b, k, 0))
    key = pl.BlockSpec((None, 1, size), lambda b, k: (b, heads + k, 0))
    value = pl.BlockSpec((None, 1, size), lambda b, k: (b, heads + kv + k, 0))
    # Triton index maps cannot depend on data, so with a table a program gets all pages and looks up its own.
    whole = lambda x: pl.BlockSpec((*x.shape[:2], None, size), lambda b, k: (0, 0, k, 0))  # noqa: E731
    cache = pl.BlockSpec((1, slots, None, size), lambda b, k: (b, 0, k, 0)) if table is None else whole(k_cache)
    inputs = {
        "starts": (starts, row), "going": (going, row), "cos": (cos, angle), "sin": (sin, angle),
        "q": (qkv, queries), "k_new": (qkv, key), "v_new": (qkv, value),
        "readers": (readers, row),
    }  # fmt: skip
    if table is not None:
        inputs["table"] = table, pl.BlockSpec((None, table.shape[1]), lambda b, k: (b, 0))
    if prefix is not None:
        inputs |= {name: (x, whole(x)) for name, x in zip(("prefix_k", "prefix_v"), prefix, strict=True)}
    inputs |= {"k": (k_cache, cache), "v": (v_cache, cache)}
    inputs = {name: pair for name, pair in inputs.items() if pair[0] is not None}
    arrays, specs = zip(*inputs.values(), strict=True)
    tile = max(TILE, pl.next_power_of_2(group))

    def kernel(*refs):
        given = dict(zip(inputs, refs, strict=False))
        _kernel(given, *refs[len(inputs) :], block=block, tile=tile, scale=size**-0.5, window=window)

    return pl.pallas_call(
        kernel,
        grid=(batch, kv),
        in_specs=list(specs),
        out_specs=[queries, cache, cache],
        out_shape=[
            jax.ShapeDtypeStruct((batch, heads, size), qkv.dtype),
            *(jax.ShapeDtypeStruct(c.shape, c.dtype) for c in (k_cache, v_cache)),
        ],
        input_output_aliases={len(inputs) - 2: 1, len(inputs) - 1: 2},
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=3 if size <= 64 else 2),
        interpret=interpret,
        name="decode_attention",
    )(*arrays)
