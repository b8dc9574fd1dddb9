"""One decoding step of attention over a paged cache, as a single kernel for Hopper GPUs.

Written in Pallas for Mosaic GPU. Like `decode_kernel`, a program serves one row and one key/value head with all query
heads that share it, takes the output of the fused q/k/v projection as it is, and reads only what the row has filled.

A program is one warpgroup. It copies the row's pages to shared memory in tiles of `TILE` slots, `stages` tiles in
flight, and multiplies there with both operands swapped: scores [slots, heads] = K Qᵀ and output [H, heads] = Vᵀ P. The
64 rows that the tensor cores want are then slots or head channels, and query heads are columns, of which 8 suffice.

The rotated key and the value of the new token are written to their slot before the tile that holds them is copied, so
that the new token is read like every other one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE = 64  # slots in a tile: the rows of one matrix instruction
COLUMNS = 8  # query heads come in multiples of its columns; those beyond the group are computed and dropped
SWIZZLE = 128  # bytes in a row of a tile in shared memory, as the tensor cores want it

_load: Callable[..., jax.Array] = plgpu.load  # its index became optional in JAX 0.11


def supported(slots: int, size: int, dtype) -> bool:
    """Whether the kernel takes pages of this many slots, heads of this size, and this dtype."""
    pages = slots in (8, 16, 32) or slots % TILE == 0
    return size in (64, 128) and pages and jnp.dtype(dtype).itemsize == 2


def expressible() -> bool:
    """Whether this JAX has what the kernel is written with; Mosaic GPU has it since 0.11."""
    return hasattr(plgpu, "InterpretGPUParams") and hasattr(plgpu.Layout, "MMA_ACC")


@functools.cache
def available() -> bool:
    """Whether the kernel runs on the devices of this process."""
    gpu = jax.default_backend() == "gpu" and jax.local_devices()[0].compute_capability == "9.0"
    return gpu and expressible()


class _Sizes(NamedTuple):
    """What is known when the kernel is compiled."""

    heads: int  # N
    kv: int  # K
    size: int  # H
    slots: int  # S
    window: int | None
    stages: int
    dtype: jnp.dtype

    @property
    def group(self) -> int:
        return self.heads // self.kv

    @property
    def columns(self) -> int:
        return pl.cdiv(self.group, COLUMNS) * COLUMNS

    @property
    def half(self) -> int:
        return self.size // 2


class _Shared(NamedTuple):
    """Shared memory of a program.

    raw, turned  the heads of the new token before and after rotation: `columns` queries, the key; the value in `raw`
    q, weights   [columns, H] and [columns, TILE], operands of the matrix products
    k, v         [stages, TILE, H]
    """

    # `Any`: memory and barriers when the kernel is declared, references to them inside of it.
    raw: Any
    turned: Any
    q: Any
    weights: Any
    k: Any
    v: Any
    new_ready: Any
    k_ready: Any
    v_ready: Any


def _scratch(n: _Sizes) -> _Shared:
    tiled = (plgpu.TilingTransform((8, SWIZZLE // 2)), plgpu.SwizzleTransform(SWIZZLE))
    pages = TILE // n.slots
    return _Shared(
        raw=plgpu.SMEM((2, 2 * n.columns, n.half), n.dtype),
        turned=plgpu.SMEM((2 * n.columns, n.size), n.dtype),
        q=plgpu.SMEM((n.columns, n.size), n.dtype, transforms=tiled),
        weights=plgpu.SMEM((n.columns, TILE), n.dtype, transforms=tiled),
        k=plgpu.SMEM((n.stages, TILE, n.size), n.dtype, transforms=tiled),
        v=plgpu.SMEM((n.stages, TILE, n.size), n.dtype, transforms=tiled),
        new_ready=plgpu.Barrier(num_arrivals=6),
        k_ready=plgpu.Barrier(num_arrivals=pages, num_barriers=n.stages),
        v_ready=plgpu.Barrier(num_arrivals=pages, num_barriers=n.stages),
    )


def _read_new(qkv_ref, row, head, shared: _Shared, n: _Sizes) -> None:
    """Starts the copies of the new token's heads, each in two halves."""
    # The value's row in `raw` is one that starts at a multiple of 128 bytes, as copies out of shared memory must.
    parts = (n.group * head, 0, n.columns), (n.heads + head, n.columns, 1), (n.heads + n.kv + head, n.columns + 2, 1)
    for first, to, count in parts:
        for i in range(2):
            source = qkv_ref.at[row, pl.ds(first, count), pl.ds(i * n.half, n.half)]
            plgpu.copy_gmem_to_smem(source, shared.raw.at[i, pl.ds(to, count)], shared.new_ready)


