"""Scoring: how likely sampled answers are under some weights, and what the critic says; what the update differentiates.

No token is read more often than loss and gradients need. What all prompts of a policy begin with is read once for a
whole part of a batch, a conversation once for all of its answers, K candidates behind one prompt, and short rows share
longer ones (`packing`). Loss and gradients are those of separate, whole prompts.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.agents import critics, packing
from marl_jax.agents.answering import at
from marl_jax.agents.policy import Policy
from marl_jax.samples import Samples
from models import lora
from models.layouts import Branches, Conversations, Packed, move
from models.logprobs import token_logprobs


class Scores(NamedTuple):
    """What the learner sees, float32 [N, X]: log-probabilities, entropies, and values before each token."""

    logps: jax.Array
    entropy: jax.Array
    values: jax.Array


def score(policy: Policy, weights: dict, samples: Samples, packed: packing.PackedRows | None = None) -> Scores:
    """The samples under these weights; differentiable.

    packed  the samples are those in the slots of packed rows, answers of any text; 0 in empty slots
    """
    if packed is not None:
        (logps, entropy), before, spread = _score_packed(policy, weights, samples, packed)
        values = critics.read(weights["critic"], before) if policy.critic == "head" else jnp.zeros(before.shape[:2])
        return Scores(spread(logps), spread(entropy), spread(values))
    adapters = policy.adapters(weights, samples.policy)
    before = before_answers(policy, weights["model"], samples, adapters)
    found = policy.answers.score(policy.model, weights["model"], before, samples, policy.temperature)
    return Scores(*found, _values(policy, weights, samples, before, adapters))


def answer_logps(policy: Policy, acting: dict, samples: Samples, packed: packing.PackedRows | None = None) -> jax.Array:
    """float32 [N, X] of the answers under the weights that decide how a policy acts, {"model", "adapters"}."""
    if packed is not None:
        (logps, _), _, spread = _score_packed(policy, acting, samples, packed)
        return spread(logps)
    adapters = policy.adapters(acting, samples.policy)
    before = before_answers(policy, acting["model"], samples, adapters)
    return policy.answers.score(policy.model, acting["model"], before, samples, policy.temperature)[0]


def reference_logps(policy: Policy, weights: dict, *samples: Any) -> jax.Array:
    """`answer_logps` of the policy at the start: the base without adapters, or the copy that was kept."""
    if policy.lora is None:
        return answer_logps(policy, {"model": weights["reference"]}, *samples)
    kept = {"adapters": weights["reference"]} if policy.warm else {}
    return answer_logps(policy, {"model": weights["model"], **kept}, *samples)


def magnet_logps(policy: Policy, weights: dict, *samples: Any) -> jax.Array:
    """`answer_logps` of the slow copy of the policy."""
    return answer_logps(policy, policy.with_snapshot(weights, weights["magnet"]), *samples)


def before_answers(policy: Policy, params: dict, samples: Samples, adapters: lora.Lora | None) -> jax.Array:
    """[N, X, D]: the hidden states that predict the tokens of the answers."""
    read = _reader(policy, params, adapters)
    if samples.segment is None and samples.branch is None:
        hidden = read(samples.tokens, lengths=samples.lengths, adapters=adapters)
    else:
        given = dict(positions=samples.positions, lengths=samples.lengths, layout=_layout(samples))
        hidden = read(samples.tokens, adapters=adapters, **given)
    return jnp.take_along_axis(hidden, samples.logits_index[..., None], axis=1)


def _layout(samples: Samples) -> Branches | Conversations:
    """Who sees whom: a prompt with its candidates has a faster way than conversations of any form."""
    if samples.branch_len and samples.segment is None:
        prompts = samples.context_len[:, 0] - samples.positions[:, 0]
        return Branches(prompts, samples.n_completions, samples.branch_len)
    context_len = None
    if samples.branch is not None:
        context_len = jnp.take_along_axis(samples.context_len, jnp.maximum(samples.branch, 0), axis=1)
    return Conversations(samples.positions, samples.segment, samples.branch, context_len)


def _values(policy: Policy, weights: dict, samples: Samples, before: jax.Array, adapters) -> jax.Array:
    """float32 [N, X]; `before` are the hidden states of the policy that reads the whole chat."""
    if policy.critic == "none":
        return jnp.zeros(samples.targets.shape, jnp.float32)
    critic, alone = weights["critic"], policy.critic_reads == "completion"
    if policy.critic in ("head", "separate"):
        read = critics.answers_alone(samples) if alone else samples
        if policy.critic == "separate":
            before = before_answers(policy, critic["model"], read, None)
        elif alone:
            before = before_answers(policy, weights["model"], read, adapters)
        return critics.read(critic, before)
    assert samples.central is not None
    settings = dict(remat=policy.remat, unroll=policy.unroll)
    tokens, lengths = (x.reshape(-1, *x.shape[2:]) for x in samples.central)
    values = at(critics.trunk(policy.model, critic, tokens, lengths, policy.dtype, **settings), lengths - 1)
    return samples.to_tokens(values.reshape(samples.completion_lengths.shape))


def _score_packed(policy: Policy, weights: dict, samples: Samples, rows: packing.PackedRows):
    """Of packed rows: (log-probs, entropies) [R, X'], hidden states before them [R, X', D], and the way back.

    samples  [R·S, …], those in the slots of the rows; all have one policy
    back     a function from [R, X'], answer behind answer, to samples [R·S, X]
    """
    adapters = policy.adapters(weights, jnp.zeros((len(rows.table),), jnp.int32))
    read = _reader(policy, weights["model"], adapters)
    n, slots = rows.starts.shape
    filled = rows.filled.reshape(-1)
    sizes = jnp.where(filled, packing.sizes(samples), 0).reshape(n, slots)
    layout = Packed(rows.starts, sizes, samples.tokens.shape[1])
    there, back = layout.places(rows.room)
    in_rows = lambda x: move(x.reshape(n, -1), back, there)  # noqa: E731
    hidden = read(in_rows(samples.tokens), positions=in_rows(samples.positions), layout=layout, adapters=adapters)
    said = jnp.where(filled, packing.answer_sizes(samples), 0).reshape(n, slots)
    there, back = Packed(rows.answer_starts, said, samples.width).places(rows.answer_room)
    before = rows.starts[..., None] + samples.logits_index.reshape(n, slots, -1)
    before = move(before.reshape(n, -1), back, there)
    targets = move(samples.targets.reshape(n, -1), back, there)
    before = jnp.take_along_axis(hidden, before[..., None], axis=1)
    found = token_logprobs(policy.model, weights["model"], before, targets, policy.temperature)
    return found, before, lambda x: move(x, there, back).reshape(samples.targets.shape)


def _reader(policy: Policy, params: dict, adapters: lora.Lora | None):
    """`Model.forward` behind the policy's prefix, giving hidden states."""
    settings = dict(dtype=policy.dtype, remat=policy.remat, unroll=policy.unroll)
    prefix = None
    if policy.prefix:
        # With adapters the prefix reads differently for each of them.
        n = 1 if adapters is None else len(adapters.scale)
        tokens = jnp.broadcast_to(jnp.asarray(policy.prefix, jnp.int32), (n, len(policy.prefix)))
        readers = None if adapters is None else dataclasses.replace(adapters, ids=jnp.arange(n))
        # In a loop whatever the rows have: it is one short row, and unrolled it would be as much again to compile.
        prefix = policy.model.read_prefix(params, tokens, adapters=readers, **{**settings, "unroll": 1})
    forward = functools.partial(policy.model.forward, params, prefix=prefix, **settings)
    return lambda *args, **more: forward(*args, **more)[0]
