"""Sampling a token by inverting the cumulative distribution, and the filters against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from marl_jax.sampling import draw
from marl_jax.sampling.batch_settings import row_keys
from tests.conftest import examples
from tests.marl_jax.tiny_engine import goodness

pytestmark = pytest.mark.quick

categorical = jax.jit(draw.categorical)
ALMOST_ONE = np.float32(1 - 2**-24)


def random_logits(*shape, seed=0, scale=2.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def drawn(logits, uniform, greedy=False):
    """Return tokens and log-probs of one row of logits for many uniform numbers."""
    n = len(uniform)
    tokens, logps = categorical(
        jnp.broadcast_to(logits, (n, len(logits))), np.asarray(uniform, np.float32), np.full((n,), greedy)
    )
    return np.asarray(tokens), np.asarray(logps)


@pytest.mark.nightly_for("5", "128")
@pytest.mark.parametrize("vocab", [5, 128, 300])
def test_evenly_spaced_numbers_hit_each_token_in_proportion(vocab):
    """There is no sampling error: the share of [0, 1) that maps to a token is its probability."""
    logits, n = random_logits(vocab), 20_000
    tokens, logps = drawn(logits, (np.arange(n) + 0.5) / n)
    assert np.all(np.diff(tokens) >= 0), "the tokens own intervals, in order"
    counts = np.bincount(tokens, minlength=vocab)
    np.testing.assert_allclose(counts, n * softmax(logits), atol=1.5)
    np.testing.assert_allclose(logps, log_softmax(logits)[tokens], atol=1e-5)


@pytest.mark.nightly_for("1.0")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_samples_follow_the_distribution(temperature):
    logits, n = random_logits(300, seed=1), 20_000
    temperatures = np.full((n,), temperature, np.float32)
    uniform = draw.row_uniform(row_keys(np.arange(n, dtype=np.uint32)), np.full((n,), 7))
    tokens, logps = categorical(
        draw.scaled(jnp.broadcast_to(logits, (n, 300)), temperatures), uniform, np.zeros((n,), bool)
    )
    counts = np.bincount(np.asarray(tokens), minlength=300)
    assert goodness(counts, softmax(logits / temperature)) > 0.01
    assert goodness(counts, softmax(logits / (temperature * 1.1))) < 1e-6, "the test must see a wrong temperature"
    np.testing.assert_allclose(logps, log_softmax(logits / temperature)[np.asarray(tokens)], atol=1e-5)


def test_a_real_vocabulary_loses_nothing_to_rounding():
    """With 152k float32 probabilities, every sample agrees with the float64 distribution to 1e-5."""
    logits = random_logits(151_936, seed=2)
    uniform = np.random.default_rng(3).random(32).astype(np.float32)
    tokens, logps = drawn(logits, uniform)
    cumulative = np.concatenate([[0.0], np.cumsum(softmax(logits.astype(np.float64)))])
    assert np.all(cumulative[tokens] - 1e-5 <= uniform) and np.all(uniform <= cumulative[tokens + 1] + 1e-5)
    np.testing.assert_allclose(logps, log_softmax(logits.astype(np.float64))[tokens], atol=2e-5)


@given(st.data())
@settings(max_examples=examples(50), deadline=None)
def test_what_is_impossible_is_never_drawn(data):
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=260, max_size=260).filter(any)))
    logits = np.where(allowed, random_logits(260, seed=4, scale=20.0), -np.inf)
    uniform = [0.0, ALMOST_ONE, data.draw(st.floats(0, float(ALMOST_ONE), width=32))]
    for greedy in (False, True):
        tokens, logps = drawn(logits, uniform, greedy)
        assert allowed[tokens].all() and np.isfinite(logps).all()


def test_the_only_possible_token_is_certain():
    logits = np.full((200,), -np.inf, np.float32)
    logits[137] = -3.0
    tokens, logps = drawn(logits, [0.0, 0.5, ALMOST_ONE])
    assert tokens.tolist() == [137] * 3 and logps.tolist() == [0.0] * 3


def test_greedy_takes_the_first_of_the_most_likely():
    logits = random_logits(300)
    logits[[40, 141, 299]] = 50.0
    tokens, logps = drawn(logits, [0.0, ALMOST_ONE], greedy=True)
    assert tokens.tolist() == [40, 40]
    np.testing.assert_allclose(logps, np.log(1 / 3), atol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("greedy", [False, True])
def test_logits_that_are_not_finite_show_in_the_log_probability(poison, greedy):
    logits = random_logits(2, 200)
    logits[1, 150] = poison
    _, logps = categorical(logits, np.float32([0.3, 0.3]), np.full((2,), greedy))
    assert np.isfinite(logps).tolist() == [True, False]


def test_a_rows_number_depends_on_its_key_and_position_only():
    keys, positions = row_keys(np.arange(6, dtype=np.uint32)), np.arange(6)
    uniform = np.asarray(draw.row_uniform(keys, positions))
    order = np.array([4, 2, 5])
    np.testing.assert_array_equal(draw.row_uniform(keys[order], positions[order]), uniform[order])
    assert len(np.unique(uniform)) == 6
    assert not np.any(np.asarray(draw.row_uniform(keys, positions + 1)) == uniform)
    assert not np.any(np.asarray(draw.row_uniform(row_keys(np.arange(1, 7, dtype=np.uint32)), positions)) == uniform)


def test_temperature_zero_leaves_the_logits():
    logits = random_logits(3, 10)
    heated = draw.scaled(logits, np.float32([0.0, 1.0, 0.5]))
    np.testing.assert_allclose(heated, logits * np.array([[1], [1], [2]]), rtol=1e-6)


# Filters


def plain_top_k(logits, k):
    return logits if k == 0 else np.where(logits >= np.sort(logits)[::-1][min(k, len(logits)) - 1], logits, -np.inf)


def plain_top_p(logits, p):
    """Return the most likely tokens until p is reached, with ties of the last one."""
    if p == 1:
        return logits
    probs, total = softmax(logits.astype(np.float64)), 0.0
    for token in np.argsort(-logits, kind="stable"):
        total, edge = total + probs[token], logits[token]
        if total >= p:
            break
    return np.where(logits >= edge, logits, -np.inf)


def plain_penalty(logits, seen, penalty):
    factor = np.where(logits > 0, 1 / penalty, penalty)
    return np.where(seen, logits * factor, logits)


@jax.jit
def filtered(logits, k, p, seen, penalty):
    logits = draw.penalise(logits, seen, penalty)
    return logits, draw.keep_top_k(logits, k), draw.keep_top_p(logits, p)


@given(
    st.lists(st.integers(-8, 8), min_size=12, max_size=12),  # multiples of one half, so that ties are common
    st.integers(0, 14),
    st.sampled_from([0.05, 0.3, 0.55, 0.8, 0.97, 1.0]),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.sampled_from([0.5, 1.0, 1.5]),
)
@settings(max_examples=examples(100), deadline=None)
def test_filters_equal_plain_numpy(halves, k, p, seen, penalty):
    logits, seen = np.float32(halves) / 2, np.array(seen)
    f32 = np.float32
    penalised, top_k, top_p = filtered(logits[None], np.array([k]), f32([p]), seen[None], f32([penalty]))
    expected = plain_penalty(logits, seen, f32(penalty))
    np.testing.assert_allclose(penalised[0], expected, rtol=1e-6)
    penalised = np.asarray(penalised[0])
    np.testing.assert_array_equal(top_k[0], plain_top_k(penalised, k))
    assert np.isfinite(top_p[0]).any()
    probs = np.sort(softmax(penalised.astype(np.float64)))[::-1]
    if np.min(np.abs(np.cumsum(probs) - p)) > 1e-5:  # otherwise rounding decides whether p is reached
        np.testing.assert_array_equal(top_p[0], plain_top_p(penalised, p))


def test_equals_at_the_edge_stay_together():
    """Four tokens of probability 1/4: keeping two of them would need an arbitrary order."""
    flat = jnp.zeros((1, 4))
    assert np.isfinite(draw.keep_top_p(flat, jnp.array([0.5]))).all()
    assert np.isfinite(draw.keep_top_k(flat, jnp.array([2]))).all()
    peaked = jnp.array([[2.0, 1.0, 1.0, 0.0]])
    assert np.isfinite(draw.keep_top_p(peaked, jnp.array([1e-6]))).tolist() == [[True, False, False, False]]
    assert np.isfinite(draw.keep_top_p(peaked, jnp.array([0.7]))).tolist() == [[True, True, True, False]]


def test_each_row_has_its_own_filter():
    logits = jnp.broadcast_to(jnp.arange(6.0), (3, 6))
    kept = np.isfinite(draw.keep_top_k(logits, jnp.array([0, 1, 3]))).sum(axis=1)
    assert kept.tolist() == [6, 1, 3]
    kept = np.isfinite(draw.keep_top_p(logits, jnp.array([1.0, 0.1, 0.9]))).sum(axis=1)
    assert kept.tolist() == [6, 1, 3]
