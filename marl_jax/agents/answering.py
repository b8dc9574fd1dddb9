"""Sample completions inside a jitted program: prefill prompts, evaluate the critic, decode."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.agents import critics, prompt_media
from marl_jax.agents.answers import DecodeInputs
from marl_jax.agents.policy import Policy
from models import cache as kv
from models import lora

SCAN_UNROLL = 4  # layers per scan iteration when prompts are prefilled for one-token completions


class Decision(NamedTuple):
    """Completions of B rows.

    Attributes:
        action: int32 [B], -1 where the completion names no action.
        answers: int32 [B, W], the tokens.
        lengths: int32 [B].
        logps: float32 [B, W].
        values: float32 [B], the critic's values before the completions.
        truncated: bool [B], whether the token limit cut the completion off.
    """

    action: jax.Array
    answers: jax.Array
    lengths: jax.Array
    logps: jax.Array
    values: jax.Array
    truncated: jax.Array


@jax.named_scope("answer")
def act(
    policy: Policy,
    prepared: dict,
    tokens: jax.Array,
    lengths: jax.Array,
    legal: jax.Array,
    keys: jax.Array,
    ids: jax.Array,
    temperature: float | None = None,
    central: tuple[jax.Array, jax.Array] | None = None,
    candidates: int = 1,
    media: jax.Array | None = None,
) -> Decision:
    """Generate one or more completions for every prompt.

    Args:
        policy: The policy that acts.
        prepared: Weights from `Policy.prepare_for_sampling`.
        tokens: int32 [B, T], prompts without the policy's prefix, right-padded.
        lengths: int32 [B], lengths of the prompts.
        legal: bool [B, A], the legal actions.
        keys: PRNG keys [B], or [B·K] with K candidates.
        ids: int32 [B], the adapter of each row. Ignored without adapters.
        temperature: None for the training temperature, 0 for greedy decoding.
        central: Tokens and lengths for a central critic.
        candidates: Number K of completions per prompt. Each prompt is prefilled once, and rows b·K … b·K + K − 1 of the
            decision belong to prompt b.
        media: [B, C], codes of the media in the prompts, or prompts of the speakers; None for text.
    """
    adapters = policy.adapters(prepared, ids)
    last, cache = _read_prompts(policy, prepared, tokens, lengths, adapters, media)
    values = values_at_prompt(policy, prepared, last, tokens, lengths, central, media)
    lengths = lengths + len(policy.prefix)
    if candidates > 1:
        last, lengths, legal, ids, values, cache = jax.tree.map(
            lambda x: jnp.repeat(x, candidates, axis=0), (last, lengths, legal, ids, values, cache)
        )
        adapters = policy.adapters(prepared, ids)
    return answer(policy, prepared, last, lengths, legal, keys, temperature, cache, adapters, values)


def answer(policy, prepared, last, lengths, legal, keys, temperature, cache, adapters, values, prefix=None) -> Decision:
    """Generate completions from the last hidden states of prefilled rows.

    Args:
        policy: The policy that acts.
        prepared: Weights from `Policy.prepare_for_sampling`.
        last: [B, D], hidden states of the last tokens.
        lengths: int32 [B], tokens prefilled so far, including the prefix.
        legal: bool [B, A].
        keys: PRNG keys [B].
        temperature: See `act`.
        cache: KV cache of the rows, or None for one-token completions.
        adapters: LoRA adapters of the rows, or None.
        values: float32 [B], passed through to the decision.
        prefix: Layers of a shared prefix that the cache does not contain.
    """
    temperatures = jnp.full(lengths.shape, policy.temperature if temperature is None else temperature, jnp.float32)
    inputs = DecodeInputs(
        policy.model,
        prepared["model"],
        last,
        lengths,
        legal,
        temperatures,
        keys,
        cache,
        adapters,
        policy.dtype,
        prefix,
        prepared.get("critic"),
    )
    reply = policy.answers.sample(inputs)
    return Decision(reply.action, reply.tokens, reply.lengths, reply.logps, values, reply.truncated)


def _read_prompts(policy: Policy, prepared, tokens, lengths, adapters, media):
    """Prefill prompts and return their last hidden states [B, D] and the KV cache.

    One-token completions need no cache. Then the weights stay stacked, which compiles several times faster.
    """
    batch, time = tokens.shape
    position = len(policy.prefix) + jnp.arange(time)
    seen = prompt_media.inputs(policy, prepared["model"], media, tokens, position, lengths)
    read = functools.partial(policy.model.forward, prepared["model"], adapters=adapters, dtype=policy.dtype, **seen)
    slots = len(policy.prefix) + time + policy.width
    if not policy.decodes:
        hidden, cache = read(tokens, lengths=lengths, prefix=prepared.get("prefix"), unroll=SCAN_UNROLL)
    elif policy.prefix:
        cache = _prefix_rows(prepared["prefix"], adapters, batch, slots)
        hidden, cache = read(tokens, lengths=lengths, cache=cache)
    else:
        hidden, cache = read(tokens, lengths=lengths, new_cache=slots)
    return at(hidden, lengths - 1), cache


def read_more(
    policy: Policy,
    prepared: dict,
    cache: kv.Cache,
    rows: jax.Array,
    tokens: jax.Array,
    lengths: jax.Array,
    ids: jax.Array,
) -> tuple[jax.Array, kv.Cache]:
    """Prefill more tokens of conversations that already have a KV cache.

    Args:
        policy: The policy that acts.
        prepared: Weights from `Policy.prepare_for_sampling`.
        cache: KV cache of all conversations, without the shared prefix.
        rows: int32 [B], rows of the cache that the tokens continue.
        tokens: int32 [B, T], right-padded.
        lengths: int32 [B]; a row of length 0 does not change.
        ids: int32 [B], the adapter of each row.

    Returns:
        The last hidden states [B, D] and the extended cache.
    """
    hidden, longer = policy.model.forward(
        prepared["model"], tokens, lengths=lengths, cache=cache, rows=rows, prefix=prepared.get("prefix"),
        adapters=policy.adapters(prepared, ids), dtype=policy.dtype,
    )  # fmt: skip
    assert longer is not None
    return at(hidden, jnp.maximum(lengths - 1, 0)), longer


def _prefix_rows(prefix: kv.Cache, adapters: lora.Lora | None, batch: int, slots: int) -> kv.Cache:
    """Copy the cache of the prefix into a cache with one row per prompt."""
    if adapters is None:
        return kv.broadcast(prefix, batch, slots)
    room = ((0, 0), (0, slots - prefix.slots), (0, 0), (0, 0))
    layers = tuple(tuple(jnp.pad(x, room)[adapters.ids] for x in layer) for layer in prefix.layers)
    return kv.Cache(layers, prefix.lengths[adapters.ids])


def values_at_prompt(
    policy: Policy,
    prepared: dict,
    last: jax.Array,
    tokens: jax.Array | None,
    lengths: jax.Array,
    central: tuple[jax.Array, jax.Array] | None,
    media: jax.Array | None = None,
) -> jax.Array:
    """Return the critic's values before the completions, float32 [B].

    They are zeros without a critic, or if it values actions.
    """
    if "critic" not in prepared or policy.critic in ("none", *critics.OF_ACTIONS):
        return jnp.zeros(lengths.shape, jnp.float32)
    if policy.critic == "head":
        return critics.read(prepared["critic"], last)
    prefix = prepared.get("critic_prefix")
    if tokens is None and policy.critic == "separate":  # the learner fills in the values
        return jnp.zeros(lengths.shape, jnp.float32)
    if policy.critic == "central":
        assert central is not None
        (tokens, lengths), prefix = central, None
    assert tokens is not None
    position = len(policy.prefix) + jnp.arange(tokens.shape[1])
    seen = prompt_media.inputs(policy, prepared["critic"]["model"], media, tokens, position, lengths)
    last = critics.trunk(policy.model, prepared["critic"], tokens, lengths, policy.dtype, prefix=prefix, **seen)
    return critics.read(prepared["critic"], last)


def at(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Select one position of each row: [B, T, …] -> [B, …]."""
    return x[jnp.arange(x.shape[0]), positions]
