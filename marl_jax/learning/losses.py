"""Losses: pure functions of samples and the log-probabilities [N, X] of their completion tokens.

A loss per token is summed with `token_weights`, which contain the normalization (over tokens, over sequences, or by a
constant length). The weights are computed once for a full minibatch, so that accumulating over its parts gives the same
gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples


class PolicyLoss(NamedTuple):
    """Policy loss per token, each [N, X].

    Attributes:
        loss: The loss.
        ratio: The probability ratio.
        clip_frac_low: 1 where the ratio was clipped from below, else 0.
        clip_frac_high: 1 where the ratio was clipped from above, else 0.
    """

    loss: jax.Array
    ratio: jax.Array
    clip_frac_low: jax.Array
    clip_frac_high: jax.Array


def token_weights(samples: Samples, kind: str, length: int = 1, mask: jax.Array | None = None) -> jax.Array:
    """Compute the weight of each token in the loss, [N, X].

    Args:
        samples: The samples.
        kind: "token" is the mean over all tokens, "sequence" the mean over completions of their token means, and
            "constant" the mean over completions of their token sums divided by `length`.
        length: Divisor for "constant".
        mask: float32 [N, X], the tokens that count; None for all completion tokens.
    """
    mask = samples.mask() if mask is None else mask
    weighted = mask * samples.to_tokens(samples.loss_weights)
    if kind == "token":
        return weighted / jnp.maximum(jnp.sum(weighted), 1e-8)
    counts = samples.to_completions(mask)
    answers = jnp.maximum(jnp.sum(samples.loss_weights * (counts > 0)), 1e-8)
    if kind == "sequence":
        return weighted / jnp.maximum(samples.to_tokens(counts), 1.0) / answers
    if kind == "constant":
        return weighted / length / answers
    raise ValueError(f"loss_agg is {kind!r}, but must be one of: token, sequence, constant")


def log_ratio(samples: Samples, logps: jax.Array, old_logps: jax.Array, kind: str) -> jax.Array:
    """Compute the log of the new over the old probability, [N, X].

    Args:
        samples: The samples.
        logps: float32 [N, X], new log-probabilities.
        old_logps: float32 [N, X], old log-probabilities.
        kind: "token" is the ratio of each token. "sequence" is the mean over the completion's tokens (GSPO) and
            "product" their sum (RLOO), each on all tokens of the completion.
    """
    mask = samples.mask()
    difference = (logps - old_logps) * mask
    if kind == "token":
        return difference
    if kind == "sequence":
        mean = samples.to_completions(difference) / jnp.maximum(samples.completion_lengths, 1.0)
        return samples.to_tokens(mean) * mask
    if kind == "product":
        return samples.to_tokens(samples.to_completions(difference)) * mask
    raise ValueError(f"ratio is {kind!r}, but must be one of: token, sequence, product")


def policy_loss(
    samples: Samples,
    logps: jax.Array,
    old_logps: jax.Array,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
    ratio: str = "token",
    correction: jax.Array | float = 1.0,
) -> PolicyLoss:
    """Compute PPO's clipped loss per token.

    Args:
        samples: The samples, with advantages.
        logps: float32 [N, X], new log-probabilities.
        old_logps: float32 [N, X], old log-probabilities.
        clip_low: The ratio is clipped at 1 - clip_low from below.
        clip_high: The ratio is clipped at 1 + clip_high from above.
        dual_clip: Bounds the loss by dual_clip · |advantage| for negative advantages; 0 is off.
        ratio: Kind of ratio, see `log_ratio`.
        correction: float32 [N, X], truncated importance weights of stale samples.
    """
    advantages = samples.advantages
    r = jnp.exp(log_ratio(samples, logps, old_logps, ratio))
    clipped = jnp.clip(r, 1.0 - clip_low, 1.0 + clip_high)
    loss = jnp.maximum(-advantages * r, -advantages * clipped)
    if dual_clip:
        loss = jnp.where(advantages < 0, jnp.minimum(loss, -dual_clip * advantages), loss)
    low = (r < 1.0 - clip_low) & (advantages < 0)
    high = (r > 1.0 + clip_high) & (advantages > 0)
    return PolicyLoss(loss * correction, r, low.astype(jnp.float32), high.astype(jnp.float32))


def ratio_mask(samples: Samples, logps: jax.Array, old_logps: jax.Array, kind: str, limit: float) -> jax.Array:
    """Mask tokens that an update has moved too far from the policy that sampled them.

    Args:
        samples: The samples.
        logps: float32 [N, X], new log-probabilities.
        old_logps: float32 [N, X], old log-probabilities.
        kind: "probability" masks tokens whose probability has changed by more than `limit`. "sequence" masks
            completions with a negative advantage whose mean KL(old ‖ new) per token exceeds `limit`.
        limit: The threshold.

    Returns:
        float32 [N, X], 0 where a token contributes no gradient.
    """
    if kind == "probability":
        kept = jnp.abs(jnp.exp(logps) - jnp.exp(old_logps)) <= limit
    elif kind == "sequence":
        mean_kl = samples.to_completions(kl(old_logps, logps, "k3") * samples.mask())
        mean_kl = samples.to_tokens(mean_kl / jnp.maximum(samples.completion_lengths, 1.0))
        kept = (samples.advantages >= 0) | (mean_kl <= limit)
    else:
        raise ValueError(f"ratio_mask is {kind!r}, but must be one of: probability, sequence")
    return jax.lax.stop_gradient(kept.astype(jnp.float32))


def truncated_importance(old_logps: jax.Array, behaviour_logps: jax.Array, limit: float) -> jax.Array:
    """Compute min(learner / sampler, limit) per token, the importance weight of off-policy samples."""
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(old_logps - behaviour_logps), limit))


def kl(logps: jax.Array, ref_logps: jax.Array, kind: str) -> jax.Array:
    """Estimate KL(policy ‖ reference) per token from tokens sampled by the policy.

    With p the policy and q the reference, k1 = log p/q is unbiased but may be negative, k2 = ½ (log p/q)² is biased,
    and k3 = q/p - 1 - log q/p is unbiased and never negative.
    """
    difference = logps - ref_logps
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * jnp.square(difference)
    if kind == "k3":
        return jnp.exp(-difference) - 1.0 + difference
    raise ValueError(f"the KL estimator is {kind!r}, but must be one of: k1, k2, k3")


def value_loss(values: jax.Array, old_values: jax.Array, returns: jax.Array, clip: float = 0.0) -> jax.Array:
    """Compute ½ (value - return)² per entry.

    With `clip`, moving further than `clip` from the old value does not lower the loss.
    """
    loss = jnp.square(values - returns)
    if clip:
        near = old_values + jnp.clip(values - old_values, -clip, clip)
        loss = jnp.maximum(loss, jnp.square(near - returns))
    return 0.5 * loss


def explained_variance(values: jax.Array, returns: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute 1 - Var(return - value) / Var(return) over weighted entries.

    The result is 1 for a perfect critic and 0 for a constant one.
    """
    count = jnp.maximum(jnp.sum(weights), 1e-8)

    def variance(x):
        mean = jnp.sum(weights * x) / count
        return jnp.sum(weights * jnp.square(x - mean)) / count

    return 1.0 - variance(returns - values) / jnp.maximum(variance(returns), 1e-8)
