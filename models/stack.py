"""NNX modules around a stack of equal layers, as pure functions over parameters.

The modules are split once. From then on parameters are nested dicts of arrays, with the layers stacked over L.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx


class Stack:
    """The modules before and after the layers, and one layer.

    Args:
        ends: `ends(rngs, dtype)` makes the module before and after the layers.
        block: `block(rngs, dtype)` makes one layer.
        n_layers: L.
    """

    def __init__(self, ends: Callable, block: Callable, n_layers: int):
        self._make_ends, self._make_block, self.n_layers = ends, block, n_layers
        self._ends_def, self._ends = nnx.split(nnx.eval_shape(lambda: ends(nnx.Rngs(0), jnp.float32)))
        self.block_def, self._block = nnx.split(nnx.eval_shape(lambda: block(nnx.Rngs(0), jnp.float32)))

    def init(self, key: jax.Array, dtype=jnp.float32) -> dict:
        """Return random parameters with stacked layers."""

        def made(make, key):
            return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(params=key), dtype)))

        ends_key, layers_key = jax.random.split(key)
        layers = jax.vmap(lambda k: made(self._make_block, k))(jax.random.split(layers_key, self.n_layers))
        return {**made(self._make_ends, ends_key), "layers": layers}

    def abstract(self, dtype=jnp.float32) -> dict:
        """Return the shapes of the stacked parameters without allocating them."""
        return jax.eval_shape(functools.partial(self.init, dtype=dtype), jax.random.key(0))

    def axes(self) -> dict:
        """Return the axis letters of every stacked parameter."""

        def letters(state, front=()):
            tree = jax.tree.map(
                lambda v: (*front, *v.get_metadata("axes")), state, is_leaf=lambda v: isinstance(v, nnx.Variable)
            )
            return nnx.to_pure_dict(tree)

        return {**letters(self._ends), "layers": letters(self._block, ("L",))}

    def ends(self, params: dict):
        """Return the module before and after the layers with its parameters."""
        return nnx.merge(self._ends_def, {name: params[name] for name in params if name in self._names})

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        """Names of the parameters outside the layers."""
        return frozenset(nnx.to_pure_dict(self._ends))


def rematerialized(body: Callable, remat: str, turn: int) -> Callable:
    """Wrap the body of the loop over layers in `jax.checkpoint`.

    Args:
        body: One layer.
        remat: See `Model.forward`.
        turn: Number of layers per iteration.
    """
    if remat == "none":
        return body
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    # A loop keeps the two passes separate. If they are unrolled, XLA would find that they compute the same values and
    # keep those of the first pass.
    return jax.checkpoint(body, prevent_cse=turn > 1, policy=policy)
