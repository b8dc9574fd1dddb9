"""Sampling: prompts are read, the critic is asked, answers are written, all inside one jitted program."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.agents import critics
from marl_jax.agents.answers import DecodeInputs
from marl_jax.agents.policy import Policy
from models import cache as kv
from models import lora

SCAN_UNROLL = 4  # layers per iteration of the loop that reads prompts for answers of one token


class Decision(NamedTuple):
    """Answers of B rows: action [B] (-1: it names none), tokens [B, W], lengths [B], logps [B, W], values [B]."""

    action: jax.Array
    answers: jax.Array
    lengths: jax.Array
    logps: jax.Array
    values: jax.Array


@jax.named_scope("answer")
def act(
    policy: Policy,
    ready: dict,
    tokens: jax.Array,
    lengths: jax.Array,
    legal: jax.Array,
    keys: jax.Array,
    ids: jax.Array,
    temperature: float | None = None,
    central: tuple[jax.Array, jax.Array] | None = None,
    candidates: int = 1,
) -> Decision:
    """An answer to every prompt, or several.

    ready        from `Policy.prepare_for_sampling`
    tokens       int32 [B, T], prompts behind the policy's prefix, right-padded, of lengths int32 [B]
    legal        bool [B, A]
    keys         PRNG keys [B]
    ids          int32 [B], which of the policies answers (matters with adapters)
    temperature  None: that of training; 0: the most likely answer
    central      what a central critic reads
    candidates   K answers to each prompt, which is read once: rows b·K … b·K + K − 1 of the decision are row b's,
                 and so are those of `keys` [B·K]
    """
    adapters = policy.adapters(ready, ids)
    last, cache = _read_prompts(policy, ready, tokens, lengths, adapters)
    values = values_at_prompt(policy, ready, last, tokens, lengths, central)
    lengths = lengths + len(policy.prefix)
    if candidates > 1:
        last, lengths, legal, ids, values, cache = jax.tree.map(
            lambda x: jnp.repeat(x, candidates, axis=0), (last, lengths, legal, ids, values, cache)
        )
        adapters = policy.adapters(ready, ids)
    return answer(policy, ready, last, lengths, legal, keys, temperature, cache, adapters, values)


def answer(policy, ready, last, lengths, legal, keys, temperature, cache, adapters, values, prefix=None) -> Decision:
    """Answers from the last hidden states [B, D] of what was read: `lengths` tokens of each row, prefix included."""
    temperatures = jnp.full(lengths.shape, policy.temperature if temperature is None else temperature, jnp.float32)
    asked = DecodeInputs(
        policy.model, ready["model"], last, lengths, legal, temperatures, keys, cache, adapters, policy.dtype, prefix
    )
    reply = policy.answers.sample(asked)
    return Decision(reply.action, reply.tokens, reply.lengths, reply.logps, values)


def _read_prompts(policy: Policy, ready, tokens, lengths, adapters):
    """The hidden states [B, D] that answers begin from, and the cache that further tokens need, if there are any.

    Without further tokens the weights stay stacked and nothing is kept: that compiles several times faster.
    """
    batch, time = tokens.shape
    read = functools.partial(policy.model.forward, ready["model"], adapters=adapters, dtype=policy.dtype)
    slots = len(policy.prefix) + time + policy.width
    if not policy.decodes:
        hidden, cache = read(tokens, lengths=lengths, prefix=ready.get("prefix"), unroll=SCAN_UNROLL)
    elif policy.prefix:
        cache = _prefix_rows(ready["prefix"], adapters, batch, slots)
        hidden, cache = read(tokens, lengths=lengths, cache=cache)
    else:
        hidden, cache = read(tokens, lengths=lengths, new_cache=slots)
    return at(hidden, lengths - 1), cache


def read_more(
    policy: Policy,
    ready: dict,
    cache: kv.Cache,
    rows: jax.Array,
    tokens: jax.Array,
    lengths: jax.Array,
    ids: jax.Array,
) -> tuple[jax.Array, kv.Cache]:
    """Conversations read on: the last hidden states [B, D], and the cache with what is new behind its rows.

    rows     int32 [B], the conversations' rows of the cache, which holds what comes behind the prefix
    tokens   int32 [B, T], right-padded, of lengths int32 [B]; 0: the row stays as it is
    """
    hidden, longer = policy.model.forward(
        ready["model"], tokens, lengths=lengths, cache=cache, rows=rows, prefix=ready.get("prefix"),
        adapters=policy.adapters(ready, ids), dtype=policy.dtype,
    )  # fmt: skip
    assert longer is not None
    return at(hidden, jnp.maximum(lengths - 1, 0)), longer


def _prefix_rows(prefix: kv.Cache, adapters: lora.Lora | None, batch: int, slots: int) -> kv.Cache:
    if adapters is None:
        return kv.broadcast(prefix, batch, slots)
    room = ((0, 0), (0, slots - prefix.slots), (0, 0), (0, 0))
    layers = tuple(tuple(jnp.pad(x, room)[adapters.ids] for x in layer) for layer in prefix.layers)
    return kv.Cache(layers, prefix.lengths[adapters.ids])


def values_at_prompt(
    policy: Policy,
    ready: dict,
    last: jax.Array,
    tokens: jax.Array | None,
    lengths: jax.Array,
    central: tuple[jax.Array, jax.Array] | None,
) -> jax.Array:
    """float32 [B]: what the critic says before the answer; 0 without one."""
    if "critic" not in ready or policy.critic == "none":
        return jnp.zeros(lengths.shape, jnp.float32)
    if policy.critic == "head":
        return critics.read(ready["critic"], last)
    prefix = ready.get("critic_prefix")
    if tokens is None and policy.critic == "separate":  # it reads conversations when they are learned from
        return jnp.zeros(lengths.shape, jnp.float32)
    if policy.critic == "central":
        assert central is not None
        (tokens, lengths), prefix = central, None
    assert tokens is not None
    values = critics.trunk(policy.model, ready["critic"], tokens, lengths, policy.dtype, prefix=prefix)
    return at(values, lengths - 1)


def at(x: jax.Array, positions: jax.Array) -> jax.Array:
    """x [B, T, …] at one position of each row, [B, …]."""
    return x[jnp.arange(x.shape[0]), positions]
