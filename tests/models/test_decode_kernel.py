"""The GPU kernel for one decoding step: against plain attention, interpreted here and compiled on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention import Attend
from models.decode_kernel import decode_attention, supported
from models.decoder import rotate
from tests.models.tiny_models import quick_jit

jit = jax.jit if jax.default_backend() == "gpu" else quick_jit
SLOTS, BLOCK = 64, 16
STARTS = np.array([0, 1, 15, 16, 40, 63, 30, 64])
GOING = np.array([1, 1, 1, 1, 1, 1, 0, 0])  # the last two rows idle, one of them full


def step_inputs(group, size=16, kv_heads=2, dtype=jnp.float32, seed=0, slots=SLOTS):
    """A projection of one token per row, angles, and a cache with garbage after the filled slots."""
    rng, batch = np.random.default_rng(seed), len(STARTS)
    normal = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    angles = rng.uniform(0, 6, (batch, size // 2)).astype(np.float32)
    starts = (STARTS * slots // SLOTS).astype(np.int32)
    layer = tuple(normal(batch, slots, kv_heads, size) for _ in range(2))
    filled = np.arange(slots)[None, :, None, None] < starts[:, None, None, None]
    layer = tuple(np.where(filled, x, 1e3).astype(dtype) for x in layer)
    return normal(batch, (group + 2) * kv_heads, size), np.cos(angles), np.sin(angles), *layer, starts


def plain(qkv, cos, sin, k_cache, v_cache, starts, heads, window=None):
    """Rotate, write, attend: what the model does without the kernel."""
    kv_heads = k_cache.shape[2]
    q, k, v = jnp.split(qkv[:, None], (heads, heads + kv_heads), axis=2)
    q, k = (rotate(x, cos[:, None, None], sin[:, None, None]) for x in (q, k))
    attend = Attend(starts, jnp.asarray(GOING), window=window, keep=False, kernel="xla")
    out, layer = attend(q, k, v, (k_cache, v_cache))
    return out[:, 0], *layer


def check(group, window=None, size=16, kv_heads=2, dtype=jnp.float32, slots=SLOTS, atol=2e-6, **options):
    heads = group * kv_heads
    inputs = step_inputs(group, size, kv_heads, dtype, seed=group, slots=slots)
    expected = jax.device_get(jit(plain, static_argnums=(6, 7))(*inputs, heads, window))
    run = jit(lambda *x: decode_attention(*x, jnp.asarray(GOING, jnp.int32), heads=heads, window=window, **options))
    out, *layer = jax.device_get(run(*inputs))
    going = GOING > 0
    np.testing.assert_allclose(*(np.asarray(x[going], np.float32) for x in (out, expected[0])), atol=atol)
    assert np.isfinite(np.asarray(out, np.float32)).all(), "rows that idle must not spread NaN either"
    for mine, theirs, before in zip(layer, expected[1:], inputs[3:5], strict=True):
        np.testing.assert_allclose(np.asarray(mine, np.float32), np.asarray(theirs, np.float32), atol=atol)
        np.testing.assert_array_equal(mine[~going], before[~going])


@pytest.mark.nightly_for("1-None", "7-None")
@pytest.mark.parametrize(("group", "window"), [(1, None), (7, None), (6, 5), (7, 20)])
def test_interpreted_it_equals_plain_attention(group, window):
    """Empty rows, rows at the edges of blocks, a row with one free slot, idle rows; windows below and above a block."""
    check(group, window, block=BLOCK, interpret=True)


ROWS = np.array([9, 0, 3, 11, 4, 10, 6, 2])  # rows of a cache of twelve


def check_rows(group, window, n, length=21, size=16, kv_heads=2, dtype=jnp.float32, slots=SLOTS, atol=2e-6, **opts):
    """Rows of a larger cache after one of n prefixes equal the same keys and values laid out row by row."""
    heads, rng = group * kv_heads, np.random.default_rng(7)
    qkv, cos, sin, k, v, starts = step_inputs(group, size, kv_heads, dtype, seed=group, slots=slots)
    prefix = tuple(rng.standard_normal((n, length, kv_heads, size)).astype(dtype) for _ in range(2))
    readers = None if n == 1 else rng.integers(0, n, len(STARTS)).astype(np.int32)
    going = GOING.astype(np.int32)
    large = tuple(np.full((12, *x.shape[1:]), 7, dtype) for x in (k, v))
    for rows, x in zip(large, (k, v), strict=True):
        rows[ROWS] = x
    run = jit(lambda *x: decode_attention(
        *x, starts, going, heads=heads, window=window, table=jnp.asarray(ROWS[:, None], jnp.int32), prefix=prefix,
        readers=readers, **opts,
    ))  # fmt: skip
    out, *layer = jax.device_get(run(qkv, cos, sin, *large))
    before = prefix if readers is None else tuple(x[readers] for x in prefix)
    joined = (
        np.concatenate([np.broadcast_to(x, (len(STARTS), *x.shape[1:])), y], axis=1)
        for x, y in zip(before, (k, v), strict=True)
    )
    expected = jax.device_get(jit(plain, static_argnums=(6, 7))(qkv, cos, sin, *joined, starts + length, heads, window))
    np.testing.assert_allclose(*(np.asarray(x[GOING > 0], np.float32) for x in (out, expected[0])), atol=atol)
    for mine, theirs in zip(layer, expected[1:], strict=True):
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (mine[ROWS], theirs[:, length:])), atol=atol)
        assert np.all(np.asarray(np.delete(mine, ROWS, axis=0)) == 7), "other rows stay as they are"


@pytest.mark.nightly_for("30-1", "5-3", "None-1")
@pytest.mark.parametrize(("window", "n"), [(None, 1), (None, 3), (5, 3), (30, 1)])
def test_it_reads_rows_of_a_larger_cache_behind_a_prefix(window, n):
    """A prefix that is no multiple of a block; windows that end in the cache or in the prefix."""
    check_rows(7, window, n, block=BLOCK, interpret=True)


def paged(layer, size, seed=0):
    """Caches [B, S, K, H] split into pages of `size` slots at random places of a pool with garbage elsewhere.

    Rows share the first page of row 4 where their own has the same place, which is to say: rows 4 and 5 do.
    """
    rng, (batch, slots) = np.random.default_rng(seed), layer[0].shape[:2]
    width = slots // size
    places = rng.permutation(batch * width + 5)
    table = places[: batch * width].reshape(batch, width)
    layer = [x.copy() for x in layer]
    table[5, 0] = table[4, 0]
    pools = []
    for x in layer:
        x[5, :size] = x[4, :size]
        pools.append(np.full((len(places), size, *x.shape[2:]), 1e3, x.dtype))
        pools[-1][table] = x.reshape(batch, width, size, *x.shape[2:])
    return layer, pools, table


def check_pages(group, window, page, size=16, kv_heads=2, dtype=jnp.float32, slots=SLOTS, atol=2e-6, **options):
    """Pages in any order, one of them shared: the same numbers, and no page changes but for the new tokens."""
    heads = group * kv_heads
    qkv, cos, sin, k, v, starts = step_inputs(group, size, kv_heads, dtype, seed=group, slots=slots)
    layer, pools, table = paged((k, v), page)
    expected = jax.device_get(jit(plain, static_argnums=(6, 7))(qkv, cos, sin, *layer, starts, heads, window))
    run = jit(lambda *x: decode_attention(
        *x, starts, jnp.asarray(GOING, jnp.int32), heads=heads, window=window, table=jnp.asarray(table, jnp.int32),
        **options,
    ))  # fmt: skip
    out, *after = jax.device_get(run(qkv, cos, sin, *pools))
    np.testing.assert_allclose(*(np.asarray(x[GOING > 0], np.float32) for x in (out, expected[0])), atol=atol)
    assert np.isfinite(np.asarray(out, np.float32)).all()
    for mine, theirs, before in zip(after, expected[1:], pools, strict=True):
        found = mine[table].reshape(theirs.shape)
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (found, theirs)), atol=atol)
        rest = np.setdiff1d(np.arange(len(before)), table)
        np.testing.assert_array_equal(mine[rest], before[rest])


@pytest.mark.nightly_for("7-None-16", "6-5-4", "3-None-32", "7-20-8")
@pytest.mark.parametrize(
    ("group", "window", "page"), [(1, None, 4), (7, None, 16), (6, 5, 4), (7, 20, 8), (3, None, 32)]
)
def test_it_reads_and_writes_pages(group, window, page):
    """Rows that end at the borders of pages and blocks, pages smaller and larger than a block, idle and full rows."""
    check_pages(group, window, page, block=BLOCK, interpret=True)


def test_pages_that_a_row_does_not_fill_are_never_seen():
    """NaN in them, in the rest of the last page, and in pages before a window."""
    qkv, cos, sin, k, v, starts = step_inputs(group=1)
    _, pools, table = paged((k, v), 4)
    position = np.arange(SLOTS)
    hidden = (position >= STARTS[:, None]) | (position <= STARTS[:, None] - 9)
    spoilt = np.ones((len(pools[0]), 4), bool)
    for b in range(len(STARTS)):
        for at in np.flatnonzero(~hidden[b]):
            spoilt[table[b, at // 4], at % 4] = False
    run = jit(lambda *x: decode_attention(
        *x, starts, jnp.asarray(GOING), heads=2, window=9, table=jnp.asarray(table, jnp.int32), block=BLOCK,
        interpret=True,
    )[0])  # fmt: skip
    clean = run(qkv, cos, sin, *pools)
    spoilt_pools = (np.where(spoilt[..., None, None], np.float32(np.nan), x) for x in pools)
    np.testing.assert_array_equal(clean, run(qkv, cos, sin, *spoilt_pools))


def test_more_query_heads_than_a_tile():
    check(group=20, kv_heads=1, block=BLOCK, interpret=True)


def test_bf16_costs_a_rounding():
    check(group=7, dtype=jnp.bfloat16, block=BLOCK, interpret=True, atol=0.04)


def test_what_lies_behind_the_length_is_never_seen():
    """The rubbish there is 1e3 large in the other tests; here it is NaN."""
    qkv, cos, sin, k, v, starts = step_inputs(group=1)
    filled = np.arange(SLOTS)[None, :, None, None] < starts[:, None, None, None]
    run = jit(lambda *x: decode_attention(*x, jnp.asarray(GOING), heads=2, block=BLOCK, interpret=True)[0])
    clean = run(qkv, cos, sin, k, v, starts)
    spoilt = run(qkv, cos, sin, *(np.where(filled, x, np.float32(np.nan)) for x in (k, v)), starts)
    np.testing.assert_array_equal(clean, spoilt)


def test_a_full_row_writes_nothing():
    qkv, cos, sin, k, v, starts = step_inputs(group=1)
    run = jit(lambda *x: decode_attention(*x, np.ones_like(starts), heads=2, block=BLOCK, interpret=True))
    _, *layer = jax.device_get(run(qkv, cos, sin, k, v, starts))
    full = STARTS == SLOTS
    for before, after in zip((k, v), layer, strict=True):
        np.testing.assert_array_equal(before[full], after[full])
        assert np.all(np.any(np.asarray(before[~full] != after[~full]), axis=(1, 2, 3)))


def test_a_cache_that_does_not_divide_into_blocks_is_refused():
    qkv, cos, sin, k, v, starts = step_inputs(group=1, slots=72)
    with pytest.raises(ValueError, match="the cache has 72 slots, but must have a multiple of 64"):
        decode_attention(qkv, cos, sin, k, v, starts, jnp.asarray(GOING), heads=2)


def lowered(function, inputs, **kwargs) -> str:
    """The program for an H200 as text; JAX wants to know which GPU is meant when there is none."""
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        return jax.jit(function, **kwargs).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.nightly_for("Qwen2.5-0.5B", "Qwen2.5-1.5B")
@pytest.mark.parametrize(
    ("group", "kv_heads", "size"), [(7, 2, 64), (6, 2, 128), (3, 3, 64), (1, 12, 64)],
    ids=["Qwen2.5-0.5B", "Qwen2.5-1.5B", "SmolLM2-135M", "GPT-2"],
)  # fmt: skip
def test_it_lowers_for_cuda_without_a_gpu(group, kv_heads, size):
    inputs = step_inputs(group, size, kv_heads, jnp.bfloat16, slots=128)
    heads = group * kv_heads
    text = lowered(lambda *x: decode_attention(*x, jnp.asarray(GOING, jnp.int32), heads=heads), inputs)
    assert "triton" in text.lower()


def test_with_rows_and_a_prefix_it_lowers_for_cuda():
    inputs = step_inputs(7, 64, 2, jnp.bfloat16, slots=128)
    prefix, rows = (jnp.zeros((2, 316, 2, 64), jnp.bfloat16),) * 2, jnp.arange(8, dtype=jnp.int32)
    text = lowered(
        lambda *x: decode_attention(*x, rows, heads=14, table=rows[:, None], prefix=prefix, readers=rows % 2), inputs,
        donate_argnums=(3, 4),
    )  # fmt: skip
    assert "triton" in text.lower() and text.count("tf.aliasing_output") == 2


def test_it_aliases_the_cache():
    """The kernel writes into the cache it was given: no second cache of that size appears."""
    inputs = step_inputs(7, 64, 2, jnp.bfloat16, slots=128)
    text = lowered(
        lambda *x: decode_attention(*x, jnp.asarray(GOING, jnp.int32), heads=14), inputs, donate_argnums=(3, 4)
    )
    assert text.count("output_operand_alias") >= 1 and text.count("tf.aliasing_output") == 2


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="the compiled kernel runs on an NVIDIA GPU only")
@pytest.mark.parametrize(("group", "kv_heads", "size"), [(7, 2, 64), (6, 2, 128), (3, 3, 64), (1, 12, 64)])
@pytest.mark.parametrize("window", [None, 100])
def test_on_the_device_it_equals_plain_attention(group, kv_heads, size, window):
    check(group, window, size, kv_heads, jnp.bfloat16, slots=512, atol=0.04)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="the compiled kernel runs on an NVIDIA GPU only")
@pytest.mark.parametrize("window", [None, 100])
def test_on_the_device_it_reads_rows_behind_a_prefix(window):
    check_rows(7, window, n=3, length=316, size=64, dtype=jnp.bfloat16, slots=512, atol=0.04)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="the compiled kernel runs on an NVIDIA GPU only")
@pytest.mark.parametrize(("window", "page"), [(None, 16), (100, 16), (None, 128)])
def test_on_the_device_it_reads_and_writes_pages(window, page):
    check_pages(7, window, page, size=64, dtype=jnp.bfloat16, slots=512, atol=0.04)


@pytest.mark.parametrize(
    ("size", "slots", "fits"), [(64, 128, True), (128, 64, True), (96, 128, False), (8, 128, False), (64, 130, False)]
)
def test_heads_and_caches_that_do_not_suit_it_are_known(size, slots, fits):
    """Phi-3 has heads of 96 and a rollout may have a cache of 130 slots: those go to cuDNN instead."""
    assert supported(size, slots) is fits


@pytest.mark.parametrize(("page", "pages", "fits"), [(16, 5, True), (1, 3, True), (12, 4, False), (48, 1, False)])
def test_pages_that_do_not_suit_it_are_known(page, pages, fits):
    """Any number of pages of a power of two; a page that is all of a row must divide into blocks."""
    assert supported(64, page, pages) is fits
