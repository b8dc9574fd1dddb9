"""Scoring: log-probabilities of sampled completions and critic values, as the update differentiates them.

No token is processed more often than loss and gradients require. The common prefix of a policy is computed once per
part of a batch, a conversation once for all its completions, and a prompt once for its K candidates. Short rows share
longer ones (`packing`). Loss and gradients equal those of separate, complete prompts.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.agents import critics, packing, prompt_media
from marl_jax.agents.answers import Constrained
from marl_jax.agents.policy import Policy
from marl_jax.samples import Samples
from marl_jax.samples import rows as take
from models import lora
from models.layouts import Branches, Conversations, Packed, move
from models.logprobs import token_logprobs
from models.media import Media


class Scores(NamedTuple):
    """Scores of completion tokens, each float32 [N, X].

    Attributes:
        logps: Log-probabilities.
        entropy: Entropies.
        values: Critic values before each token. A critic of actions gives the value of the action that was taken, or
            of the joint action of the round if it is mixed.
        legal: Log-probabilities, without the mask, of all tokens that continue a legal name; None if not needed.
        action_logps: float32 [N, S, A], log-probabilities of all actions, if the critic or the rollout values them.
        action_values: float32 [N, S, A], values of all actions, with the critic `q_central` only.
    """

    logps: jax.Array
    entropy: jax.Array
    values: jax.Array
    legal: jax.Array | None = None
    action_logps: jax.Array | None = None
    action_values: jax.Array | None = None


def score(
    policy: Policy, weights: dict, samples: Samples, packed: packing.PackedRows | None = None, legal: bool = False
) -> Scores:
    """Score samples under some weights; differentiable.

    Args:
        policy: The policy.
        weights: Its weights, including the critic.
        samples: The samples to score.
        packed: Packed rows whose slots hold the samples, for free text only. Empty slots score 0.
        legal: Whether to compute `Scores.legal`, for names of legal actions only.
    """
    if packed is not None:
        (logps, entropy), before, spread = _score_packed(policy, weights, samples, packed)
        values = critics.read(weights["critic"], before) if policy.critic == "head" else jnp.zeros(before.shape[:2])
        return Scores(spread(logps), spread(entropy), spread(values))
    adapters = policy.adapters(weights, samples.policy)
    before = before_answers(policy, weights["model"], samples, adapters)
    logps, entropy = policy.answers.score(policy.model, weights, before, samples, policy.temperature)
    likely = None
    if policy.critic == "q_central" or samples.action_values is not None:
        assert isinstance(policy.answers, Constrained)
        likely = policy.answers.action_logps(policy.model, weights, before, samples, policy.temperature)
    if policy.critic == "q_central":
        of_actions = central_action_values(policy, weights, samples)
        values = samples.to_tokens(value_taken(of_actions, samples))
        return Scores(logps, entropy, values, action_logps=likely, action_values=of_actions)
    values = _values(policy, weights, samples, before, adapters)
    if not legal:
        return Scores(logps, entropy, values, action_logps=likely)
    # The mask divides all probabilities by that of the allowed tokens.
    unmasked, _ = token_logprobs(policy.model, weights["model"], before, samples.targets, policy.temperature)
    return Scores(logps, entropy, values, (unmasked - logps) * samples.mask())


def answer_logps(policy: Policy, acting: dict, samples: Samples, packed: packing.PackedRows | None = None) -> jax.Array:
    """Compute log-probabilities of the completion tokens, float32 [N, X].

    Args:
        policy: The policy.
        acting: The weights that determine how it acts: {"model", "adapters"}.
        samples: The samples to score.
        packed: See `score`.
    """
    if packed is not None:
        (logps, _), _, spread = _score_packed(policy, acting, samples, packed)
        return spread(logps)
    adapters = policy.adapters(acting, samples.policy)
    before = before_answers(policy, acting["model"], samples, adapters)
    return policy.answers.score(policy.model, acting, before, samples, policy.temperature)[0]


def reference_logps(policy: Policy, weights: dict, *samples: Any) -> jax.Array:
    """Compute `answer_logps` of the initial policy: the base without adapters, or its copy."""
    if policy.lora is None:
        return answer_logps(policy, {"model": weights["reference"]}, *samples)
    kept = {"adapters": weights["reference"]} if policy.warm else {}
    return answer_logps(policy, {"model": weights["model"], **kept}, *samples)


def magnet_logps(policy: Policy, weights: dict, *samples: Any) -> jax.Array:
    """Compute `answer_logps` of the slowly moving copy of the policy."""
    return answer_logps(policy, policy.with_snapshot(weights, weights["magnet"]), *samples)


def before_answers(policy: Policy, params: dict, samples: Samples, adapters: lora.Lora | None) -> jax.Array:
    """Compute the hidden states [N, X, D] that predict the completion tokens."""
    read = _reader(policy, params, adapters)
    seen = _media(policy, params, samples)
    if samples.segment is None and samples.branch is None:
        hidden = read(samples.tokens, lengths=samples.lengths, adapters=adapters, **seen)
    else:
        given = dict(positions=samples.positions, lengths=samples.lengths, layout=_layout(samples))
        hidden = read(samples.tokens, adapters=adapters, **given | seen)
    return jnp.take_along_axis(hidden, samples.logits_index[..., None], axis=1)


def _media(policy: Policy, params: dict, samples: Samples) -> dict[str, Any]:
    """Return the arguments of `Model.forward` for the media or soft messages of samples."""
    prompts = samples.context_len[:, 0] - samples.positions[:, 0]
    return prompt_media.inputs(policy, params, samples.media, samples.tokens, samples.positions, prompts)


def _layout(samples: Samples) -> Branches | Conversations:
    """Return the attention layout of the rows.

    A prompt with branches of equal length has a faster layout than general conversations.
    """
    if samples.branch_len and samples.segment is None:
        prompts = samples.context_len[:, 0] - samples.positions[:, 0]
        return Branches(prompts, samples.n_completions, samples.branch_len)
    context_len = None
    if samples.branch is not None:
        context_len = jnp.take_along_axis(samples.context_len, jnp.maximum(samples.branch, 0), axis=1)
    return Conversations(samples.positions, samples.segment, samples.branch, context_len)


def _values(policy: Policy, weights: dict, samples: Samples, before: jax.Array, adapters) -> jax.Array:
    """Compute values float32 [N, X]; `before` are the policy's states over full conversations."""
    if policy.critic == "none":
        return jnp.zeros(samples.targets.shape, jnp.float32)
    if policy.critic in critics.ACTING:
        taken = value_taken(critics.read(weights["critic"], before[:, :1]), samples)
        first = take(samples, slice(None, None, policy.n_seats))
        total = joint_values(weights, mixing_states(policy, weights, first), taken.reshape(-1, policy.n_seats))
        return jnp.broadcast_to(jnp.repeat(total, policy.n_seats)[:, None], samples.targets.shape)
    critic, alone = weights["critic"], policy.critic_reads == "completion"
    if policy.critic in ("head", "separate"):
        read = critics.answers_alone(samples) if alone else samples
        if policy.critic == "separate":
            before = before_answers(policy, critic["model"], read, None)
        elif alone:
            before = before_answers(policy, weights["model"], read, adapters)
        return critics.read(critic, before)
    return samples.to_tokens(critics.read(critic, central_states(policy, weights, samples)))


