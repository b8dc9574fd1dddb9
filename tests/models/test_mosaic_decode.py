"""The paged decoding kernel for Hopper GPUs: interpreted against plain attention, and lowered for a GPU without one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from models.mosaic_decode import decode_attention, expressible, supported

pytestmark = pytest.mark.skipif(not expressible(), reason="before JAX 0.11 Mosaic GPU lacks what the kernel uses")


def step_inputs(group, kv, size, slots, starts, going, pages=None, seed=0):
    """A projection of one token per row, angles, and pages in random order with NaN wherever nothing was written."""
    rng, batch = np.random.default_rng(seed), len(starts)
    pages = pages or max(starts) // slots + 1
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)  # noqa: E731
    table = rng.permutation(batch * pages + 3)[: batch * pages].reshape(batch, pages)
    filled = np.zeros((batch * pages + 3, slots), bool)
    for row, start in zip(table, starts, strict=True):
        filled[row] = np.arange(pages * slots).reshape(pages, slots) < start
    cache = (jnp.where(filled[..., None, None], normal(*filled.shape, kv, size), jnp.nan) for _ in range(2))
    angles = jnp.asarray(rng.uniform(0, 6, (batch, size // 2)), jnp.float32)
    whole = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    qkv = normal(batch, (group + 2) * kv, size)
    return qkv, jnp.cos(angles), jnp.sin(angles), *cache, whole(table), whole(starts), whole(going)


def plain(qkv, cos, sin, k_pages, v_pages, table, starts, going, heads, window):
    """Row by row: rotate, write, gather the row's pages, attend in float32."""
    slots, kv, size = k_pages.shape[1:]
    pools, outs = [np.array(x) for x in (k_pages, v_pages)], np.zeros((len(qkv), heads, size), np.float32)
    a, b = np.split(np.asarray(qkv, np.float32)[:, : heads + kv], 2, axis=-1)
    cos, sin = np.asarray(cos)[:, None], np.asarray(sin)[:, None]
    turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(qkv.dtype)
    for row in np.flatnonzero((np.asarray(going) > 0) & (np.asarray(starts) < table.shape[1] * slots)):
        start, pages = int(starts[row]), np.asarray(table[row])
        for pool, new in zip(pools, (turned[row, heads:], np.asarray(qkv[row, heads + kv :])), strict=True):
            pool[pages[start // slots], start % slots] = new
        first = 0 if window is None else max(start + 1 - window, 0)
        k, v = (x[pages].reshape(-1, kv, size)[first : start + 1].astype(np.float32) for x in pools)
        q = turned[row, :heads].astype(np.float32).reshape(kv, -1, size)
        weights = jax.nn.softmax(np.einsum("kgh,skh->kgs", q, k) * size**-0.5)
        outs[row] = np.einsum("kgs,skh->kgh", weights, v).reshape(heads, size)
    return outs, *pools


@pytest.mark.parametrize(
    ("group", "kv", "size", "slots", "starts", "idle", "window", "stages"),
    [
        (7, 1, 64, 16, (0, 1, 15, 16, 63, 64, 100, 112), (6,), None, 2),  # edges of pages and tiles; the last is full
        (3, 2, 64, 32, (130,), (), None, 2),  # more tiles than are in flight; the last queries end with the projection
        (6, 1, 128, 16, (70,), (), 20, 3),  # a window that begins in the tile before
        (9, 1, 64, 32, (95,), (), 31, 3),  # more query heads than a tile has columns; a window that skips a tile
    ],
)  # fmt: skip
def test_interpreted_it_equals_plain_attention(group, kv, size, slots, starts, idle, window, stages):
    heads, going = group * kv, [0 if i in idle else 1 for i in range(len(starts))]
    pages = 7 if len(starts) > 1 else None
    inputs = step_inputs(group, kv, size, slots, starts, going, pages)
    run = functools.partial(decode_attention, heads=heads, window=window, stages=stages)
    out, *after = jax.jit(functools.partial(run, interpret=plgpu.InterpretGPUParams()))(
        *inputs[:5], *inputs[6:], table=inputs[5]
    )
    expected, *written = plain(*inputs, heads, window)
    np.testing.assert_allclose(np.asarray(out, np.float32), expected, atol=0.02, rtol=0.02)
    for mine, theirs in zip(after, written, strict=True):
        np.testing.assert_allclose(np.asarray(mine, np.float32), theirs.astype(np.float32), rtol=1 / 128)


def test_a_row_of_one_long_page_is_read_in_tiles():
    """Pages of two tiles, in any order or one for each row: the same as pages of half the size."""
    qkv, cos, sin, k, v, table, starts, going = step_inputs(2, 1, 64, 128, (130, 70), (1, 1), pages=2)
    run = functools.partial(decode_attention, heads=2, interpret=plgpu.InterpretGPUParams())
    expected, *written = plain(qkv, cos, sin, k, v, table, starts, going, 2, None)
    out, *after = jax.jit(run)(qkv, cos, sin, k, v, starts, going, table=table)
    np.testing.assert_allclose(np.asarray(out, np.float32), expected, atol=0.02, rtol=0.02)
    for mine, theirs in zip(after, written, strict=True):
        np.testing.assert_allclose(np.asarray(mine, np.float32), theirs.astype(np.float32), rtol=1 / 128)
    own = tuple(x[table[:, 0]] for x in (k, v))
    alone, *_ = jax.jit(run)(qkv, cos, sin, *own, starts - 60, going)
    expected, *_ = plain(qkv, cos, sin, *own, jnp.arange(2)[:, None], starts - 60, going, 2, None)
    np.testing.assert_allclose(np.asarray(alone, np.float32), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(("heads", "kv", "size", "slots"), [(14, 2, 64, 16), (12, 2, 128, 32)])
def test_it_lowers_for_a_gpu_and_updates_the_pages_in_place(heads, kv, size, slots):
    """Qwen2.5-0.5B and 1.5B, in a loop as the sampler has it."""
    shape = jax.ShapeDtypeStruct
    pool = shape((40, slots, kv, size), jnp.bfloat16)
    inputs = (
        shape((4, heads + 2 * kv, size), jnp.bfloat16), *[shape((4, size // 2), jnp.float32)] * 2, pool, pool,
        shape((4, 10), jnp.int32), *[shape((4,), jnp.int32)] * 2,
    )  # fmt: skip

    def steps(qkv, cos, sin, k, v, table, starts, going):
        def step(carry):
            i, _, k, v = carry
            return i + 1, *decode_attention(qkv, cos, sin, k, v, starts + i, going, heads=heads, table=table)

        return jax.lax.while_loop(lambda carry: carry[0] < 8, step, (0, qkv[:, :heads], k, v))

    text = jax.jit(steps).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @mosaic_gpu") == 1
    for output, operand in ((1, 6), (2, 7)):
        assert f"output_tuple_indices = [{output}], operand_index = {operand}," in text
    assert "stablehlo.copy" not in text and "scatter" not in text


def test_what_it_does_not_take_is_refused():
    assert supported(16, 64, jnp.bfloat16) and supported(192, 128, jnp.bfloat16)
    assert not supported(16, 96, jnp.bfloat16) and not supported(96, 64, jnp.bfloat16)
    qkv, *inputs, table, starts, going = step_inputs(2, 1, 64, 16, (3,), (1,))
    with pytest.raises(ValueError, match="got heads of 64, pages of 16 slots, float32"):
        decode_attention(qkv.astype(jnp.float32), *inputs, starts, going, heads=2, table=table)
