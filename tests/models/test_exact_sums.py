"""Gradients that are sums over a batch: in bfloat16 they are as exact as those of single rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.exact_sums import add_bias, for_rows
from models.model import build
from tests.conftest import nightly_cases
from tests.models.tiny_models import CONFIGS, quick_jit

ROWS = 512


@pytest.mark.quick
def test_a_bias_and_a_broadcast_sum_their_gradients_in_float32():
    y = (jax.random.normal(jax.random.key(0), (ROWS, 8, 16)) + 0.3).astype(jnp.bfloat16)

    def total(bias, shared, y):
        read = add_bias(jnp.zeros_like(y), bias) + for_rows(shared, len(y))
        return jnp.sum(read.astype(jnp.float32) * y.astype(jnp.float32))

    bias, shared = jnp.zeros((8, 16)), jnp.zeros((1, 8, 16), jnp.bfloat16)
    of_bias, of_shared = quick_jit(jax.grad(total, argnums=(0, 1)))(bias, shared, y)
    expected = np.asarray(y, np.float32).sum(0)
    assert of_bias.dtype == jnp.float32 and of_shared.dtype == jnp.bfloat16
    np.testing.assert_allclose(of_bias, expected, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(of_shared[0], np.float32), expected, rtol=2**-8)  # rounded once


@pytest.mark.nightly
@pytest.mark.parametrize("family", nightly_cases(["qwen2", "gpt2"], "gpt2"))
def test_the_gradient_of_equal_rows_is_that_of_one_row_so_many_times(family):
    model = build(CONFIGS[family])
    params = quick_jit(model.init)(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (1, 9), 0, model.cfg.vocab_size)

    @quick_jit
    def gradient(params, tokens):
        def loss(params):
            hidden, _ = model.forward(params, tokens, dtype=jnp.bfloat16)
            return jnp.sum(jax.nn.log_softmax(model.logits(params, hidden))[..., 3])

        return jax.grad(loss)(params)["layers"]["attn"]

    one, many = gradient(params, tokens), gradient(params, jnp.repeat(tokens, ROWS, axis=0))
    for name in ("q_bias", "v_bias"):
        off = np.linalg.norm(many[name] / ROWS - one[name]) / np.linalg.norm(one[name])
        assert off < 0.004, (name, off)
