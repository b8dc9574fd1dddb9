"""Conversations in one cache, of which some rows move at a turn: they see what they would see without a cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import attention, decode_kernel, lora
from models import cache as kv
from tests.conftest import examples, nightly_cases
from tests.models.test_sharding import MESHES, mesh_of
from tests.models.tiny_models import FAMILIES, make, quick_jit, random_tokens, unstack

pytestmark = pytest.mark.long

F32, ATOL = jnp.float32, 1e-5
SLOTS, GAMES, SEATS, PREFIX = 20, 2, 3, 6
SEAT_OF_ROW = np.tile(np.arange(SEATS), GAMES)
# Movers of each turn, new tokens of each mover, and the games that end after the turn.
TURNS = [
    ((0, 2), (5, 3), ()),
    ((0, 1), (1, 1), ()),
    ((1, 1), (4, 0), ()),
    ((1, 1), (1, 1), (1,)),
    ((2, 1), (2, 5), ()),
    ((0, 1), (1, 1), ()),
    ((0, 0), (0, 1), (0,)),
    ((0, 0), (4, 5), ()),
]


@functools.partial(quick_jit, static_argnames=("model", "kernel"))
def step(model, params, adapters, ids, tokens, lengths, cache, rows, prefix, kernel=None):
    if adapters is not None:
        adapters = lora.Lora(adapters, lora.scales(SEATS, 3, 6.0), ids)
    hidden, cache = model.forward(
        params, tokens, lengths=lengths, cache=cache, rows=rows, prefix=prefix, adapters=adapters, dtype=F32,
        kernel=kernel,
    )  # fmt: skip
    return hidden, cache


@functools.partial(quick_jit, static_argnames="model")
def read(model, params, adapters, ids, tokens):
    if adapters is not None:
        adapters = lora.Lora(adapters, lora.scales(SEATS, 3, 6.0), ids)
    return model.forward(params, tokens, adapters=adapters, dtype=F32)[0]


@functools.partial(quick_jit, static_argnames="model")
def read_prefix(model, params, rules, adapters=None):
    """Read once, or once for each adapter."""
    if adapters is not None:
        rules = jnp.repeat(rules, SEATS, axis=0)
        adapters = lora.Lora(adapters, lora.scales(SEATS, 3, 6.0), jnp.arange(SEATS))
    return model.read_prefix(params, rules, adapters=adapters, dtype=F32)


def random_adapters(model):
    """One adapter for each seat, unstacked."""
    shapes = jax.eval_shape(lambda: lora.init(model.cfg, jax.random.key(0), SEATS, 3, ("q", "k", "v", "o")))
    rng = np.random.default_rng(5)
    adapters = jax.tree.map(lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape), F32), shapes)
    return lora.unstack(adapters, model.cfg.n_layers, F32)


def play(model, params, adapters=None, prefix=None, kernel=None, turns=TURNS):
    """Plays the turns with one cache for all seats -> [(row, tokens, hidden)] of every conversation, and the cache."""
    rng, width = np.random.default_rng(1), {True: 5, False: 1}
    cache = kv.empty(model.cfg, GAMES * SEATS, SLOTS, F32)
    talks, ended = [([], []) for _ in range(GAMES * SEATS)], []
    for movers, lengths, over in turns:
        rows, lengths = np.arange(GAMES) * SEATS + np.array(movers), np.array(lengths)
        tokens = rng.integers(0, 64, (GAMES, width[max(lengths) > 1])).astype(np.int32)
        before = cache
        hidden, cache = step(
            model, params, adapters, SEAT_OF_ROW[rows], tokens, lengths, cache, rows, prefix, kernel=kernel
        )
        untouched = np.setdiff1d(np.arange(GAMES * SEATS), rows[lengths > 0])
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(cache), strict=True):
            np.testing.assert_array_equal(np.asarray(old)[untouched], np.asarray(new)[untouched])
        for b, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            talks[row][0].extend(tokens[b, :n])
            talks[row][1].extend(np.asarray(hidden)[b, :n])
        assert cache.lengths.tolist() == [len(talk[0]) for talk in talks]
        gone = np.isin(np.arange(GAMES * SEATS) // SEATS, over)
        cache = kv.restart(cache, gone)
        for row in np.flatnonzero(gone):
            ended.append((row, *talks[row]))
            talks[row] = ([], [])
    ended += [(row, *talk) for row, talk in enumerate(talks)]
    return [talk for talk in ended if talk[1]], cache


def check(model, params, talks, adapters=None, prefix=()):
    """Every conversation, read at once without a cache, gives the hidden states that were seen at the turns."""
    start = len(prefix)
    rows = np.zeros((len(talks), start + SLOTS), np.int32)
    for i, (_, tokens, _) in enumerate(talks):
        rows[i, : start + len(tokens)] = [*prefix, *tokens]
    ids = SEAT_OF_ROW[np.array([row for row, _, _ in talks])]
    whole = np.asarray(read(model, params, adapters, ids, rows))
    for i, (_, _, hidden) in enumerate(talks):
        np.testing.assert_allclose(np.stack(hidden), whole[i, start : start + len(hidden)], atol=ATOL)


@pytest.mark.nightly_for("llama", "llama3", "phi3", "qwen2", "gpt2", "mistral")
@pytest.mark.parametrize("family", nightly_cases(FAMILIES, "llama3", "phi3", "qwen3"))
def test_interleaved_seats_equal_conversations_read_at_once(family):
    """Unequal lengths, idle rows, games that end: without adapters."""
    model, stacked = make(family)
    params = unstack(model, stacked)
    talks, _ = play(model, params)
    assert len(talks) > GAMES * SEATS, "some rows must hold two conversations"
    check(model, params, talks)


@pytest.mark.nightly_for("llama3", "phi3", "mistral")
@pytest.mark.parametrize(
    "family", nightly_cases(["llama3", "mistral", "phi3", "qwen3", "gpt2"], "llama3", "phi3", "qwen3")
)
def test_behind_a_common_prefix_with_an_adapter_for_each_seat(family, kernel=None):
    """The prefix is read once for each adapter; windows of five and six tokens end inside or after it."""
    model, stacked = make(family)
    params, adapters = unstack(model, stacked), random_adapters(model)
    rules = random_tokens(1, PREFIX, seed=9)
    prefix = read_prefix(model, params, rules, adapters)
    talks, _ = play(model, params, adapters, prefix, kernel)
    check(model, params, talks, adapters, rules[0])


@pytest.mark.nightly_for("gpt2", "mistral")
@pytest.mark.parametrize("family", ["mistral", "gpt2"])
def test_steps_by_our_kernel(family, monkeypatch):
    """Interpreted: rows, prefixes and adapters as above, one model with a window and one without rotation."""
    interpreted = functools.partial(decode_kernel.decode_attention, interpret=True, block=4)
    monkeypatch.setattr(decode_kernel, "decode_attention", interpreted)
    test_behind_a_common_prefix_with_an_adapter_for_each_seat(family, kernel="pallas")


@pytest.mark.nightly
def test_behind_one_prefix_given_layer_by_layer():
    model, stacked = make("mistral")
    params, rules = unstack(model, stacked), random_tokens(1, PREFIX, seed=9)
    prefix = read_prefix(model, params, rules)
    talks, cache = play(model, params, prefix=model.unstack_prefix(prefix))
    check(model, params, talks, prefix=rules[0])
    _, other = play(model, params, prefix=prefix)
    jax.tree.map(np.testing.assert_array_equal, cache, other)


def test_a_cache_started_behind_a_prefix_is_continued_behind_it():
    """`new_cache` with a prefix holds only the tokens after it, so no row has a copy of the rules."""
    model, stacked = make("gpt2")
    params, rules, tokens = unstack(model, stacked), random_tokens(1, PREFIX, seed=9), random_tokens(3, 7)

    @quick_jit
    def in_two_parts(params):
        prefix = model.read_prefix(params, rules, dtype=F32)
        first, cache = model.forward(params, tokens[:, :4], prefix=prefix, new_cache=SLOTS, dtype=F32)
        second, cache = model.forward(params, tokens[:, 4:], prefix=prefix, cache=cache, dtype=F32)
        return first, second, cache

    first, second, cache = in_two_parts(params)
    whole = read(model, params, None, None, np.concatenate([np.repeat(rules, 3, axis=0), tokens], axis=1))
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole[:, PREFIX:], atol=ATOL)
    assert cache.lengths.tolist() == [7, 7, 7] and cache.slots == SLOTS


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "behind a prefix"])
def test_appending_by_cudnn_takes_one_bias_for_all_heads(monkeypatch, shared):
    """cuDNN is replaced by XLA here: what it is given counts, and that the result is the same."""
    model, stacked = make("mistral")
    params, rules = unstack(model, stacked), random_tokens(1, PREFIX, seed=9) if shared else random_tokens(1, 0)
    prefix = read_prefix(model, params, rules) if shared else None
    plain, biases = jax.nn.dot_product_attention, []

    def recorded(q, k, v, *, implementation, **kwargs):
        if implementation == "cudnn":
            biases.append(kwargs["bias"].shape)
        return plain(q, k, v, implementation="xla", **kwargs)

    monkeypatch.setattr(jax.nn, "dot_product_attention", recorded)
    monkeypatch.setattr(attention, "fused", lambda kernel, dtype: kernel != "xla")
    talks, _ = play(model, params, prefix=prefix, kernel="cudnn")
    check(model, params, talks, prefix=rules[0])
    assert set(biases) == {(GAMES, 1, 6, SLOTS + rules.shape[1])}


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(MESHES))
def test_on_a_mesh_rows_stay_with_their_game(name):
    """Every device holds the caches of its games; the numbers are those of one device."""
    model, stacked = make("qwen2")
    params = unstack(model, stacked)
    rng, games, seats = np.random.default_rng(0), 8, 2
    rows = np.arange(games) * seats + rng.integers(0, seats, games)
    tokens, lengths = random_tokens(games, 3), rng.integers(0, 4, games)
    cache = kv.empty(model.cfg, games * seats, 8, F32)

    def run():
        return quick_jit(
            lambda cache, rows: model.forward(params, tokens, lengths=lengths, cache=cache, rows=rows, dtype=F32)
        )

    hidden, after = run()(cache, rows)
    mesh = mesh_of(MESHES[name])
    with jax.set_mesh(mesh):
        spread = jax.tree.map(
            lambda x: jax.device_put(x, jax.NamedSharding(mesh, jax.P(("data", "fsdp") if x.ndim > 1 else None))), cache
        )
        compiled = run().lower(spread, rows).compile()
        other, after_mesh = compiled(spread, rows)
        wrong, _ = run()(spread, np.roll(rows, 1))
    elsewhere, _ = run()(cache, np.roll(rows, 1))
    np.testing.assert_allclose(other, hidden, atol=ATOL)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=ATOL), after_mesh, after)
    if mesh.shape["data"] * mesh.shape["fsdp"] > 1:
        program = compiled.as_text()
        assert not [line for line in program.splitlines() if "all-gather" in line and "f32[16,8,2,8]" in line]
    # Rows of other devices must not go unnoticed: they are read as NaN.
    part = games // (mesh.shape["data"] * mesh.shape["fsdp"])
    foreign = (np.roll(rows, 1) // (seats * part) != np.arange(games) // part) & (lengths > 0)
    assert np.isnan(wrong[foreign]).all() and foreign.any() == (part < games)
    np.testing.assert_allclose(wrong[~foreign & (lengths > 0)], elsewhere[~foreign & (lengths > 0)], atol=ATOL)


@pytest.mark.nightly
def test_candidates_are_tried_on_copies_of_rows():
    """Two candidates of each mover, on copies; the chosen one is then read into the cache, as if it stood alone."""
    model, stacked = make("llama")
    params, rows = unstack(model, stacked), jnp.array([4, 1])
    first, answers = random_tokens(6, 5), random_tokens(4, 1, seed=2)
    empty = kv.empty(model.cfg, 6, SLOTS, F32)
    _, cache = step(model, params, None, None, first, np.full(6, 5), empty, np.arange(6), None)
    copies = kv.repeat(kv.take(cache, rows), 2)
    tried, _ = step(model, params, None, None, answers, np.ones(4, int), copies, np.arange(4), None)
    kept, _ = step(model, params, None, None, answers[1::2], np.ones(2, int), cache, rows, None)
    np.testing.assert_allclose(kept, tried[1::2], atol=ATOL)
    whole = read(model, params, None, None, np.concatenate([first[np.repeat(rows, 2)], answers], axis=1))
    np.testing.assert_allclose(tried[:, 0], whole[:, -1], atol=ATOL)


write = jax.jit(kv.write)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_write_changes_the_slots_of_its_rows_only(data):
    """Into pages that a table names, across their borders; padding and what does not fit is dropped."""
    total, size, width, time = 9, 2, 3, 4
    table = np.array(data.draw(st.permutations(range(total)))).reshape(3, width)
    most = size * width
    starts, lengths = (np.array(data.draw(st.lists(st.integers(0, n), min_size=3, max_size=3))) for n in (most, time))
    new = 1 + np.arange(3 * time, dtype=np.float32).reshape(3, time, 1, 1)
    expected = np.zeros((total, size, 1, 1), np.float32)
    for b, t in np.ndindex(3, time):
        at = starts[b] + t
        if t < lengths[b] and at < most:
            expected[table[b, at // size], at % size] = new[b, t]
    layer = (jnp.zeros_like(expected),) * 2
    for x in write(layer, new, new, starts, lengths, table):
        np.testing.assert_array_equal(x, expected)
    rows = table[:, :1]  # rows of one page each
    expected = np.zeros((total, size, 1, 1), np.float32)
    for b, t in np.ndindex(3, time):
        if t < lengths[b] and starts[b] + t < size:
            expected[rows[b, 0], starts[b] + t] = new[b, t]
    for x in write(layer, new, new, starts, lengths, rows):
        np.testing.assert_array_equal(x, expected)
