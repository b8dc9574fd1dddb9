"""Attention for TPUs: the layout that JAX's kernel takes, what the kernel is asked, and the kernel itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as jax_kernel

from models import cache as kv
from models import tpu_attention
from models.attention import Attend, default_kernel
from models.config import ModelConfig
from tests.models.stand_ins import ragged_paged_attention
from tests.models.tiny_models import quick_jit

ATOL = 2e-6  # float32: two orders of summing the same products
SIZE, WIDTH = 4, 6  # slots of a page, pages of a row


def random_case(rng, rows, time, heads, kv_heads, head_dim):
    """Queries, new keys and values, and rows that have read before, some of them idle or full, in pages of no order."""
    slots = SIZE * WIDTH
    lengths = rng.integers(0, time + 1, rows).astype(np.int32)
    starts = np.asarray([rng.integers(0, slots - n + 1) for n in lengths], np.int32)
    table = rng.permutation(rows * WIDTH + 2)[: rows * WIDTH].reshape(rows, WIDTH).astype(np.int32)
    q, k, v = (np.float32(rng.standard_normal((rows, time, n, head_dim))) for n in (heads, kv_heads, kv_heads))
    apart = tuple(np.float32(rng.standard_normal((rows * WIDTH + 2, SIZE, kv_heads, head_dim))) for _ in "kv")
    return (q, k, v), (starts, lengths, table), apart, (combine(*apart),)


@quick_jit
def combine(k, v):
    """Pages of keys and of values as the kernel takes them."""
    return tpu_attention.combine(k, v, *tpu_attention.page_shape(*k.shape[1:])[1:])


@functools.partial(quick_jit, static_argnums=(0, 1))
def attend(kernel, window, starts, lengths, table, qkv, layer):
    return Attend(starts, lengths, window, False, kernel, table=table)(*qkv, layer)


def both(case, window):
    """Outputs of real queries by XLA with separate and with combined keys and values, and both caches."""
    qkv, (starts, lengths, table), apart, combined = case
    real = np.arange(qkv[0].shape[1]) < lengths[:, None]
    found = []
    for kernel, layer in (("xla", apart), ("tpu", combined)):
        out, layer = attend(kernel, window, starts, lengths, table, qkv, layer)
        assert out.shape == qkv[0].shape
        found.append((np.asarray(out)[real], layer))
    return found


@pytest.mark.nightly_for("1-None-heads0", "5-3-heads3")
@pytest.mark.parametrize(
    ("time", "window", "heads"), [(1, None, (9, 3)), (1, 3, (4, 2)), (5, None, (6, 1)), (5, 3, (5, 5))]
)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_get_what_xla_gives_them(time, window, heads, seed):
    case = random_case(np.random.default_rng(seed), 4, time, *heads, head_dim=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tpu_attention, "TABLE", 3 * 4 * 128)  # three rows to a call, then one
        patch.setattr(tpu_attention.rpa, "ragged_paged_attention", ragged_paged_attention)
        (expected, apart), (found, (combined,)) = both(case, window)
    np.testing.assert_allclose(found, expected, atol=ATOL)
    np.testing.assert_array_equal(combined, combine(*apart), err_msg="padding stays zero")


@pytest.mark.nightly_for("1-3")
@pytest.mark.parametrize(("time", "window"), [(1, 3), (5, None)])
def test_the_kernel_itself(time, window, monkeypatch):
    """Interpreted, with more than one block of slots and of queries.

    The interpreter knows neither references that were reshaped nor masked stores to a part of one, so the kernel is
    given values that were loaded, and stores both what is new and what is kept.
    """

    def store(ref, new, mask):
        ref[...] = jnp.where(mask, new, ref[...])

    wait = jax_kernel.MultiPageAsyncCopyDescriptor.wait
    monkeypatch.setattr(jax_kernel.MultiPageAsyncCopyDescriptor, "wait", lambda self: wait(self)[...])
    monkeypatch.setattr(jax_kernel.pltpu, "store", store)
    monkeypatch.setattr(tpu_attention, "BLOCK", 2 * SIZE)
    monkeypatch.setattr(tpu_attention, "QUERIES", 4)
    case = random_case(np.random.default_rng(time), 5, time, 3, 1, head_dim=8)
    case[1][1][:] = [time, 0, time, 0, 1]
    case[1][0][:] = [0, SIZE * WIDTH, 2, 0, SIZE * WIDTH - 1]
    with pltpu.force_tpu_interpret_mode():
        (expected, _), (found, _) = both(case, window)
    np.testing.assert_allclose(found, expected, atol=ATOL)


def test_the_stand_in_equals_the_reference_of_jax():
    rng = np.random.default_rng(0)
    q, pages = (np.float32(rng.standard_normal(shape)) for shape in ((9, 6, 128), (8, SIZE, 4, 128)))
    rows = [np.asarray(x, np.int32) for x in ([9, 4, 3], [[5, 2, 7], [1, 0, 0], [3, 0, 0]], [0, 1, 5, 8], [3])]
    options = dict(sm_scale=0.3, sliding_window=3)
    reference = functools.partial(jax_kernel.ref_ragged_paged_attention, **options)
    expected = quick_jit(lambda q, pages: reference(q, pages, *rows))(q, pages)  # it needs to know the rows
    found = quick_jit(functools.partial(ragged_paged_attention, **options))(q, pages, *rows)
    np.testing.assert_allclose(found[: len(expected)], expected, atol=ATOL)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_kernel_accepts_every_number_of_heads(dtype):
    for kv_heads in range(1, 41):
        _, combined, lanes = tpu_attention.page_shape(16, kv_heads, 64)
        assert combined >= 2 * kv_heads and lanes == 128
        jax_kernel.get_min_heads_per_blk(combined // 2 * 3, combined, dtype, dtype)


@pytest.mark.parametrize(
    ("kv_heads", "tensor", "expected"), [(2, 1, True), (2, 2, True), (3, 2, True), (2, 4, False), (24, 8, False)]
)
def test_layers_are_combined_on_tpus_where_heads_stay_whole(kv_heads, tensor, expected, monkeypatch):
    cfg = ModelConfig("llama", 64, 32, 2, kv_heads, kv_heads, 8, 48, 64)
    mesh = jax.make_mesh((tensor,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))

    def empty():
        layers = kv.empty_pages(cfg, 3, SIZE, jnp.float32)
        return kv.Cache(layers, jnp.zeros(2, jnp.int32), jnp.zeros((2, 1), jnp.int32))

    with jax.set_mesh(mesh):
        assert not empty().combined, "on a CPU"
        monkeypatch.setattr(tpu_attention, "platform", lambda: "tpu")
        cache = empty()
        assert cache.combined == expected and (default_kernel(8, cache) == "tpu") == expected
        held = sum(x.nbytes for x in jax.tree.leaves(cache.layers)) // 3
        split = 1 if not expected and kv_heads % tensor else tensor
        assert kv.page_nbytes(cfg, SIZE, jnp.float32) == held // split