def _rotate(cos_ref, sin_ref, row, shared: _Shared, n: _Sizes) -> None:
    """Rotates the queries and the new key in `raw` into `turned`, and the queries from there into `q`."""
    # Any layout that takes 16 rows, and one of columns for the angles.
    layout = plgpu.Layout.MMA_ACC(n.dtype, m_warps=1)  # pyright: ignore[reportAttributeAccessIssue]  # new in JAX 0.11
    load = functools.partial(_load, optimized=False)
    a, b = (load(shared.raw.at[i], layout=layout).astype(jnp.float32) for i in range(2))
    cos, sin = (
        lax.broadcast_in_dim(load(x.at[row], layout=layout.reduce(0)), a.shape, [1]) for x in (cos_ref, sin_ref)
    )
    shared.turned[:, pl.ds(0, n.half)] = (a * cos - b * sin).astype(n.dtype)
    shared.turned[:, pl.ds(n.half, n.half)] = (b * cos + a * sin).astype(n.dtype)
    plgpu.commit_smem()
    queries = shared.turned.at[pl.ds(0, n.columns)].transpose((1, 0))
    shared.q.transpose((1, 0))[...] = load(queries, layout=plgpu.Layout.WGMMA)
    plgpu.commit_smem()


def _write_new(k_ref, v_ref, page, slot, head, shared: _Shared, n: _Sizes) -> None:
    """Starts writing the new key and value to their slot; `wait_smem_to_gmem` returns when they are there."""
    where = page, pl.ds(slot, 1), head
    plgpu.copy_smem_to_gmem(shared.turned.at[pl.ds(n.columns, 1)], k_ref.at[where])
    for i in range(2):
        half = pl.ds(i * n.half, n.half)
        plgpu.copy_smem_to_gmem(shared.raw.at[i, pl.ds(n.columns + 2, 1)], v_ref.at[(*where, half)])


def _product(a, b):
    """a @ b of two matrices in shared memory, in float32 registers."""

    def multiply(acc):
        plgpu.wgmma(acc, a, b)
        return acc[...]

    accumulator = plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32)  # pyright: ignore[reportPrivateImportUsage]  # public
    return pl.run_scoped(multiply, accumulator)


def _join_tile(stage, first_slot, start, masked, carry, shared: _Shared, n: _Sizes):
    """Joins one tile to the running softmax.

    masked  whether the tile holds slots that the new token does not see
    carry   the maximum [heads], the sum [TILE, heads] still spread over slots, and the output [H, heads]
    """
    top, total, mixed = carry
    columns = functools.partial(lax.broadcast_in_dim, broadcast_dimensions=[1])

    def seen(shape):
        slot = first_slot + plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=plgpu.Layout.WGMMA)
        inside = slot <= start
        return inside if n.window is None else inside & (slot > start - n.window)

    plgpu.barrier_wait(shared.k_ready.at[stage])
    scores = _product(shared.k.at[stage], shared.q.transpose((1, 0))) * (n.size**-0.5 * math.log2(math.e))
    scores = jnp.where(seen(scores.shape), scores, -jnp.inf)
    peak = jnp.maximum(top, jnp.max(scores, axis=0))
    fade = jnp.exp2(top - peak)
    weights = jnp.exp2(scores - columns(peak, scores.shape))
    total = total * columns(fade, total.shape) + weights
    shared.weights.transpose((1, 0))[...] = weights.astype(n.dtype)
    plgpu.barrier_wait(shared.v_ready.at[stage])

    @pl.when(masked)  # their weight is zero, but zero times what lies there may be NaN
    def _():
        v = _load(shared.v.at[stage], layout=plgpu.Layout.WGMMA)
        shared.v.at[stage][...] = jnp.where(seen(v.shape), v, jnp.zeros_like(v))

    plgpu.commit_smem()
    mixed = mixed * columns(fade, mixed.shape)
    mixed += _product(shared.v.at[stage].transpose((1, 0)), shared.weights.transpose((1, 0)))
    return peak, total, mixed


