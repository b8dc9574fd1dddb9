"""Parameters of soft messages: learned queries and the adapter of their hidden states.

A speaker reads M query embeddings after its prompt. The adapter maps their hidden states to M embeddings, which a
listener reads as tokens (`marl_jax/agents/messages.py`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from models.config import ModelConfig

AXES = {"queries": ("M", "D"), "weight": ("D", "E"), "gain": ("E",)}
"""Axis letters of the parameters; M queries, E the width of the listener's embeddings."""


def init(cfg: ModelConfig, key: jax.Array, embed: jax.Array) -> dict:
    """Initialize queries and messages with the scale of token embeddings.

    Args:
        cfg: Settings of the model.
        key: PRNG key.
        embed: [V, D], the embeddings of the model's tokens, which determine scale and dtype.
    """
    query_key, weight_key = jax.random.split(key)
    width, scale = cfg.d_model, jnp.sqrt(jnp.mean(jnp.square(embed.astype(jnp.float32))))
    queries = scale * jax.random.normal(query_key, (cfg.message_tokens, width))
    weight = jax.random.normal(weight_key, (width, width)) / jnp.sqrt(width)
    return jax.tree.map(
        lambda x: x.astype(embed.dtype), {"queries": queries, "weight": weight, "gain": jnp.full((width,), scale)}
    )


def adapt(params: dict, hidden: jax.Array) -> jax.Array:
    """Map hidden states [..., D] of queries to the embeddings that a listener reads."""
    return (hidden @ params["weight"].astype(hidden.dtype)) * params["gain"].astype(hidden.dtype)
