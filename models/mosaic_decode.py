"""draft"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE = 64  # slots that one matrix instruction scores
HEADS = 8  # the smallest number of its columns: query heads beyond the group are computed and dropped


def decode_attention(
    qkv, cos, sin, k_pages, v_pages, table, starts, going, *, heads, window=None, stages=3, interpret=False,
):
    batch, _, size = qkv.shape
    slots, kv = k_pages.shape[1:3]
    group = heads // kv
    columns = -(-group // HEADS) * HEADS
    per_tile = TILE // slots
    dtype = qkv.dtype
    scale = size**-0.5 * math.log2(math.e)
    half = size // 2

    def body(qkv_ref, cos_ref, sin_ref, table_ref, starts_ref, going_ref, k_ref, v_ref, out_ref):
        row, head = lax.axis_index("row"), lax.axis_index("head")
        start = starts_ref[row]
        active = (going_ref[row] > 0) & (start < table_ref.shape[1] * slots)
        first = 0 if window is None else lax.div(jnp.maximum(start + 1 - window, 0), TILE)
        count = jnp.where(active, lax.div(start, TILE) + 1 - first, 0)
        last_page = jnp.minimum(lax.div(start, slots), table_ref.shape[1] - 1)

        def scoped(raw_smem, angle_smem, turned_smem, q_smem, k_smem, v_smem, p_smem, new_smem, out_smem, k_bar, v_bar, new_bar):
            def fetch(i):
                stage = lax.rem(i, stages)
                for j in range(per_tile):
                    page = table_ref[row, jnp.minimum((first + i) * per_tile + j, last_page)]
                    for ref, smem, bar in ((k_ref, k_smem, k_bar), (v_ref, v_smem, v_bar)):
                        plgpu.copy_gmem_to_smem(
                            ref.at[page, :, head], smem.at[stage, pl.ds(j * slots, slots)], bar.at[stage]
                        )

            @pl.when(active)
            def _():
                for j in range(2):
                    span = pl.ds(j * half, half)
                    for i, (offset, rows) in enumerate(((head * group, columns), (heads + head, 1))):
                        source = qkv_ref.at[row, pl.ds(offset, rows), span]
                        plgpu.copy_gmem_to_smem(source, raw_smem.at[j, pl.ds(i * columns, rows)], new_bar)
                for i, ref in enumerate((cos_ref, sin_ref)):
                    plgpu.copy_gmem_to_smem(ref.at[row], angle_smem.at[i], new_bar)
                plgpu.copy_gmem_to_smem(qkv_ref.at[row, pl.ds(heads + kv + head, 1)], new_smem, new_bar)
                plgpu.barrier_wait(new_bar)
                layout = plgpu.Layout.MMA_ACC(dtype, m_warps=1)
                shape = (2 * columns, half)
                a, b = (plgpu.load(raw_smem.at[j], (), layout=layout, optimized=False).astype(jnp.float32) for j in range(2))
                c, s = (
                    lax.broadcast_in_dim(
                        plgpu.load(angle_smem.at[j], (), layout=layout.reduce(0), optimized=False), shape, [1]
                    ) for j in range(2)
                )
                turned_smem[:, pl.ds(0, half)] = (a * c - b * s).astype(dtype)
                turned_smem[:, pl.ds(half, half)] = (b * c + a * s).astype(dtype)
                plgpu.commit_smem()
                q_smem.transpose((1, 0))[...] = plgpu.load(
                    turned_smem.at[pl.ds(0, columns)].transpose((1, 0)), (), layout=plgpu.Layout.WGMMA, optimized=False
                )
                plgpu.commit_smem()
                page, slot = table_ref[row, last_page], lax.rem(start, slots)
                plgpu.copy_smem_to_gmem(turned_smem.at[pl.ds(columns, 1)], k_ref.at[page, pl.ds(slot, 1), head])
                plgpu.copy_smem_to_gmem(new_smem, v_ref.at[page, pl.ds(slot, 1), head])
                plgpu.wait_smem_to_gmem(0, wait_read_only=False)

            for i in range(stages):
                pl.when(i < count)(lambda i=i: fetch(i))

            col = plgpu.Layout.WGMMA.reduce(0)
            top = plgpu.layout_cast(jnp.full((columns,), -1e30, jnp.float32), col)
            total = plgpu.layout_cast(jnp.zeros((TILE, columns), jnp.float32), plgpu.Layout.WGMMA)
            mixed = plgpu.layout_cast(jnp.zeros((size, columns), jnp.float32), plgpu.Layout.WGMMA)

            def step(i, carry):
                top, total, mixed = carry
                stage = lax.rem(i, stages)
                plgpu.barrier_wait(k_bar.at[stage])

                def score(acc_ref):
                    plgpu.wgmma(acc_ref, k_smem.at[stage], q_smem.transpose((1, 0)))
                    return acc_ref[...]

                scores = pl.run_scoped(score, plgpu.ACC((TILE, columns), jnp.float32)) * scale
                slot = plgpu.broadcasted_iota(jnp.int32, (TILE, columns), 0, layout=plgpu.Layout.WGMMA)
                slot = slot + (first + i) * TILE
                seen = slot <= start
                if window is not None:
                    seen &= slot > start - window
                scores = jnp.where(seen, scores, -jnp.inf)
                peak = jnp.maximum(top, jnp.max(scores, axis=0))
                fade = jnp.exp2(top - peak)
                weights = jnp.exp2(scores - lax.broadcast_in_dim(peak, scores.shape, [1]))
                total = total * lax.broadcast_in_dim(fade, total.shape, [1]) + weights
                mixed = mixed * lax.broadcast_in_dim(fade, mixed.shape, [1])
                p_smem.transpose((1, 0))[...] = weights.astype(dtype)
                plgpu.commit_smem()
                plgpu.barrier_wait(v_bar.at[stage])

                def mix(acc_ref):
                    plgpu.wgmma(acc_ref, v_smem.at[stage].transpose((1, 0)), p_smem.transpose((1, 0)))
                    return acc_ref[...]

                mixed = mixed + pl.run_scoped(mix, plgpu.ACC((size, columns), jnp.float32))
                pl.when(i + stages < count)(lambda: fetch(i + stages))
                return peak, total, mixed

            top, total, mixed = lax.fori_loop(0, count, step, (top, total, mixed))
            total = jnp.maximum(jnp.sum(total, axis=0), 1e-30)
            mixed = mixed / lax.broadcast_in_dim(total, mixed.shape, [1])
            out_smem.transpose((1, 0))[...] = mixed.astype(dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out_smem.at[pl.ds(0, group)], out_ref.at[row, pl.ds(head * group, group)])
            plgpu.wait_smem_to_gmem(0)

        tiled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
        pl.run_scoped(
            scoped,
            plgpu.SMEM((2, 2 * columns, half), dtype),
            plgpu.SMEM((2, half), jnp.float32),
            plgpu.SMEM((2 * columns, size), dtype),
            plgpu.SMEM((columns, size), dtype, transforms=tiled),
            plgpu.SMEM((stages, TILE, size), dtype, transforms=tiled),
            plgpu.SMEM((stages, TILE, size), dtype, transforms=tiled),
            plgpu.SMEM((columns, TILE), dtype, transforms=tiled),
            plgpu.SMEM((1, size), dtype),
            plgpu.SMEM((columns, size), dtype),
            plgpu.Barrier(num_arrivals=per_tile, num_barriers=stages),
            plgpu.Barrier(num_arrivals=per_tile, num_barriers=stages),
            plgpu.Barrier(num_arrivals=7),
        )

    k_ref, v_ref = jax.new_ref(k_pages), jax.new_ref(v_pages)
    out = pl.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((batch, heads, size), dtype),
        mesh=plgpu.Mesh(grid=(batch, kv), grid_names=("row", "head")),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=plgpu.InterpretGPUParams() if interpret else False,
        name="paged_decode_attention",
    )(qkv, cos, sin, table, starts, going, k_ref, v_ref)
    return out, jax.freeze(k_ref), jax.freeze(v_ref)
