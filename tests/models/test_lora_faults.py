"""An adapter with values that are not finite harms the rows that use it, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import lora


@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("decoding", [False, True])
def test_a_nan_in_one_adapter_stays_in_its_rows(where, value, decoding):
    rng = np.random.default_rng(0)
    stack = {"q": {"a": rng.standard_normal((2, 3, 8, 4)), "b": rng.standard_normal((2, 3, 4, 6))}}
    stack = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), stack)
    broken = {"q": {**stack["q"], where: stack["q"][where].at[0, 1, 2, 3].set(value)}}
    x = jnp.asarray(rng.standard_normal((3, 2, 8)), jnp.float32)

    def added(adapters):
        layers = lora.unstack(adapters, 2, jnp.float32) if decoding else lora.isolate(adapters)
        first = layers[0] if decoding else jax.tree.map(lambda x: x[0], layers)
        return lora.delta(x, first["q"], lora.Lora(adapters, lora.scales(3, 4, 8.0), jnp.arange(3)).row_weights())

    whole, found = added(stack), added(broken)
    np.testing.assert_array_equal(found[jnp.array([0, 2])], whole[jnp.array([0, 2])])
    assert not jnp.isfinite(found[1]).any()
    if not decoding:  # and so do gradients
        gradient = jax.grad(lambda s: jnp.sum(jnp.nan_to_num(added(s))))(broken)
        np.testing.assert_array_equal(jnp.isfinite(gradient["q"]["b"][0, 0]), True)
