"""The decode loop as pure functions: chunks, stops, budgets, idle rows, the first token's distribution."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from marl_jax.sampling import decode
from marl_jax.sampling.batch_settings import row_keys, settings_for
from marl_jax.sampling.settings import Sampling, with_seeds
from models.cache import Cache
from tests.marl_jax.sampling.test_draw import plain_penalty, plain_top_k, plain_top_p
from tests.marl_jax.tiny_engine import (
    CONFIG,
    full_logits,
    goodness,
    greedy_chain,
    learner_logprobs,
    model_and_params,
    quick_jit,
    random_prompts,
)  # fmt: skip

ROWS, SLOTS = 4, 48
PROMPTS = random_prompts([5, 9, 1, 7])


@functools.cache
def fast_params():
    model, params = model_and_params()
    return quick_jit(functools.partial(model.unstack, dtype=jnp.float32))(params)


@functools.partial(quick_jit, static_argnames="model")
def _prefill(model, params, tokens, lengths):
    hidden, cache = model.forward(params, tokens, lengths=lengths, new_cache=SLOTS, dtype=jnp.float32)
    return hidden[jnp.arange(len(tokens)), lengths - 1], cache


@functools.partial(quick_jit, static_argnames="model")
def _begin(model, params, hidden, cache, settings):
    return decode.begin(model, params, hidden, cache, settings)


@functools.partial(quick_jit, static_argnames=("model", "steps"))
def _chunk(model, params, rows, settings, steps):
    return decode.chunk(model, params, rows, settings, steps, dtype=jnp.float32)


def prefilled():
    tokens = np.zeros((ROWS, 16), np.int32)
    for row, prompt in zip(tokens, PROMPTS, strict=True):
        row[: len(prompt)] = prompt
    model, _ = model_and_params()
    return _prefill(model, fast_params(), tokens, np.array([len(p) for p in PROMPTS]))


def begin(settings, params=None):
    model, _ = model_and_params()
    return _begin(model, params or fast_params(), *prefilled(), settings)


def chunk(rows, settings, steps=8, params=None):
    model, _ = model_and_params()
    return _chunk(model, params or fast_params(), rows, settings, steps)


def answers(requests, steps=8, params=None):
    """Decode until every row is done, `steps` at a time, and return tokens, logps and rows."""
    settings = settings_for(requests, ROWS, PROMPTS, CONFIG.vocab_size)
    rows, token, logp = begin(settings, params)
    pieces = [(token[:, None], logp[:, None])]
    while np.any(rows.finish == decode.GOING):
        rows, *new, taken = chunk(rows, settings, steps, params)
        assert 0 < taken <= steps
        pieces.append(new)
    tokens, logps = (np.concatenate(x, axis=1) for x in zip(*pieces, strict=True))
    return [t[:n] for t, n in zip(tokens, rows.written, strict=True)], logps, rows


def finishes(rows):
    return [decode.FINISH[i] for i in rows.finish.tolist()]


def test_greedy_equals_the_full_forward():
    tokens, _, rows = answers([Sampling(temperature=0, max_new_tokens=20)] * ROWS)
    assert [t.tolist() for t in tokens] == greedy_chain(PROMPTS, 20)
    assert finishes(rows) == ["length"] * ROWS
    assert rows.cache.lengths.tolist() == [len(p) + 19 for p in PROMPTS], "the last token is not read"


@pytest.mark.nightly_for("1", "3", "64")
@pytest.mark.parametrize("steps", [1, 3, 64])
def test_chunked_equals_unchunked(steps):
    """Rows with different budgets at temperature one: the chunk size changes nothing."""
    requests = [Sampling(max_new_tokens=n, seed=i) for i, n in enumerate([20, 7, 13, 1])]
    expected, logps, rows = answers(requests, steps=8)
    tokens, logps2, rows2 = answers(requests, steps)
    for i, (a, b) in enumerate(zip(tokens, expected, strict=True)):
        assert a.tolist() == b.tolist()
        np.testing.assert_allclose(logps[i, : len(a)], logps2[i, : len(a)], atol=1e-6)
    assert [len(t) for t in tokens] == [20, 7, 13, 1]
    assert rows.cache.lengths.tolist() == rows2.cache.lengths.tolist()


def test_log_probs_equal_the_learners():
    temperatures = [1.0, 0.7, 1.6, 0.3]
    requests = [Sampling(temperature=t, max_new_tokens=20, seed=i) for i, t in enumerate(temperatures)]
    tokens, logps, _ = answers(requests)
    for mine, theirs in zip(logps, learner_logprobs(PROMPTS, tokens, temperatures), strict=True):
        np.testing.assert_allclose(mine[:20], theirs, atol=1e-4)


@pytest.mark.nightly_for("1.0")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_first_token_follows_the_distribution(temperature):
    """8,192 rows that differ only in their seed, through `begin`."""
    n, model = 8192, model_and_params()[0]
    hidden, cache = prefilled()
    settings = decode.Settings(
        row_keys(np.arange(n, dtype=np.uint32)), jnp.full((n,), temperature), jnp.full((n, 1), -1), jnp.full((n,), 4)
    )
    lengths = jnp.broadcast_to(cache.lengths[0], (n,))
    rows, tokens, logps = _begin(
        model, fast_params(), jnp.broadcast_to(hidden[0], (n, CONFIG.d_model)), Cache((), lengths), settings
    )
    logits = full_logits(PROMPTS[:1])[0][-1]
    counts = np.bincount(tokens, minlength=CONFIG.vocab_size)
    assert goodness(counts, softmax(logits / temperature)) > 0.01
    assert goodness(counts, softmax(logits / (1.3 * temperature))) < 1e-6
    np.testing.assert_allclose(logps, np.log(softmax(logits / temperature))[np.asarray(tokens)], atol=1e-4)
    assert np.all(rows.written == 1)


def test_stop_ids_end_a_row_and_belong_to_the_answer():
    chain = greedy_chain(PROMPTS, 12)
    stops = [(chain[0][0],), (chain[1][5], 200), (), (96, 95, 94, 93, chain[3][2])]  # more than four: wider arrays
    requests = [Sampling(temperature=0, max_new_tokens=12, stop_ids=s) for s in stops]
    tokens, _, rows = answers(requests)
    for row, stop, line, reason in zip(tokens, stops, chain, finishes(rows), strict=True):
        first = next((i for i, t in enumerate(line) if t in stop), None)
        expected = line if first is None else line[: first + 1]
        assert row.tolist() == expected
        assert reason == ("length" if first is None else "stop")


def test_rows_that_have_finished_ride_along_untouched():
    """Their cache stays bit-equal, and other rows get the same result as alone."""
    requests = [Sampling(max_new_tokens=1), Sampling(max_new_tokens=15, seed=3)] * 2
    settings = settings_for(requests, ROWS)
    rows, *_ = begin(settings)
    before = jax.device_get(rows)
    after, tokens, logps, _ = chunk(rows, settings)
    for old, new in zip(jax.tree.leaves(before.cache.layers), jax.tree.leaves(after.cache.layers), strict=True):
        np.testing.assert_array_equal(old[::2], new[::2])
        assert np.any(old[1::2] != np.asarray(new)[1::2])
    assert not np.any(tokens[::2]) and not np.any(logps[::2]), "the line of a finished row is empty"
    assert after.written.tolist() == [1, 9, 1, 9] and after.token[0] == before.token[0]


def test_a_chunk_ends_when_every_row_is_done():
    settings = settings_for([Sampling(max_new_tokens=n) for n in (3, 5, 2, 4)], ROWS)
    rows, *_ = begin(settings)
    *_, taken = chunk(rows, settings, 64)
    assert taken == decode.CHECK_EVERY, "done after four steps, seen at the next look"
    done, *_ = chunk(rows, settings, 64)
    again, tokens, _, taken = chunk(done, settings, 64)
    assert taken == 0 and not np.any(tokens)
    assert again.cache.lengths.tolist() == done.cache.lengths.tolist()


def test_a_budget_of_zero_never_starts():
    settings = dataclasses.replace(
        settings_for(with_seeds(Sampling(), ROWS), ROWS), budget=jnp.array([0, 2, 0, 2], jnp.int32)
    )
    rows, tokens, logps = begin(settings)
    assert rows.written.tolist() == [0, 1, 0, 1] and finishes(rows) == ["length", "going"] * 2
    assert not np.any(tokens[::2]) and not np.any(logps[::2])


def test_a_nan_stops_its_row_and_no_other():
    """One key of one row's cache is NaN."""
    chain = greedy_chain(PROMPTS, 8)
    requests = [Sampling(temperature=0, max_new_tokens=8)] * ROWS
    settings = settings_for(requests, ROWS)
    rows, *_ = begin(settings)
    k = rows.cache.layers[1][0].at[2, 0].set(jnp.nan)
    layers = (rows.cache.layers[0], (k, rows.cache.layers[1][1]))
    spoilt = dataclasses.replace(rows, cache=Cache(layers, rows.cache.lengths))
    after, tokens, logps, _ = chunk(spoilt, settings)
    assert finishes(after) == ["length", "length", "invalid", "length"]
    assert np.isfinite(logps).all() and after.written[2] == 1, "nothing was sampled from it"
    for i in (0, 1, 3):
        assert np.asarray(tokens)[i, :7].tolist() == chain[i][1:]


