"""The key/value cache: rows of unequal length, appending, idle rows, full rows, sharing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import cache as kv
from tests.models.tiny_models import forward, largest_difference, make, random_tokens, unstack

pytestmark = pytest.mark.quick

SLOTS = 20
ATOL = 1e-5  # float32: two orders of summing the same products


@pytest.fixture(scope="module", params=["mistral", "gpt2"])
def one(request):
    """A model with its unstacked parameters: one with a window of five, one with learned positions."""
    model, params = make(request.param)
    return model, unstack(model, params)


def alone(model, params, row):
    """hidden [T, D] of one row, read at once without a cache."""
    padded = np.zeros((1, SLOTS), np.int32)
    padded[0, : len(row)] = row
    return forward(model, params, padded)[0][0, : len(row)]


def test_rows_of_unequal_length_equal_each_row_alone(one):
    """Prefill, then a second turn in which one row is idle, then single steps in which another is."""
    model, params = one
    tokens = random_tokens(3, SLOTS)
    turns = [(np.array([9, 4, 6]), 9), (np.array([1, 3, 0]), 3), (np.array([1, 0, 1]), 1), (np.array([1, 1, 1]), 1)]
    rows, cache = [[], [], []], None
    for lengths, width in turns:
        new = np.zeros((3, width), np.int32)
        for b, n in enumerate(lengths):
            new[b, :n] = tokens[b, len(rows[b]) : len(rows[b]) + n]
        if cache is None:
            hidden, cache = forward(model, params, new, lengths=lengths, new_cache=SLOTS)
        else:
            hidden, cache = forward(model, params, new, lengths=lengths, cache=cache)
        for b, n in enumerate(lengths):
            rows[b].extend(hidden[b, :n])
        assert cache.lengths.tolist() == [len(row) for row in rows]
    for b, row in enumerate(rows):
        np.testing.assert_allclose(np.stack(row), alone(model, params, tokens[b, : len(row)]), atol=ATOL)


def test_appending_equals_reading_again(one):
    """The contents of the cache are the same, not only the outputs."""
    model, params = one
    tokens = random_tokens(3, 12, seed=3)
    _, cache = forward(model, params, tokens[:, :9], new_cache=SLOTS)
    hidden, appended = forward(model, params, tokens[:, 9:], cache=cache)
    whole, again = forward(model, params, tokens, new_cache=SLOTS)
    np.testing.assert_allclose(hidden, whole[:, 9:], atol=ATOL)
    assert largest_difference(appended, again) < ATOL


def test_reading_into_an_empty_cache_equals_starting_one(one):
    model, params = one
    tokens, lengths = random_tokens(3, 3), np.array([3, 1, 2])
    hidden, cache = forward(
        model, params, tokens, lengths=lengths, cache=kv.empty(model.cfg, 3, SLOTS, dtype=jnp.float32)
    )
    fresh, other = forward(model, params, tokens, lengths=lengths, new_cache=SLOTS)
    filled = np.arange(SLOTS)[None, :, None, None] < lengths[:, None, None, None]
    for (k, v), (k2, v2) in zip(cache.layers, other.layers, strict=True):
        np.testing.assert_allclose(np.where(filled, k, 0), np.where(filled, k2, 0), atol=ATOL)
        np.testing.assert_allclose(np.where(filled, v, 0), np.where(filled, v2, 0), atol=ATOL)
        assert not np.any(np.where(filled, 0, k)), "padding must not be written"
    for b, n in enumerate(lengths):
        np.testing.assert_allclose(hidden[b, :n], fresh[b, :n], atol=ATOL)


def test_what_lies_beyond_the_length_is_never_seen(one):
    model, params = one
    tokens = random_tokens(3, 3)
    _, cache = forward(model, params, tokens, lengths=np.array([3, 1, 2]), new_cache=SLOTS)
    beyond = np.arange(SLOTS)[None, :, None, None] >= np.array([3, 1, 2])[:, None, None, None]
    spoilt = kv.Cache(jax.tree.map(lambda x: jnp.where(beyond, 1e4, x), cache.layers), cache.lengths)
    clean_out, _ = forward(model, params, tokens[:, :1], cache=cache)
    spoilt_out, _ = forward(model, params, tokens[:, :1], cache=spoilt)
    np.testing.assert_array_equal(clean_out, spoilt_out)


def test_full_and_idle_rows_do_no_harm(one):
    """A full row drops what it is given and an idle row keeps its cache to the bit; neighbours do not notice."""
    model, params = one
    tokens = random_tokens(3, SLOTS)
    lengths = np.array([SLOTS, 7, 7])
    _, cache = forward(model, params, tokens, lengths=lengths, new_cache=SLOTS)
    hidden, after = forward(model, params, tokens[:, :1], lengths=np.array([1, 0, 1]), cache=cache)
    assert np.all(np.isfinite(hidden))
    for before, now in zip(*(map(np.asarray, jax.tree.leaves(x.layers)) for x in (cache, after)), strict=True):
        np.testing.assert_array_equal(now[:2], before[:2])
        assert np.any(now[2] != before[2])
    expected = alone(model, params, np.append(tokens[2, :7], tokens[2, 0]))[-1]
    np.testing.assert_allclose(hidden[2, 0], expected, atol=ATOL)


def test_write_drops_padding_and_what_does_not_fit():
    k, v = np.ones((3, 4, 1, 2), np.float32), np.full((3, 4, 1, 2), 2, np.float32)
    old = (jnp.zeros((3, 6, 1, 2)), jnp.zeros((3, 6, 1, 2)))
    new_k, new_v = kv.write(old, k, v, starts=jnp.array([0, 4, 6]), lengths=jnp.array([2, 4, 4]))
    expected = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(new_k[:, :, 0, 0], expected)
    np.testing.assert_array_equal(new_v[:, :, 0, 1], 2 * expected)


def test_repeat_gives_every_sample_its_prompt(one):
    model, params = one
    tokens = random_tokens(3, 3)
    _, cache = forward(model, params, tokens, lengths=np.array([3, 1, 2]), new_cache=SLOTS)
    many = kv.repeat(cache, 2)
    assert many.lengths.tolist() == [3, 3, 1, 1, 2, 2]
    step = random_tokens(6, 1, seed=5)
    hidden, _ = forward(model, params, step, cache=many)
    for b, n in enumerate([3, 3, 1, 1, 2, 2]):
        expected = alone(model, params, np.append(tokens[b // 2, :n], step[b]))[-1]
        np.testing.assert_allclose(hidden[b, 0], expected, atol=ATOL)


def test_broadcast_gives_every_row_the_rules(one):
    model, params = one
    rules, turn = random_tokens(1, 6), random_tokens(3, 3, seed=7)
    _, cache = forward(model, params, rules, new_cache=6)
    wide = kv.broadcast(cache, batch=3, slots=SLOTS)
    assert wide.slots == SLOTS and wide.lengths.tolist() == [6, 6, 6]
    hidden, _ = forward(model, params, turn, cache=wide)
    for b in range(3):
        np.testing.assert_allclose(hidden[b], alone(model, params, np.append(rules, turn[b]))[6:], atol=ATOL)


def test_a_bf16_cache_costs_a_rounding():
    """Keys and values rounded to 8 bits under a float32 computation: the hidden states move by less than 2 %."""
    model, stacked = make("gpt2")
    params = unstack(model, stacked)
    tokens = random_tokens(3, 3)
    exact, _ = forward(model, params, tokens, cache=kv.empty(model.cfg, 3, SLOTS, jnp.float32))
    rough, cache = forward(model, params, tokens, cache=kv.empty(model.cfg, 3, SLOTS))
    assert {x.dtype for x in jax.tree.leaves(cache.layers)} == {jnp.dtype("bfloat16")}
    error = np.sqrt(np.mean(np.square(rough - exact)) / np.mean(np.square(exact)))
    assert 0 < error < 0.02


def test_nbytes_counts_what_a_cache_holds():
    model, _ = make("qwen2")
    cache = kv.empty(model.cfg, batch=3, slots=7)
    assert kv.nbytes(model.cfg, 3, 7) == sum(x.nbytes for x in jax.tree.leaves(cache.layers))
