"""Chunked log-probs: values and gradients against the plain way, and the memory they save."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.config import ModelConfig
from models.logprobs import token_logprobs
from models.model import build
from tests.models.tiny_models import largest, largest_difference, make, quick_jit

BATCH, TIME = 3, 7


def plain(model, params, hidden, targets, temperature):
    """The same with all logits at once."""
    logps = jax.nn.log_softmax(model.logits(params, hidden) / jnp.asarray(temperature).reshape(-1, 1, 1))
    chosen = jnp.take_along_axis(logps, targets[..., None], axis=-1)[..., 0]
    return chosen, -jnp.sum(jnp.exp(logps) * logps, axis=-1)


@functools.cache
def inputs(family: str):
    """A model, its parameters, hidden states and targets."""
    model, params = make(family)
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.standard_normal((BATCH, TIME, model.cfg.d_model)), jnp.float32)
    return model, params, hidden, rng.integers(0, model.cfg.vocab_size, (BATCH, TIME))


@pytest.mark.parametrize("chunk", [2048, 21, 6, 2])  # all at once, exactly; two of seven steps; fewer than a batch
@pytest.mark.parametrize("temperature", [0.7, np.array([0.5, 1.0, 2.0], np.float32)], ids=["one", "per row"])
def test_values(chunk, temperature):
    model, params, hidden, targets = inputs("llama")
    ours = quick_jit(lambda p, h: token_logprobs(model, p, h, targets, temperature, chunk))(params, hidden)
    for mine, theirs in zip(ours, plain(model, params, hidden, targets, temperature), strict=True):
        assert mine.shape == (BATCH, TIME) and mine.dtype == jnp.float32
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.nightly_for("gpt2", "llama")
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])  # a separate head, a tied one, GPT-2's
def test_gradients(family):
    """Of log-probs and entropy, with respect to hidden states, parameters and temperature."""
    model, params, hidden, targets = inputs(family)
    weights = np.random.default_rng(1).standard_normal((2, BATCH, TIME)).astype(np.float32)
    temperature = np.array([0.5, 1.0, 2.0], np.float32)

    def loss(way, params, hidden, temperature):
        logps, entropy = way(model, params, hidden, targets, temperature)
        return jnp.sum(logps * weights[0] + entropy * weights[1])

    chunked = functools.partial(token_logprobs, chunk=6)
    ours, theirs = (
        quick_jit(jax.value_and_grad(functools.partial(loss, way), argnums=(0, 1, 2)))(params, hidden, temperature)
        for way in (chunked, plain)
    )
    assert largest_difference(ours, theirs) < 1e-5 * largest(theirs)


def test_bf16_hidden_states_give_fp32_log_probs():
    model, params, hidden, targets = inputs("qwen2")
    logps, entropy = token_logprobs(model, params, hidden.astype(jnp.bfloat16), targets)
    assert logps.dtype == entropy.dtype == jnp.float32
    # The head's weights are rounded as well: 0.4 % of logits that are near one.
    np.testing.assert_allclose(logps, plain(model, params, hidden, targets, 1.0)[0], atol=0.05)


def test_no_product_of_the_head_runs_in_fp32():
    """Logits are float32, but the operands of all matrix products are not."""
    model, params, hidden, targets = inputs("llama")
    loss = lambda p, h: jnp.sum(token_logprobs(model, p, h, targets)[0])  # noqa: E731
    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, hidden.astype(jnp.bfloat16)).as_text()
    products = [line.split(" : ")[-1].split(" -> ")[0] for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 4, "logits, once more in the backward pass, and two gradients"
    assert not any("f32" in operands.replace("bf16", "") for operands in products)


def test_the_logits_of_all_tokens_are_never_held():
    """No [B, T, V] in the compiled program, forward or backward, however it is flattened, and little memory."""
    batch, time, vocab = 4, 128, 2_000
    model = build(ModelConfig("llama", vocab, 16, 1, 2, 2, 8, 16, 64))
    params = model.abstract()
    hidden = jax.ShapeDtypeStruct((batch, time, 16), jnp.float32)
    targets = jnp.zeros((batch, time), jnp.int32)
    everything = batch * time * vocab * 4

    def compiled(way):
        loss = lambda p, h: jnp.sum(way(model, p, h, targets, 1.0)[0])  # noqa: E731
        return quick_jit(jax.grad(loss, argnums=(0, 1))).lower(params, hidden).compile()

    chunked, whole = compiled(functools.partial(token_logprobs, chunk=64)), compiled(plain)
    shapes = [f"[{batch},{time},{vocab}]", f"[{batch * time},{vocab}]", f"[{time},{batch},{vocab}]"]
    assert any(shape in whole.as_text() for shape in shapes), "the plain way must be caught"
    assert not any(shape in chunked.as_text() for shape in shapes)
    assert whole.memory_analysis().temp_size_in_bytes > everything
    assert chunked.memory_analysis().temp_size_in_bytes < everything / 2