def _kernel(qkv_ref, cos_ref, sin_ref, table_ref, starts_ref, going_ref, k_ref, v_ref, out_ref, n: _Sizes):
    row, head = lax.axis_index("row"), lax.axis_index("head")
    pages, start = table_ref.shape[1], starts_ref[row]
    going = (going_ref[row] > 0) & (start < pages * n.slots)  # a full row writes nothing, as elsewhere
    first = 0 if n.window is None else lax.div(jnp.maximum(start + 1 - n.window, 0), TILE)
    tiles = jnp.where(going, lax.div(start, TILE) + 1 - first, 0)
    last_page = jnp.minimum(lax.div(start, n.slots), pages - 1)

    def program(shared: _Shared):
        def fetch(i):
            """Starts the copies of the row's i-th tile. Pages beyond the last are the last again, which is at hand."""
            stage = lax.rem(i, n.stages)

            @plgpu.warp_map
            def _(warp):
                for j in range(TILE // n.slots):

                    @pl.when(warp == j % 4)
                    def _(j=j):
                        page = table_ref[row, jnp.minimum((first + i) * (TILE // n.slots) + j, last_page)]
                        into = stage, pl.ds(j * n.slots, n.slots)
                        plgpu.copy_gmem_to_smem(k_ref.at[page, :, head], shared.k.at[into], shared.k_ready.at[stage])
                        plgpu.copy_gmem_to_smem(v_ref.at[page, :, head], shared.v.at[into], shared.v_ready.at[stage])

        def fetch_last():
            plgpu.wait_smem_to_gmem(0)
            fetch(tiles - 1)

        @pl.when(going)
        def _():
            _read_new(qkv_ref, row, head, shared, n)
            for i in range(n.stages):  # all but the tile that waits for the new token
                pl.when(i < tiles - 1)(functools.partial(fetch, i))
            plgpu.barrier_wait(shared.new_ready)
            _rotate(cos_ref, sin_ref, row, shared, n)
            _write_new(k_ref, v_ref, table_ref[row, last_page], lax.rem(start, n.slots), head, shared, n)
            pl.when(tiles <= n.stages)(fetch_last)

        def step(i, carry):
            masked = (i == tiles - 1) | (i == 0 if n.window else False)
            stage = lax.rem(i, n.stages)
            carry = _join_tile(stage, (first + i) * TILE, start, masked, carry, shared, n)
            pl.when(i + n.stages < tiles - 1)(lambda: fetch(i + n.stages))
            pl.when(i + n.stages == tiles - 1)(fetch_last)
            return carry

        wgmma = plgpu.Layout.WGMMA
        _, total, mixed = lax.fori_loop(0, tiles, step, (
            plgpu.layout_cast(jnp.full((n.columns,), -1e30, jnp.float32), wgmma.reduce(0)),
            plgpu.layout_cast(jnp.zeros((TILE, n.columns), jnp.float32), wgmma),
            plgpu.layout_cast(jnp.zeros((n.size, n.columns), jnp.float32), wgmma),
        ))  # fmt: skip
        total = jnp.maximum(jnp.sum(total, axis=0), 1e-30)  # rows that idle have read nothing
        mixed = mixed / lax.broadcast_in_dim(total, mixed.shape, [1])
        shared.turned.at[pl.ds(0, n.columns)].transpose((1, 0))[...] = mixed.astype(n.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(shared.turned.at[pl.ds(0, n.group)], out_ref.at[row, pl.ds(head * n.group, n.group)])
        plgpu.wait_smem_to_gmem(0)

    pl.run_scoped(lambda *refs: program(_Shared(*refs)), *_scratch(n))


def _in_tiles(k_pages, v_pages, table):
    """Long pages cut into pages of one tile, where they lie."""
    pages, slots = k_pages.shape[:2]
    first = jnp.arange(pages, dtype=jnp.int32)[:, None] if table is None else table
    if slots <= TILE:
        return k_pages, v_pages, first
    tiles = slots // TILE
    table = (first[:, :, None] * tiles + jnp.arange(tiles, dtype=jnp.int32)).reshape(len(first), -1)
    return *(x.reshape(pages * tiles, TILE, *x.shape[2:]) for x in (k_pages, v_pages)), table


# Lowering a kernel takes a second, so the layers of a model share one function.
@functools.partial(jax.jit, static_argnames=("heads", "window", "stages", "interpret"))
def decode_attention(
    qkv, cos, sin, k_pages, v_pages, starts, going, *, heads: int, table=None, window=None, stages=3, interpret=False,
):  # fmt: skip
    """qkv [B, N + 2K, H] before rotation, pages [P, S, K, H] -> ([B, N, H], pages with the new token).

    cos, sin  float32 [B, H/2] of each row's position
    starts    int32 [B], tokens that each row has
    going     int32 [B], 0 for rows that write nothing (their result is zero)
    heads     N
    table     int32 [B, M], the page of each row's tokens m·S … m·S + S − 1; the one that a row writes to is its alone.
              None: row b has page b
    window    how many tokens a token sees, itself included; None: all
    stages    tiles of 64 slots on their way to a program at once
    """
    batch, _, size = qkv.shape
    shape = k_pages.shape
    if not supported(shape[1], size, qkv.dtype) or k_pages.dtype != qkv.dtype:
        raise ValueError(
            f"heads of {size}, pages of {shape[1]} slots, {qkv.dtype} and {k_pages.dtype}: the kernel takes heads of 64"
            " or 128, pages of 8, 16, 32 or a multiple of 64 slots, and one dtype of 16 bits"
        )
    k_pages, v_pages, table = _in_tiles(k_pages, v_pages, table)
    slots, kv = k_pages.shape[1:3]
    n = _Sizes(heads, kv, size, slots, window, stages, jnp.dtype(qkv.dtype))
    k_ref, v_ref = jax.new_ref(k_pages), jax.new_ref(v_pages)
    out = pl.kernel(
        functools.partial(_kernel, n=n),
        out_type=jax.ShapeDtypeStruct((batch, heads, size), qkv.dtype),
        mesh=plgpu.Mesh(grid=(batch, kv), grid_names=("row", "head")),
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=1024),
        interpret=interpret,
        name="paged_decode_attention",
    )(qkv, cos, sin, table, starts, going, k_ref, v_ref)  # pyright: ignore[reportCallIssue]  # typed as a decorator
    return out, jax.freeze(k_ref).reshape(shape), jax.freeze(v_ref).reshape(shape)