def central_states(policy: Policy, weights: dict, samples: Samples) -> jax.Array:
    """Compute the critic's hidden states after the views of all seats, [N, S, D]."""
    assert samples.central is not None
    settings = dict(remat=policy.remat, unroll=policy.unroll)
    tokens, lengths = (x.reshape(-1, *x.shape[2:]) for x in samples.central)
    states = critics.trunk(policy.model, weights["critic"], tokens, lengths, policy.dtype, **settings)
    return states.reshape(*samples.completion_lengths.shape, -1)


def central_action_values(policy: Policy, weights: dict, samples: Samples) -> jax.Array:
    """Compute the values of all actions by the critic `q_central`, [N, S, A]."""
    return critics.read(weights["critic"], central_states(policy, weights, samples))


def head_values(policy: Policy, weights: dict, samples: Samples) -> jax.Array:
    """Compute the values of all actions and of passing, float32 [N, 1, A + 1].

    They are those of the critics by which a policy acts. Rows have one completion each.
    """
    adapters = policy.adapters(weights, samples.policy)
    before = before_answers(policy, weights["model"], samples, adapters)
    return critics.read(weights["critic"], before[:, :1])


def value_taken(of_actions: jax.Array, samples: Samples) -> jax.Array:
    """Select the values [N, S] of the actions that were taken."""
    assert samples.action is not None
    return jnp.take_along_axis(of_actions, samples.action[..., None], axis=2)[..., 0]


