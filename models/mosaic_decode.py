"""A single-kernel decode step of attention over a paged cache for Hopper GPUs.

Written in Pallas for Mosaic GPU. Like `decode_kernel`, a program handles one row and one key/value head with all query
heads that share it, takes the unmodified output of the fused q/k/v projection, and reads only the filled slots.

A program is one warpgroup. It copies the row's pages to shared memory in tiles of `TILE` slots, with `stages` tiles in
flight, and multiplies them with swapped operands: scores [slots, heads] = K Qᵀ and output [H, heads] = Vᵀ P. The tensor
cores need 64 rows, which are then slots or head channels. Query heads are columns, and 8 columns are enough.

The rotated key and the value of the new token are written to their slot before the tile that contains it is copied, so
the new token is read like all others.
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
COLUMNS = 8  # columns of one matrix instruction; query heads are padded to a multiple of it
SWIZZLE = 128  # bytes per row of a tile in shared memory, as the tensor cores require

_load: Callable[..., jax.Array] = plgpu.load  # the index became optional in JAX 0.11


def supported(slots: int, size: int, dtype) -> bool:
    """Return whether the kernel supports this page size, head size and dtype."""
    pages = slots in (8, 16, 32) or slots % TILE == 0
    return size in (64, 128) and pages and jnp.dtype(dtype).itemsize == 2


def expressible() -> bool:
    """Return whether this version of JAX can express the kernel (0.11 or later)."""
    return hasattr(plgpu, "InterpretGPUParams") and hasattr(plgpu.Layout, "MMA_ACC")


@functools.cache
def available() -> bool:
    """Return whether the kernel runs on the devices of this process."""
    gpu = jax.default_backend() == "gpu" and jax.local_devices()[0].compute_capability == "9.0"
    return gpu and expressible()


class _Sizes(NamedTuple):
    """The static sizes of a kernel."""

    heads: int  # N
    kv: int  # K
    size: int  # H
    slots: int  # S
    window: int | None
    stages: int
    dtype: jnp.dtype

    @property
    def group(self) -> int:
        """Number of query heads per key/value head."""
        return self.heads // self.kv

    @property
    def columns(self) -> int:
        """Number of query heads per key/value head, rounded up to full columns."""
        return pl.cdiv(self.group, COLUMNS) * COLUMNS

    @property
    def half(self) -> int:
        """Half the head size."""
        return self.size // 2


class _Shared(NamedTuple):
    """The shared memory of a program.

    Attributes:
        raw: Heads of the new token before rotation: `columns` queries, the key, and the value.
        turned: The queries and the key after rotation.
        q: [columns, H], operand of the first matrix product.
        weights: [columns, TILE], operand of the second matrix product.
        k: [stages, TILE, H].
        v: [stages, TILE, H].
        new_ready: Barrier for the copies to `raw`.
        k_ready: Barriers for the copies to `k`, one per stage.
        v_ready: Barriers for the copies to `v`, one per stage.
    """

    # Shared memory and barriers when the kernel is declared, references to them inside the kernel.
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
    """Declare the shared memory of a program."""
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
    """Start copying the heads of the new token, each in two halves."""
    # The row of the value in `raw` starts at a multiple of 128 bytes, as copies from shared memory require.
    parts = (n.group * head, 0, n.columns), (n.heads + head, n.columns, 1), (n.heads + n.kv + head, n.columns + 2, 1)
    for first, to, count in parts:
        for i in range(2):
            source = qkv_ref.at[row, pl.ds(first, count), pl.ds(i * n.half, n.half)]
            plgpu.copy_gmem_to_smem(source, shared.raw.at[i, pl.ds(to, count)], shared.new_ready)


def _rotate(cos_ref, sin_ref, row, shared: _Shared, n: _Sizes) -> None:
    """Rotate the queries and the key from `raw` to `turned`, then copy queries to `q`."""
    # Any layout with 16 rows that reduces to a layout of columns for the angles.
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
    """Start writing the new key and value to their slot; `wait_smem_to_gmem` waits for them."""
    where = page, pl.ds(slot, 1), head
    plgpu.copy_smem_to_gmem(shared.turned.at[pl.ds(n.columns, 1)], k_ref.at[where])
    for i in range(2):
        half = pl.ds(i * n.half, n.half)
        plgpu.copy_smem_to_gmem(shared.raw.at[i, pl.ds(n.columns + 2, 1)], v_ref.at[(*where, half)])


def _product(a, b):
    """Multiply two matrices in shared memory into float32 registers."""

    def multiply(acc):
        plgpu.wgmma(acc, a, b)
        return acc[...]

    accumulator = plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32)  # pyright: ignore[reportPrivateImportUsage]  # not re-exported
    return pl.run_scoped(multiply, accumulator)


def _join_tile(stage, first_slot, start, masked, carry, shared: _Shared, n: _Sizes):
    """Add one tile to the running softmax and return the new carry.

    Args:
        stage: Index of the tile in shared memory.
        first_slot: First slot of the tile.
        start: Slot of the new token.
        masked: Whether the tile has slots that the new token does not attend to.
        carry: The maximum [heads], the sum [TILE, heads], not yet reduced over slots, and the output [H, heads].
        shared: Shared memory.
        n: Sizes.
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

    @pl.when(masked)  # their weight is zero, but their slots may hold NaN
    def _():
        v = _load(shared.v.at[stage], layout=plgpu.Layout.WGMMA)
        shared.v.at[stage][...] = jnp.where(seen(v.shape), v, jnp.zeros_like(v))

    plgpu.commit_smem()
    mixed = mixed * columns(fade, mixed.shape)
    mixed += _product(shared.v.at[stage].transpose((1, 0)), shared.weights.transpose((1, 0)))
    return peak, total, mixed


