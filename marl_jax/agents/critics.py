"""Critics: what a position is worth to the agent that is about to answer.

head      one linear map on the policy's own hidden state: no further forward pass
separate  a trunk of its own, started from the policy's weights, that reads the same tokens
central   a trunk of its own that reads what every seat sees, the agent to move last: all that anyone knows of the
          state. It helps to learn and is not needed to play.

A critic of a chat reads all of it, or the question and one answer alone (`answers_alone`). The head then takes a second
forward pass of the policy, as the hidden states of the chat have seen the other turns.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples
from models.config import ModelConfig
from models.model import Model

KINDS = ("none", "head", "separate", "central")


def init(kind: str, cfg: ModelConfig, params: dict) -> dict:
    """The critic's parameters; its first values are all 0, so that nothing is learnt from noise.

    params  the policy's, copied into a separate trunk, in float32 as all that learns: a frozen base may have less
    """
    if kind not in KINDS:
        raise ValueError(f"critic is {kind!r}, but must be one of: {', '.join(KINDS)}")
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


def answers_alone(samples: Samples) -> Samples:
    """The same rows, in which every answer follows the opening of its chat, as if nothing had been said between.

    No token moves: answers become branches of the opening, with positions counted on from it, and what stands between
    them is seen by none of them.

        tokens     q q a a u u b b b        q: the opening, a and b: answers, u: what the task said between
        positions  0 1 2 3 . . 2 3 4
        branch     - - 0 0 . . 1 1 1
    """
    assert samples.prompt_len is not None
    rows = jnp.arange(samples.n)[:, None]
    # The first token of an answer follows the opening, every other one the token before it.
    later = (samples.completion_of >= 0) & (samples.first() == 0)
    place = jnp.where(later, samples.logits_index, samples.tokens.shape[1])  # nowhere
    branch = jnp.full(samples.tokens.shape, -1, jnp.int32).at[rows, place].set(samples.completion_of, mode="drop")
    shift = jnp.take_along_axis(samples.prompt_len[:, None] - samples.context_len, jnp.maximum(branch, 0), axis=1)
    question = samples.positions < samples.prompt_len[:, None]
    last = jnp.maximum(samples.prompt_len - samples.positions[:, 0] - 1, 0)[:, None]
    return samples.replace(
        positions=jnp.where(branch >= 0, samples.positions + shift, samples.positions),
        branch=branch,
        segment=jnp.where(question | (branch >= 0), 0, -1),
        context_len=jnp.broadcast_to(samples.prompt_len[:, None], samples.context_len.shape),
        logits_index=jnp.where(later, samples.logits_index, last),
        branch_len=0,
    )


def join_views(tokens: jax.Array, lengths: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """Several texts int32 [P, T] of lengths int32 [P] as one: int32 [width] right-padded with 0, and its length."""
    ends = jnp.cumsum(lengths)
    starts = ends - lengths
    position = jnp.arange(width)
    view = jnp.minimum(jnp.sum(position[:, None] >= ends, axis=1), tokens.shape[0] - 1)
    offset = jnp.clip(position - starts[view], 0, tokens.shape[1] - 1)
    return jnp.where(position < ends[-1], tokens[view, offset], 0), ends[-1].astype(jnp.int32)