def mixing_states(policy: Policy, weights: dict, samples: Samples) -> jax.Array | None:
    """Return the states [N, D] that determine the mixing; None for a sum.

    Args:
        policy: The policy.
        weights: Its weights, with the critic.
        samples: One row of each of N rounds.
    """
    return None if policy.critic == "q" else central_states(policy, weights, samples)[:, 0]


def joint_values(weights: dict, states: jax.Array | None, values: jax.Array) -> jax.Array:
    """Combine the values of all seats, float32 [..., P], into those of joint actions.

    Args:
        weights: Weights of the policy, with the critic.
        states: [..., D], from `mixing_states`.
        values: Values of the seats' actions, in the order of the seats.
    """
    return jnp.sum(values, axis=-1) if states is None else critics.mix(weights["critic"], states, values)


def _score_packed(policy: Policy, weights: dict, samples: Samples, rows: packing.PackedRows):
    """Score packed rows.

    Args:
        policy: The policy.
        weights: Its weights.
        samples: [R·S, …], the samples in the slots, all of one policy.
        rows: The packed rows.

    Returns:
        Log-probabilities and entropies [R, X'], the hidden states [R, X', D] that predict the tokens, and a function
            that maps [R, X'] back to samples [R·S, X].

    Raises:
        ValueError: If samples have branches or several conversations, whose layout packing would lose.
    """
    if samples.branch is not None or samples.segment is not None:
        raise ValueError("samples have branches or several conversations per row, but packed rows must have neither")
    adapters = policy.adapters(weights, jnp.zeros((len(rows.table),), jnp.int32))
    read = _reader(policy, weights["model"], adapters)
    n, slots = rows.starts.shape
    filled = rows.filled.reshape(-1)
    sizes = jnp.where(filled, packing.sizes(samples), 0).reshape(n, slots)
    layout = Packed(rows.starts, sizes, samples.tokens.shape[1])
    there, back = layout.places(rows.room)
    in_rows = lambda x: move(x.reshape(n, -1), back, there)  # noqa: E731
    given = dict(positions=in_rows(samples.positions), layout=layout, adapters=adapters)
    if samples.media is not None:
        given |= _packed_media(policy, weights["model"], samples, in_rows, slots)
    hidden = read(in_rows(samples.tokens), **given)
    said = jnp.where(filled, packing.answer_sizes(samples), 0).reshape(n, slots)
    there, back = Packed(rows.answer_starts, said, samples.width).places(rows.answer_room)
    before = rows.starts[..., None] + samples.logits_index.reshape(n, slots, -1)
    before = move(before.reshape(n, -1), back, there)
    targets = move(samples.targets.reshape(n, -1), back, there)
    before = jnp.take_along_axis(hidden, before[..., None], axis=1)
    scored = token_logprobs(policy.model, weights["model"], before, targets, policy.temperature)
    return scored, before, lambda x: move(x, there, back).reshape(samples.targets.shape)


def _packed_media(policy: Policy, params: dict, samples: Samples, in_rows, slots: int) -> dict[str, Any]:
    """Return the arguments of `prompt_media.inputs` for packed rows, each with the media of its slots."""
    seen = _media(policy, params, samples)
    media: Media = seen["media"]
    cells = media.embeddings.shape[1]
    slot = jnp.arange(samples.n)[:, None] % slots
    index = in_rows(jnp.where(media.index < 0, 0, 1 + media.index + slot * cells)) - 1  # 0 where nothing is moved to
    held = media.embeddings.reshape(-1, slots * cells, media.embeddings.shape[2])
    if "positions" in seen:
        seen["positions"] = jax.vmap(in_rows)(seen["positions"])
    return {**seen, "media": Media(held, index)}


def _reader(policy: Policy, params: dict, adapters: lora.Lora | None):
    """Return `Model.forward` after the policy's prefix, reduced to hidden states."""
    settings = dict(dtype=policy.dtype, remat=policy.remat, unroll=policy.unroll)
    prefix = None
    if policy.prefix:
        # Each adapter computes the prefix differently.
        n = 1 if adapters is None else len(adapters.scale)
        tokens = jnp.broadcast_to(jnp.asarray(policy.prefix, jnp.int32), (n, len(policy.prefix)))
        readers = None if adapters is None else dataclasses.replace(adapters, ids=jnp.arange(n))
        # Always a loop over the layers: the prefix is one short row, and unrolling would double the compile time.
        prefix = policy.model.read_prefix(params, tokens, adapters=readers, **{**settings, "unroll": 1})
    forward = functools.partial(policy.model.forward, params, prefix=prefix, **settings)
    return lambda *args, **more: forward(*args, **more)[0]
