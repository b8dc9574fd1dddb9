"""Reading tokens into pages: the GPU kernel, interpreted here, and blocks on the CPU, against plain attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import blockwise, read_kernel
from tests.models.tiny_models import quick_jit

jit = jax.jit if jax.default_backend() == "gpu" else quick_jit
ON_GPU = jax.default_backend() == "gpu"


def contexts(starts, lengths, time, page, group, seed, slots=128, kv_heads=2, size=16, dtype=jnp.float32):
    """Queries, pages in any order with rubbish where nothing was read, their table, and what plain attention gets.

    The first two rows share the pages that lie whole before what either of them reads now.
    """
    rng, batch = np.random.default_rng(seed), len(starts)
    width = slots // page
    q = rng.standard_normal((batch, time, group * kv_heads, size))
    k, v = rng.standard_normal((2, batch, slots, kv_heads, size))
    shared = min(starts[:2]) // page
    k[1, : shared * page], v[1, : shared * page] = k[0, : shared * page], v[0, : shared * page]
    places = rng.permutation(batch * width + 3)
    table = places[: batch * width].reshape(batch, width)
    table[1, :shared] = table[0, :shared]
    filled = np.arange(slots) < (starts + lengths)[:, None]
    pools = np.full((2, len(places), page, kv_heads, size), 1e3)
    for pool, x in zip(pools, (k, v), strict=True):
        x = np.where(filled[..., None, None], x, 1e3)
        pool[table] = x.reshape(batch, width, page, kv_heads, size)
    return tuple(jnp.asarray(x, dtype) for x in (q, k, v, *pools)), table.astype(np.int32), filled


@quick_jit
def plain(q, k, v, mask):
    return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")


def expected(q, k, v, starts, window):
    """By the library's own attention over rows that lie in one piece."""
    query = starts[:, None] + np.arange(q.shape[1])
    slot = np.arange(k.shape[1])
    mask = slot <= query[..., None]
    if window is not None:
        mask &= slot > query[..., None] - window
    return plain(q, k, v, mask)


def compare(out, theirs, lengths, atol):
    for b, n in enumerate(lengths):
        np.testing.assert_allclose(*(np.asarray(x[b, :n], np.float32) for x in (out, theirs)), atol=atol)


STARTS = np.array([40, 33, 0, 64, 7, 0, 112])
LENGTHS = np.array([16, 5, 16, 1, 9, 0, 16])  # a row that reads nothing, one that fills its pages


def check_kernel(group, window, page, time=16, atol=2e-6, starts=STARTS, lengths=LENGTHS, **shape):
    (q, k, v, *pools), table, _ = contexts(starts, lengths, time, page, group, seed=page, **shape)
    run = jit(lambda *x: read_kernel.read_attention(*x, window=window, interpret=not ON_GPU))
    out = run(q, *pools, jnp.asarray(table), jnp.asarray(starts, jnp.int32), jnp.asarray(lengths, jnp.int32))
    compare(out, expected(q, k, v, starts, window), lengths, atol)
    assert np.isfinite(np.asarray(out, np.float32)).all(), "lines that are not used must not spread NaN"


@pytest.mark.nightly_for("1-None-4", "2-5-4", "3-None-16")
@pytest.mark.parametrize(("group", "window", "page"), [(1, None, 4), (3, None, 16), (2, 5, 4), (1, 70, 64)])
def test_the_kernel_equals_plain_attention(group, window, page):
    """Lines within a page and across pages and blocks, at the start and at the end of what a row can hold."""
    check_kernel(group, window, page, atol=2e-2 if ON_GPU else 2e-6)


@pytest.mark.nightly
def test_in_bf16_the_kernel_costs_a_rounding():
    check_kernel(3, None, 16, dtype=jnp.bfloat16, atol=0.04)


@pytest.mark.skipif(not ON_GPU, reason="the compiled kernel runs on an NVIDIA GPU only")
@pytest.mark.parametrize(("group", "window", "size"), [(7, None, 64), (6, 100, 128)])
def test_on_the_device_it_equals_plain_attention(group, window, size):
    starts, lengths = np.array([300, 129, 0, 64, 400]), np.array([64, 13, 64, 1, 0])
    check_kernel(
        group, window, 16, time=64, starts=starts, lengths=lengths, slots=512, size=size, dtype=jnp.bfloat16, atol=0.04
    )


def test_it_lowers_for_cuda_without_a_gpu():
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    shapes = [(4, 64, 12, 128), (40, 16, 2, 128), (40, 16, 2, 128)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    arrays += [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((4, 8), (4,), (4,))]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        text = jax.jit(read_kernel.read_attention).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert "triton" in text.lower()


@pytest.mark.parametrize(
    ("time", "size", "fits"), [(64, 64, True), (16, 128, True), (1, 64, False), (48, 64, False), (64, 96, False),
                               (256, 64, False)],
)  # fmt: skip
def test_lines_that_do_not_suit_it_are_known(time, size, fits):
    assert read_kernel.supported(time, size) is fits


# Blocks on the CPU

attend = quick_jit(blockwise.attend, static_argnums=5)


@pytest.mark.nightly
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_blocks_equal_plain_attention(data):
    """Lines and steps of any place and length; pages of many sizes, or rows in one piece."""
    time, page = data.draw(st.sampled_from([(8, 4), (8, 128), (1, 16), (1, 64)]))
    window = data.draw(st.sampled_from([None, 7, 70]))
    starts = np.array(data.draw(st.lists(st.integers(0, 128 - time), min_size=4, max_size=4)))
    lengths = np.array(data.draw(st.lists(st.integers(0, time), min_size=4, max_size=4)))
    (q, k, v, *pools), table, filled = contexts(starts, lengths, time, page, 2, data.draw(st.integers(0, 9)))
    theirs = expected(q, k, v, starts, window)
    out = attend(q, pools, jnp.asarray(table), jnp.asarray(starts), jnp.asarray(lengths), window)
    compare(out, theirs, lengths, 2e-6)
    # Contiguous rows give the same bits, whatever follows the filled slots, even if it is not finite.
    rough = [jnp.where(filled[..., None, None], x, jnp.nan) for x in (k, v)]
    whole = attend(q, rough, None, jnp.asarray(starts), jnp.asarray(lengths), window)
    for b, n in enumerate(lengths):
        np.testing.assert_array_equal(out[b, :n], whole[b, :n])


def test_neighbours_do_not_change_a_bit():
    """A long neighbour makes the loop run further; what that adds to a row is nothing."""
    starts, lengths = np.array([3, 3, 120]), np.array([1, 1, 1])
    (q, k, v, *pools), table, _ = contexts(starts, lengths, 1, 16, 2, seed=0)
    far = attend(q, pools, jnp.asarray(table), jnp.asarray(starts), jnp.asarray(lengths), None)
    near = attend(q, pools, jnp.asarray(table), jnp.asarray(starts), jnp.asarray([1, 1, 0]), None)
    np.testing.assert_array_equal(far[:2], near[:2])


@pytest.mark.parametrize(("size", "pages", "fits"), [(64, 1, True), (192, 1, True), (16, 4, True), (16, 6, False),
                                                     (48, 4, False), (4, 16, True)])  # fmt: skip
def test_rows_that_cannot_be_read_in_blocks_are_known(size, pages, fits):
    assert blockwise.supported(size, pages) is fits
