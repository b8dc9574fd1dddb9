"""Soft messages: hidden states of a speaker as tokens in a listener's prompt.

The speaker reads its own prompt, followed by M learned queries. An adapter turns their hidden states into M embeddings
at the end of the listener's prompt. Samples keep the tokens of the speaker's prompt instead of the embeddings: the
sampler and the learner both compute them with `inputs`, so the listener's loss has gradients with respect to the
weights with which the speaker reads.

The kinds of messages are

    soft        as described
    detached    without gradients to the hidden states of the speaker
    shuffled    of another game of the batch: the listener reads a message that says nothing about its game
    frozen      random embeddings that are the same for all games and not trained
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from envs.games.game import Game
from marl_jax.agents.policy import Policy
from models import messages
from models.media import Media

KINDS = ("soft", "detached", "shuffled", "frozen")
NO_TOKEN = -1
"""Padding of the speaker's prompt in samples."""


def speaker_of(game: Game, seat: jax.Array) -> jax.Array:
    """Return the seat whose message each seat reads, int32 [...]; -1 for none."""
    return jnp.asarray(game.speakers, jnp.int32)[seat]


def heard(kind: str, prompts: jax.Array, lengths: jax.Array, speaks: jax.Array) -> jax.Array:
    """Return the speakers' prompts as samples keep them, int32 [B, C].

    Args:
        kind: One of `KINDS`.
        prompts: int32 [B, C], right-padded.
        lengths: int32 [B].
        speaks: bool [B]. Whether there is a message.
    """
    real = (jnp.arange(prompts.shape[1]) < lengths[:, None]) & speaks[:, None]
    kept = jnp.where(real, prompts, NO_TOKEN)
    return jnp.roll(kept, 1, axis=0) if kind == "shuffled" else kept


def inputs(
    policy: Policy, params: dict, said: jax.Array | None, tokens: jax.Array, lengths: jax.Array
) -> dict[str, Any]:
    """Return the arguments of `Model.forward` for prompts that end with a message; {} without messages.

    Args:
        policy: The policy, which is speaker and listener.
        params: Parameters of the model that reads.
        said: int32 [B, C] from `heard`, or None.
        tokens: int32 [B, T]. The last M tokens of a prompt with a message are placeholders.
        lengths: int32 [B]. Lengths of the prompts, with the message.
    """
    if said is None:
        return {}
    slot = jnp.arange(tokens.shape[1]) - (lengths[:, None] - policy.message_tokens)
    here = (slot >= 0) & (slot < policy.message_tokens) & jnp.any(said != NO_TOKEN, axis=1, keepdims=True)
    return {"media": Media(encode(policy, params, said), jnp.where(here, slot, -1))}


def encode(policy: Policy, params: dict, said: jax.Array) -> jax.Array:
    """Compute the messages [B, M, D] of speakers with prompts int32 [B, C]."""
    own, batch, count = params["message"], len(said), policy.message_tokens
    queries = jnp.broadcast_to(own["queries"], (batch, *own["queries"].shape)).astype(policy.dtype)
    if policy.message == "frozen":
        return jax.lax.stop_gradient(queries)
    prefix = jnp.broadcast_to(jnp.asarray(policy.prefix, jnp.int32), (batch, len(policy.prefix)))
    read = jnp.concatenate([prefix, said, jnp.full((batch, count), NO_TOKEN)], axis=1)
    before = len(policy.prefix) + jnp.sum(said != NO_TOKEN, axis=1)
    slot = jnp.arange(read.shape[1]) - before[:, None]
    media = Media(queries, jnp.where((slot >= 0) & (slot < count), slot, -1))
    hidden, _ = policy.model.forward(
        params, jnp.maximum(read, 0), lengths=before + count, media=media, dtype=policy.dtype, remat=policy.remat
    )
    places = before[:, None] + jnp.arange(count)
    spoken = jnp.take_along_axis(hidden, places[..., None], axis=1)
    return messages.adapt(own, jax.lax.stop_gradient(spoken) if policy.message == "detached" else spoken)
