"""Losses: pure functions of samples and log-probabilities [N, X] of their answer tokens.

A loss per token is summed with `token_weights`, which hold the mean (over tokens, over sequences, over a constant
length). They are computed once for a whole minibatch, so that parts of it, accumulated, give the same gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples


class PolicyLoss(NamedTuple):
    """Per token [N, X]: the loss, the ratio, and whether it was clipped from below or above (0 or 1)."""

    loss: jax.Array
    ratio: jax.Array
    clip_frac_low: jax.Array
    clip_frac_high: jax.Array


def token_weights(samples: Samples, kind: str, length: int = 1, mask: jax.Array | None = None) -> jax.Array:
    """[N, X]: how much each token counts in the sum that is the loss, by the loss weights of its answer.

    kind    "token": the mean over all tokens; "sequence": the mean over answers of their means;
            "constant": the mean over answers of their sums, divided by `length`
    mask    float32 [N, X], the tokens that count; None: all of answers
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
    raise ValueError(f"loss_agg is {kind!r}, but must be 'token', 'sequence', 'constant'")


def log_ratio(samples: Samples, logps: jax.Array, old_logps: jax.Array, kind: str) -> jax.Array:
    """log of new over old probability [N, X]: per token, or of each answer on all its tokens.

    "sequence" is the mean over the answer's tokens (GSPO), "product" the sum: the ratio of whole answers (RLOO).
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
    raise ValueError(f"ratio is {kind!r}, but must be 'token', 'sequence', 'product'")


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
    """PPO's clipped loss per token.

    clip_low, clip_high  the ratio may fall to 1 - clip_low and rise to 1 + clip_high
    dual_clip            for negative advantages, the loss is at most dual_clip · |advantage|; 0 is off
    correction           [N, X], truncated importance weights of stale samples
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
      logps, old_logps: float32 [N, X].
      kind: "probability" masks tokens whose probability has changed by more than `limit`. "sequence" masks completions
        with a negative advantage whose mean KL(old ‖ new) per token exceeds `limit`.

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
        raise ValueError(f"ratio_mask is {kind!r}, but must be one of: probability, sequence.")
    return jax.lax.stop_gradient(kept.astype(jnp.float32))


def truncated_importance(old_logps: jax.Array, behaviour_logps: jax.Array, limit: float) -> jax.Array:
    """min(learner / sampler, limit) per token: how much a sample counts that another policy drew."""
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(old_logps - behaviour_logps), limit))


def kl(logps: jax.Array, ref_logps: jax.Array, kind: str) -> jax.Array:
    """An estimate per token of KL(policy ‖ reference) from a token the policy drew.

    k1 = log p/q (unbiased, may be negative); k2 = ½ (log p/q)²; k3 = q/p - 1 - log q/p (unbiased, never negative)
    """
    difference = logps - ref_logps
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * jnp.square(difference)
    if kind == "k3":
        return jnp.exp(-difference) - 1.0 + difference
    raise ValueError(f"KL estimate is {kind!r}, but must be 'k1', 'k2', 'k3'")


def value_loss(values: jax.Array, old_values: jax.Array, returns: jax.Array, clip: float = 0.0) -> jax.Array:
    """½ (value - return)² per entry; with `clip`, a move away from the old value beyond it earns nothing."""
    loss = jnp.square(values - returns)
    if clip:
        near = old_values + jnp.clip(values - old_values, -clip, clip)
        loss = jnp.maximum(loss, jnp.square(near - returns))
    return 0.5 * loss


def explained_variance(values: jax.Array, returns: jax.Array, weights: jax.Array) -> jax.Array:
    """1 - Var(return - value) / Var(return) over entries that count: 1 is a perfect critic, 0 a constant one."""
    count = jnp.maximum(jnp.sum(weights), 1e-8)

    def variance(x):
        mean = jnp.sum(weights * x) / count
        return jnp.sum(weights * jnp.square(x - mean)) / count

    return 1.0 - variance(returns - values) / jnp.maximum(variance(returns), 1e-8)
