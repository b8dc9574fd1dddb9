"""Critics: estimates of the return of the agent that is about to act.

- `head`: a linear map of the policy's hidden state, without another forward pass.
- `separate`: a separate trunk, initialized from the policy's weights, that reads the same tokens.
- `central`: a separate trunk that reads the views of all seats, the acting agent's last. It is used in training only.

The critic of a chat reads the full conversation, or the prompt and one completion only (`answers_alone`). The second
case costs a head another forward pass, because the hidden states of the conversation depend on the other turns.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples
from models.config import ModelConfig
from models.model import Model

KINDS = ("none", "head", "separate", "central")


def init(kind: str, cfg: ModelConfig, params: dict) -> dict:
    """Initialize the critic's parameters so that all its values are 0.

    Args:
        kind: One of `KINDS`.
        cfg: The model's config.
        params: The policy's parameters. A separate trunk starts from a float32 copy of them.
    """
    if kind not in KINDS:
        raise ValueError(f"critic is {kind!r}, but must be one of: {', '.join(KINDS)}")
    if kind == "none":
        return {}
    head = {"weight": jnp.zeros((cfg.d_model,), jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    return head if kind == "head" else {**head, "model": jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)}


def axes(kind: str, model: Model) -> dict:
    """Return the axis letters of the critic's parameters."""
    if kind == "none":
        return {}
    head = {"weight": ("D",), "bias": ()}
    return head if kind == "head" else {**head, "model": model.axes()}


def read(critic: dict, hidden: jax.Array) -> jax.Array:
    """Compute values from hidden states: [..., D] -> float32 [...]."""
    return hidden.astype(jnp.float32) @ critic["weight"] + critic["bias"]


def trunk(model: Model, critic: dict, tokens: jax.Array, lengths: jax.Array, dtype, **settings) -> jax.Array:
    """Compute values at every position with a separate trunk.

    Args:
        model: The model.
        critic: The critic's parameters.
        tokens: int32 [N, T].
        lengths: int32 [N].
        dtype: Dtype of the computation.
        **settings: Further arguments of `Model.forward`.

    Returns:
        float32 [N, T].
    """
    hidden, _ = model.forward(critic["model"], tokens, lengths=lengths, dtype=dtype, **settings)
    return read(critic, hidden)


def answers_alone(samples: Samples) -> Samples:
    """Return the same rows with every completion attending to the initial prompt only.

    No token moves. Completions become branches of the prompt with positions that continue it, and no completion attends
    to the tokens between them:

        tokens     q q a a u u b b b        q: prompt, a and b: completions, u: later user turn
        positions  0 1 2 3 . . 2 3 4
        branch     - - 0 0 . . 1 1 1
    """
    assert samples.prompt_len is not None
    rows = jnp.arange(samples.n)[:, None]
    # The first token of a completion follows the prompt, every other one the token before it.
    later = (samples.completion_of >= 0) & (samples.first() == 0)
    place = jnp.where(later, samples.logits_index, samples.tokens.shape[1])  # out of bounds: dropped
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
    """Concatenate several texts.

    Args:
        tokens: int32 [P, T], right-padded.
        lengths: int32 [P].
        width: Length of the result.

    Returns:
        int32 [width], right-padded with 0, and the number of tokens.
    """
    ends = jnp.cumsum(lengths)
    starts = ends - lengths
    position = jnp.arange(width)
    view = jnp.minimum(jnp.sum(position[:, None] >= ends, axis=1), tokens.shape[0] - 1)
    offset = jnp.clip(position - starts[view], 0, tokens.shape[1] - 1)
    return jnp.where(position < ends[-1], tokens[view, offset], 0), ends[-1].astype(jnp.int32)
