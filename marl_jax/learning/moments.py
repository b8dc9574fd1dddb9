"""Adam with compact moments: stored in float32, bfloat16 or 8 bits, computed in float32.

In 8 bits, each row of a matrix has its own scale, and the spacing of representable values grows with the value: a
square-root scale for the first moment, and a fourth-root scale, rounded up, for the second. The second moment is in the
denominator, so a small one must never become zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

KINDS = ("float32", "bfloat16", "int8")


class AdamState(NamedTuple):
    """State of `scale_by_adam`.

    Attributes:
        count: int32 [], number of updates.
        mu: First moments, shaped like the parameters, or `Packed`.
        nu: Second moments, likewise.
    """

    count: jax.Array
    mu: Any
    nu: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """An array in 8 bits.

    Attributes:
        code: int8 or uint8 codes with the shape of the array.
        top: float32 [..., 1], largest absolute value of each row.
    """

    code: jax.Array
    top: jax.Array


def scale_by_adam(b1: float, b2: float, eps: float, kind: str = "float32") -> optax.GradientTransformation:
    """Build Adam's rescaling of gradients, with bias correction.

    Args:
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Added to the denominator.
        kind: Dtype of the stored moments, one of `KINDS`.
    """
    if kind not in KINDS:
        raise ValueError(f"adam_state_dtype is {kind!r}, but must be one of: {', '.join(KINDS)}")

    def init(params):
        # Two separate trees: the state is donated, and one buffer cannot be donated twice.
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
    """Convert moments to their storage dtype."""
    if kind == "int8":
        return jax.tree.map(lambda x: pack(x, signed) if x.ndim > 1 else x, tree)
    return jax.tree.map(lambda x: x.astype(kind), tree)


def _recall(tree, signed: bool):
    """Convert stored moments to float32."""
    one = lambda x: unpack(x, signed) if isinstance(x, Packed) else x.astype(jnp.float32)  # noqa: E731
    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, Packed))


def pack(x: jax.Array, signed: bool) -> Packed:
    """Quantize float32 [..., n] to 8 bits; unsigned values are rounded up."""
    top = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    share = jnp.abs(x) / jnp.where(top > 0, top, 1.0)
    if signed:
        return Packed((jnp.sign(x) * jnp.round(127 * jnp.sqrt(share))).astype(jnp.int8), top)
    return Packed(jnp.ceil(255 * jnp.sqrt(jnp.sqrt(share))).astype(jnp.uint8), top)


def unpack(packed: Packed, signed: bool) -> jax.Array:
    """Dequantize to float32 [..., n]."""
    code = packed.code.astype(jnp.float32)
    if signed:
        return jnp.sign(code) * jnp.square(code / 127) * packed.top
    return jnp.square(jnp.square(code / 255)) * packed.top