def _kernel(qkv_ref, cos_ref, sin_ref, table_ref, starts_ref, going_ref, k_ref, v_ref, out_ref, n: _Sizes):
    """Run one program: one row and one key/value head."""
    row, head = lax.axis_index("row"), lax.axis_index("head")
    pages, start = table_ref.shape[1], starts_ref[row]
    going = (going_ref[row] > 0) & (start < pages * n.slots)  # a full row writes nothing, as in the other kernels
    first = 0 if n.window is None else lax.div(jnp.maximum(start + 1 - n.window, 0), TILE)
    tiles = jnp.where(going, lax.div(start, TILE) + 1 - first, 0)
    last_page = jnp.minimum(lax.div(start, n.slots), pages - 1)

    def program(shared: _Shared):
        def fetch(i):
            """Start copying tile i of the row.

            Pages after the last one are replaced by the last one.
            """
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
            for i in range(n.stages):  # all but the tile that needs the new token
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
        total = jnp.maximum(jnp.sum(total, axis=0), 1e-30)  # idle rows have read nothing
        mixed = mixed / lax.broadcast_in_dim(total, mixed.shape, [1])
        shared.turned.at[pl.ds(0, n.columns)].transpose((1, 0))[...] = mixed.astype(n.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(shared.turned.at[pl.ds(0, n.group)], out_ref.at[row, pl.ds(head * n.group, n.group)])
        plgpu.wait_smem_to_gmem(0)

    pl.run_scoped(lambda *refs: program(_Shared(*refs)), *_scratch(n))


def _in_tiles(k_pages, v_pages, table):
    """Return long pages split into pages of one tile, without copying."""
    pages, slots = k_pages.shape[:2]
    first = jnp.arange(pages, dtype=jnp.int32)[:, None] if table is None else table
    if slots <= TILE:
        return k_pages, v_pages, first
    tiles = slots // TILE
    table = (first[:, :, None] * tiles + jnp.arange(tiles, dtype=jnp.int32)).reshape(len(first), -1)
    return *(x.reshape(pages * tiles, TILE, *x.shape[2:]) for x in (k_pages, v_pages)), table


# Lowering the kernel takes a second, so all layers of a model share one jitted function.
@functools.partial(jax.jit, static_argnames=("heads", "window", "stages", "interpret"))
def decode_attention(
    qkv, cos, sin, k_pages, v_pages, starts, going, *, heads: int, table=None, window=None, stages=3, interpret=False,
):  # fmt: skip
    """Attend from one new token per row and append it to the pages.

    Args:
        qkv: [B, N + 2K, H], before rotation.
        cos: float32 [B, H/2], of each row's position.
        sin: float32 [B, H/2].
        k_pages: [P, S, K, H].
        v_pages: [P, S, K, H].
        starts: int32 [B], number of tokens in each row.
        going: int32 [B], 0 for idle rows. They write nothing, and their output is zero.
        heads: N.
        table: int32 [B, M], the page of tokens m·S to m·S + S - 1 of each row. The page that a row writes to must not
            be shared. None: row b has page b.
        window: Number of tokens that a token attends to, including itself. None: all.
        stages: Number of tiles of 64 slots in flight per program.
        interpret: Whether to run the kernel in interpret mode.

    Returns:
        The output [B, N, H], and the pages of keys and values with the new token.
    """
    batch, _, size = qkv.shape
    shape = k_pages.shape
    if not supported(shape[1], size, qkv.dtype) or k_pages.dtype != qkv.dtype:
        raise ValueError(
            "the kernel needs heads of 64 or 128, pages of 8, 16, 32 or a multiple of 64 slots, and one 16-bit dtype, "
            f"but got heads of {size}, pages of {shape[1]} slots, {qkv.dtype} and {k_pages.dtype}"
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
