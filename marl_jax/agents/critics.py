"""Critics: what a position is worth to the agent that is about to answer.

head      one linear map on the policy's own hidden state: no further forward pass
separate  a trunk of its own, started from the policy's weights, that reads the same tokens
central   a trunk of its own that reads what every seat sees, the agent to move last: all that anyone knows of the
          state. It helps to learn and is not needed to play.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from models.config import ModelConfig
from models.model import Model

KINDS = ("none", "head", "separate", "central")


def init(kind: str, cfg: ModelConfig, params: dict) -> dict:
    """The critic's parameters; its first values are all 0, so that nothing is learnt from noise.

    params  the policy's, copied into a separate trunk, in float32 as all that learns: a frozen base may have less
    """
    if kind not in KINDS:
        raise ValueError(f"critic is {kind!r}; accepted: {', '.join(KINDS)}")
    if kind == "none":
        return {}
    head = {"weight": jnp.zeros((cfg.d_model,), jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    return head if kind == "head" else {**head, "model": jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)}


def axes(kind: str, model: Model) -> dict:
    """Axis letters of the critic's parameters."""
    if kind == "none":
        return {}
    head = {"weight": ("D",), "bias": ()}
    return head if kind == "head" else {**head, "model": model.axes()}


def read(critic: dict, hidden: jax.Array) -> jax.Array:
    """hidden [..., D] -> values float32 [...]."""
    return hidden.astype(jnp.float32) @ critic["weight"] + critic["bias"]


def trunk(model: Model, critic: dict, tokens: jax.Array, lengths: jax.Array, dtype, **settings) -> jax.Array:
    """Values float32 [N, T] of a critic with its own trunk, at every position of tokens int32 [N, T]."""
    hidden, _ = model.forward(critic["model"], tokens, lengths=lengths, dtype=dtype, **settings)
    return read(critic, hidden)


def join_views(tokens: jax.Array, lengths: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """Several texts int32 [P, T] of lengths int32 [P] as one: int32 [width] right-padded with 0, and its length."""
    ends = jnp.cumsum(lengths)
    starts = ends - lengths
    position = jnp.arange(width)
    view = jnp.minimum(jnp.sum(position[:, None] >= ends, axis=1), tokens.shape[0] - 1)
    offset = jnp.clip(position - starts[view], 0, tokens.shape[1] - 1)
    return jnp.where(position < ends[-1], tokens[view, offset], 0), ends[-1].astype(jnp.int32)
