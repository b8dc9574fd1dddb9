"""Adam's moments in 8 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marl_jax.learning import moments


def params():
    return {"w": jnp.zeros((4, 64)), "b": jnp.zeros((8,))}


def gradients(step):
    key = jax.random.fold_in(jax.random.key(0), step)
    scale = jnp.logspace(-4, 0, 64)  # large and small values in a row
    return {"w": jax.random.normal(key, (4, 64)) * scale + 0.3 * scale, "b": jax.random.normal(key, (8,))}


def directions(optimizer, steps=20):
    state, found = optimizer.init(params()), []
    for step in range(steps):
        direction, state = optimizer.update(gradients(step), state)
        found.append(direction)
    return jax.tree.map(lambda *x: np.stack(x), *found), state


def test_float32_is_optax():
    ours, _ = directions(moments.scale_by_adam(0.9, 0.95, 1e-8))
    theirs, _ = directions(optax.scale_by_adam(0.9, 0.95, 1e-8))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)


@pytest.mark.parametrize(("kind", "tolerance", "size"), [("bfloat16", 0.02, 2), ("int8", 0.1, 1)])
def test_fewer_bits_go_nearly_the_same_way(kind, tolerance, size):
    exact, _ = directions(moments.scale_by_adam(0.9, 0.95, 1e-8))
    ours, state = directions(moments.scale_by_adam(0.9, 0.95, 1e-8, kind))
    assert np.abs(ours["w"] - exact["w"]).mean() < tolerance
    kept = state.mu["w"].code if kind == "int8" else state.mu["w"]
    assert kept.dtype.itemsize == size and kept.shape == (4, 64)


def test_small_second_moments_never_become_zero():
    x = jnp.array([[1.0, 1e-12, 0.0]])
    back = moments.unpack(moments.pack(x, signed=False), signed=False)
    assert float(back[0, 0]) == 1 and float(back[0, 1]) >= 1e-12 and float(back[0, 2]) == 0


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="adam_state_dtype is 'int4'"):
        moments.scale_by_adam(0.9, 0.95, 1e-8, "int4")