def test_filters_shape_the_distribution_and_its_log_probs():
    """One row each with top-k, top-p, a penalty and no filter; each step against NumPy on the full forward pass."""
    requests = [
        Sampling(max_new_tokens=10, seed=1, top_k=3, temperature=0.9),
        Sampling(max_new_tokens=10, seed=2, top_p=0.4, temperature=1.5),
        Sampling(max_new_tokens=10, seed=3, repetition_penalty=1.8, top_k=5),
        Sampling(max_new_tokens=10, seed=4),
    ]
    tokens, logps, _ = answers(requests)
    rows = [p + t.tolist() for p, t in zip(PROMPTS, tokens, strict=True)]
    for i, (row, request) in enumerate(zip(rows, requests, strict=True)):
        logits = full_logits(rows)[i]
        for step, token in enumerate(tokens[i]):
            n = len(PROMPTS[i]) + step
            seen = np.isin(np.arange(CONFIG.vocab_size), row[:n])
            line = plain_penalty(logits[n - 1], seen, request.repetition_penalty) / request.temperature
            line = plain_top_p(plain_top_k(line, request.top_k), request.top_p)
            assert np.isfinite(line[token])
            np.testing.assert_allclose(logps[i, step], np.log(softmax(line)[token]), atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("max_new_tokens", 0), ("top_k", -1), ("top_p", 0.0),
        ("top_p", 1.1), ("repetition_penalty", 0.0), ("stop_strings", ("end", "")), ("seed", -1), ("seed", 2**32),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} is .*, but must be "):
        Sampling(**{field: value})
