"""Adam with small moments: kept in float32, bfloat16 or 8 bits, computed in float32.

In 8 bits each row of a matrix has its own scale, and the steps between representable values grow with the value: a
square-root scale for the first moment, a fourth-root scale, rounded up, for the second. The second moment stands below
the line, so a small one must never become zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

KINDS = ("float32", "bfloat16", "int8")


class AdamState(NamedTuple):
    """count int32 [], and both moments, shaped like the parameters (or `Packed`)."""

    count: jax.Array
    mu: Any
    nu: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """8-bit codes with the shape of the array, and the greatest size in each row [..., 1]."""

    code: jax.Array
    top: jax.Array


def scale_by_adam(b1: float, b2: float, eps: float, kind: str = "float32") -> optax.GradientTransformation:
    """Adam's direction, with bias correction; `kind` says how moments are kept."""
    if kind not in KINDS:
        raise ValueError(f"moments are {kind!r}, but must be one of: {', '.join(KINDS)}")

    def init(params):
        # Made twice: the state is donated, and one buffer cannot be given away as both moments.
        mu, nu = (jax.tree.map(lambda x: jnp.zeros_like(x, jnp.float32), params) for _ in range(2))
        return AdamState(jnp.zeros((), jnp.int32), _keep(mu, kind, signed=True), _keep(nu, kind, signed=False))

    def update(updates, state, params=None):
        del params
        count = state.count + 1
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), updates)
        mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, _recall(state.mu, signed=True))
        nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, _recall(state.nu, signed=False))
        now = count.astype(jnp.float32)
        direction = jax.tree.map(lambda m, v: m / (1 - b1**now) / (jnp.sqrt(v / (1 - b2**now)) + eps), mu, nu)
        return direction, AdamState(count, _keep(mu, kind, signed=True), _keep(nu, kind, signed=False))

    return optax.GradientTransformation(init, update)


def _keep(tree, kind: str, signed: bool):
    if kind == "int8":
        return jax.tree.map(lambda x: pack(x, signed) if x.ndim > 1 else x, tree)
    return jax.tree.map(lambda x: x.astype(kind), tree)


def _recall(tree, signed: bool):
    one = lambda x: unpack(x, signed) if isinstance(x, Packed) else x.astype(jnp.float32)  # noqa: E731
    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, Packed))


def pack(x: jax.Array, signed: bool) -> Packed:
    """float32 [..., n] in 8 bits; unsigned values are rounded up."""
    top = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    share = jnp.abs(x) / jnp.where(top > 0, top, 1.0)
    if signed:
        return Packed((jnp.sign(x) * jnp.round(127 * jnp.sqrt(share))).astype(jnp.int8), top)
    return Packed(jnp.ceil(255 * jnp.sqrt(jnp.sqrt(share))).astype(jnp.uint8), top)


def unpack(packed: Packed, signed: bool) -> jax.Array:
    """float32 [..., n]."""
    code = packed.code.astype(jnp.float32)
    if signed:
        return jnp.sign(code) * jnp.square(code / 127) * packed.top
    return jnp.square(jnp.square(code / 255)) * packed.top
