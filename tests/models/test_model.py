"""The model as pure functions: initial scale, precision, rematerialisation, packed rows and shared prefixes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.cache import empty
from models.config import ModelConfig
from models.layouts import Branches, Packed
from models.model import build
from tests.conftest import nightly_cases
from tests.models.tiny_models import (
    CONFIGS,
    FAMILIES,
    forward,
    largest,
    largest_difference,
    logits,
    make,
    quick_jit,
    random_tokens,
)  # fmt: skip

F32 = jnp.float32


def next_logps(model, params, tokens, **kwargs):
    """float32 [B, T - 1], the log-prob of every token but the first."""
    hidden, _ = model.forward(params, tokens, dtype=F32, **kwargs)
    logps = jax.nn.log_softmax(model.logits(params, hidden[:, :-1]))
    return jnp.take_along_axis(logps, tokens[:, 1:, None], axis=-1)[..., 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_abstract_and_axes_mirror_the_parameters(family):
    model = build(CONFIGS[family])
    cfg, axes, shapes = model.cfg, model.axes(), jax.tree.map(lambda x: x.shape, model.abstract())
    sizes = {"V": cfg.vocab_size, "D": cfg.d_model, "L": cfg.n_layers, "N": cfg.n_heads, "K": cfg.n_kv_heads}
    sizes |= {"H": cfg.head_dim, "F": cfg.d_ff, "S": cfg.max_positions}
    named = jax.tree.map(lambda letters: tuple(sizes[x] for x in letters), axes, is_leaf=lambda x: isinstance(x, tuple))
    assert named == shapes
    assert sum(x.size for x in jax.tree.leaves(model.abstract())) == cfg.n_params


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_fresh_model_guesses_uniformly(family):
    cfg = dataclasses.replace(CONFIGS[family], vocab_size=500, d_model=64, n_layers=6)
    model = build(cfg)
    params = quick_jit(model.init)(jax.random.key(0))
    tokens = np.random.default_rng(1).integers(0, 500, (4, 33), np.int32)
    loss = -jnp.mean(quick_jit(next_logps, static_argnums=0)(model, params, tokens))
    assert abs(loss - np.log(500)) < 0.05
    q = params["layers"]["attn"]["q"]
    assert not np.allclose(q[0], q[1]), "layers must be drawn apart"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parameters_come_in_the_dtype_asked_for(dtype):
    model = build(CONFIGS["gpt2"])
    params = jax.eval_shape(lambda key: model.init(key, dtype), jax.random.key(0))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    assert jax.tree.map(lambda x: x.dtype, model.abstract(dtype)) == jax.tree.map(lambda x: x.dtype, params)


@pytest.mark.nightly_for("gpt2", "qwen3")
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gpt2"])
def test_bf16_stays_near_fp32_and_logits_are_fp32(family):
    model, params = make(family)
    tokens = random_tokens(2, 16)
    exact, _ = forward(model, params, tokens)
    rough, _ = forward(model, params, tokens, dtype=jnp.bfloat16)
    assert rough.dtype == jnp.bfloat16 and exact.dtype == F32
    rough_logits, exact_logits = logits(model, params, rough), logits(model, params, exact)
    assert rough_logits.dtype == F32
    # One rounding to bf16 is off by 0.2 % in the mean; a dozen of them lie on the way of two layers.
    gap = np.asarray(rough, np.float32) - np.asarray(exact)
    assert np.sqrt(np.mean(gap**2)) < 0.02 * np.sqrt(np.mean(np.square(exact)))
    assert largest_difference(jax.nn.log_softmax(rough_logits), jax.nn.log_softmax(exact_logits)) < 0.1


def test_logits_of_some_tokens_only():
    for family in ("llama", "qwen2", "gpt2"):  # a separate head, a tied one, GPT-2's
        model, params = make(family)
        hidden = np.random.default_rng(0).standard_normal((2, 3, model.cfg.d_model)).astype(np.float32)
        ids = np.array([5, 0, 63])
        some = model.logits(params, hidden, ids)
        np.testing.assert_allclose(some, logits(model, params, hidden)[..., ids], atol=1e-5)


def test_remat_keeps_less_and_changes_no_gradient():
    model, params = make("llama")
    tokens = random_tokens(4, 32)
    grads, memory = {}, {}
    for mode in ("none", "full", "dots"):
        step = quick_jit(jax.grad(lambda p, mode=mode: jnp.sum(next_logps(model, p, tokens, remat=mode))))
        compiled = step.lower(params).compile()
        grads[mode], memory[mode] = compiled(params), compiled.memory_analysis().temp_size_in_bytes
    tolerance = 1e-5 * largest(grads["none"])
    assert largest_difference(grads["none"], grads["full"]) < tolerance
    assert largest_difference(grads["none"], grads["dots"]) < tolerance
    assert memory["full"] < memory["dots"] < memory["none"]


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["full", "dots"])
def test_unrolled_layers_are_computed_again_too(mode):
    """XLA may not take what the forward pass has computed: how much memory that saves shows on a GPU only."""
    model, params = make("llama")
    tokens = random_tokens(2, 8)

    def products(**settings):
        step = jax.jit(jax.grad(lambda p: jnp.sum(next_logps(model, p, tokens, unroll=2, **settings))))
        lowered = step.lower(params)
        return lowered.compile().as_text().count(" dot("), lowered.as_text().count("optimization_barrier")

    (kept, _), (again, barriers) = products(), products(remat=mode)
    assert again > kept and barriers > 0


def test_padding_changes_nothing():
    for family in ("mistral", "gpt2"):
        model, params = make(family)
        tokens = random_tokens(2, 16)
        whole, _ = forward(model, params, tokens, lengths=np.array([9, 16]))
        tokens[0, 9:] = 0
        padded, _ = forward(model, params, tokens, lengths=np.array([9, 16]))
        np.testing.assert_allclose(padded[0, :9], whole[0, :9], atol=1e-6)


@pytest.mark.nightly_for("gpt2")
@pytest.mark.parametrize("family", nightly_cases(["mistral", "gpt2"], "mistral"))
def test_packed_rows_and_shared_prefixes_equal_separate_rows(family):
    """One prompt with K answers of unequal length, in four ways: loss and gradient must agree.

    alone   K rows of prompt and completion, padded
    packed  one row of K samples
    shared  one row [prompt | completion 1 | … | completion K], with padding after the prompt and the completions
    prefix  K rows without the first tokens, which are read once and continued

    Mistral has a window shorter than the prompt, GPT-2 learned positions.
    """
    model, params = make(family)
    start, sizes = 8, (5, 2, 7)
    prompt, answers = random_tokens(1, start)[0], random_tokens(len(sizes), max(sizes), seed=1)
    answers = [row[:n] for row, n in zip(answers, sizes, strict=True)]
    weights = np.random.default_rng(2).standard_normal(sum(sizes)).astype(np.float32)  # of each answer token

    def alone(params):
        rows = np.stack([np.pad(np.append(prompt, answer), (0, max(sizes) - len(answer))) for answer in answers])
        logps = next_logps(model, params, rows, lengths=start + np.array(sizes))[:, start - 1 :]
        return jnp.sum(jnp.concatenate([row[:n] for row, n in zip(logps, sizes, strict=True)]) * weights)

    def packed(params):
        row = np.concatenate([np.append(prompt, answer) for answer in answers])[None]
        lengths = start + np.array([sizes])
        layout = Packed(jnp.cumsum(lengths, axis=1) - lengths, lengths, start + max(sizes))
        positions = np.concatenate([np.arange(start + n) for n in sizes])[None]
        logps = next_logps(model, params, row, layout=layout, positions=positions)
        return jnp.sum(logps[positions[:, 1:] >= start] * weights)

    def shared(params):
        room, read = start + 2, max(sizes)
        row = np.concatenate([np.pad(prompt, (0, 2)), *(np.pad(x, (0, read - len(x))) for x in answers)])[None]
        positions = np.concatenate([np.arange(room), np.tile(start + np.arange(read), len(sizes))])[None]
        layout = Branches(jnp.array([start]), len(sizes), read)
        hidden, _ = model.forward(params, row, layout=layout, positions=positions, dtype=F32)
        # A token is predicted at the position before it, the first of each answer at the end of the prompt.
        places = [room + i * read + np.arange(n) for i, n in enumerate(sizes)]
        before = np.concatenate([np.append(start - 1, place[:-1]) for place in places])
        logps = jax.nn.log_softmax(model.logits(params, hidden[0, before]))
        return jnp.sum(jnp.take_along_axis(logps, row[0, np.concatenate(places), None], axis=-1)[:, 0] * weights)

    def after_prefix(params):
        first = 6
        rows = np.stack([np.pad(np.append(prompt, answer), (0, max(sizes) - len(answer))) for answer in answers])
        prefix = model.read_prefix(params, rows[:1, :first], dtype=F32)
        logps = next_logps(model, params, rows[:, first:], prefix=prefix)[:, start - first - 1 :]
        return jnp.sum(jnp.concatenate([row[:n] for row, n in zip(logps, sizes, strict=True)]) * weights)

    (loss, grads), *others = (quick_jit(jax.value_and_grad(f))(params) for f in (alone, packed, shared, after_prefix))
    for other_loss, other_grads in others:
        np.testing.assert_allclose(other_loss, loss, atol=1e-5)
        assert largest_difference(other_grads, grads) < 1e-5 * largest(grads)


@pytest.mark.parametrize("backend, remat, layers", [("cpu", "none", 1), ("gpu", "none", 8), ("gpu", "full", 4)])
def test_layers_per_iteration_depend_on_the_device_and_on_remat(backend, remat, layers, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    model = build(dataclasses.replace(CONFIGS["llama"], n_layers=8))
    assert model._turn(0, remat) == layers
    assert model._turn(3, remat) == 3
    assert model._turn(100, remat) == 8


def test_layers_in_one_loop_or_unrolled_are_the_same():
    model, params = make("qwen2")
    tokens = random_tokens(2, 6)
    loss = lambda unroll, params: jnp.sum(next_logps(model, params, tokens, unroll=unroll))  # noqa: E731
    grads = [quick_jit(jax.grad(functools.partial(loss, unroll)))(params) for unroll in (1, 2)]
    assert largest_difference(*grads) < 1e-5 * largest(grads[0])
    programs = [jax.jit(functools.partial(loss, unroll)).lower(params).as_text() for unroll in (1, 2)]
    assert ["stablehlo.while" in text for text in programs] == [True, False]


def test_calls_that_make_no_sense_are_refused():
    model, params = make("llama")
    tokens = random_tokens(1, 4)
    cache = empty(model.cfg, batch=1, slots=8)
    with pytest.raises(ValueError, match="remat is 'some', but must be one of: none, full, dots"):
        model.forward(params, tokens, remat="some")
    with pytest.raises(ValueError, match="unstack"):
        model.forward(params, tokens, cache=cache)
    with pytest.raises(ValueError, match="new_cache is 3, but must be >= 4"):
        model.forward(params, tokens, new_cache=3)
    with pytest.raises(ValueError, match="cache and new_cache are both set"):
        model.forward(params, tokens, cache=cache, new_cache=8)
    with pytest.raises(ValueError, match="layout and cache are both set"):
        model.forward(params, tokens, cache=cache, layout=Branches(jnp.array([1]), 1, 1))
    with pytest.raises(ValueError, match="rows is set, but needs a cache"):
        model.forward(params, tokens, rows=jnp.array([0]))
    with pytest.raises(ValueError, match=r"rows has shape \(2,\), but must have \(1,\)"):
        model.forward(params, tokens, cache=cache, rows=jnp.array([0, 1]))
    with pytest.raises(ValueError, match="stacked parameters need a stacked prefix"):
        model.forward(params, tokens, prefix=cache.layers)
    model, params = make("gpt2")
    with pytest.raises(ValueError, match="tokens need 65 positions, but the model has learned 64"):
        model.forward(params, random_tokens(1, 65))


def test_configs_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="n_heads is 3, but must be a multiple of n_kv_heads, which is 2"):
        ModelConfig("llama", 64, 32, 2, 3, 2, 8, 48, 64)
    with pytest.raises(ValueError, match="family is 'bert', but must be one of: llama"):
        ModelConfig("bert", 64, 32, 2, 4, 2, 8, 48, 64)
