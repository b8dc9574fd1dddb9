"""Preference losses: pure functions of the log-ratios of two completions of one prompt.

A pair has two sides, and every loss is a sum of one term per side. `own` and `other` are the log-ratios
log π(y)/π_ref(y) of the two sides, summed or averaged over tokens, and `p` is the probability that the own side is
preferred: 1 and 0 for a known winner, ½ for a tie.

The learner divides rows, so a pair is always one row: two candidates of a prompt share one already, and `join_pairs`
puts the conversations of two episodes into one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples
from marl_jax.samples import rows as take

LABELS = ("hard", "difference", "bradley_terry")


def win_probability(own: jax.Array, other: jax.Array, labels: str) -> jax.Array:
    """Compute the probability that the own side is preferred from the rewards of both.

    Args:
        own: float32 [...], rewards of the own side.
        other: float32 [...], rewards of the other side.
        labels: "hard" prefers the higher reward. "difference" is ½ + (own - other) / 2, clipped to [0, 1], which
            returns a judge's probability if it rewards both sides with theirs. "bradley_terry" is the sigmoid of the
            difference, for scores of a reward model.
    """
    difference = own - other
    if labels == "hard":
        return 0.5 + 0.5 * jnp.sign(difference)
    if labels == "difference":
        return jnp.clip(0.5 + 0.5 * difference, 0.0, 1.0)
    if labels == "bradley_terry":
        return jax.nn.sigmoid(difference)
    raise ValueError(f"labels is {labels!r}, but must be one of: {', '.join(LABELS)}")


def dpo_loss(own: jax.Array, other: jax.Array, p: jax.Array, beta: float, label_smoothing: float = 0.0) -> jax.Array:
    """Compute -log σ(β (own - other)), weighted by the probability of this order.

    With values instead of log-ratios and β = 1, this is the Bradley–Terry loss of a reward model.

    Args:
        own: float32 [...].
        other: float32 [...].
        p: float32 [...].
        beta: Strength of the pull to the reference.
        label_smoothing: Probability that a label is wrong.
    """
    p = p * (1.0 - label_smoothing) + (1.0 - p) * label_smoothing
    return -p * jax.nn.log_sigmoid(beta * (own - other))


def ipo_loss(own: jax.Array, other: jax.Array, p: jax.Array, tau: float) -> jax.Array:
    """Compute (own - other - 1/(2τ))², weighted by the probability of this order."""
    return p * jnp.square(own - other - 0.5 / tau)


def sppo_loss(own: jax.Array, p: jax.Array, beta: float) -> jax.Array:
    """Compute (own - (p - ½)/β)²; the reference is the policy before the update.

    With p = 1 and p = 0, both sides sum to the hard form (w - 1 / (2β))² + (l + 1 / (2β))².
    """
    return jnp.square(own - (p - 0.5) / beta)


def nash_md_loss(logps: jax.Array, own: jax.Array, advantage: jax.Array, tau: float) -> jax.Array:
    """Compute -log π(y) (advantage - τ own), whose gradient is that of Nash-MD-PG.

    Args:
        logps: float32 [...], log-probabilities of completions that the policy sampled.
        own: float32 [...], their log-ratios to the reference.
        advantage: float32 [...], p - ½ against the mixture, see `mixture_weights`.
        tau: Weight of the KL divergence from the reference.
    """
    return -logps * jax.lax.stop_gradient(advantage - tau * own)


def mixture_weights(log_ratios: jax.Array, counts: jax.Array, mixture: float) -> jax.Array:
    """Weigh completions of the policy as if the mixture π^(1-m) π_ref^m had sampled them.

    The weights (π_ref/π)^m are exact up to the normalization of the mixture, one factor per prompt. They are divided by
    their mean over all prompts.

    Args:
        log_ratios: float32 [...], log π(y)/π_ref(y) of whole completions.
        counts: bool [...], the completions that exist.
        mixture: Share of the reference, m; 0 weighs all completions by 1.
    """
    weights = jnp.where(counts, jnp.exp(-mixture * log_ratios), 0.0)
    return weights * jnp.sum(counts) / jnp.maximum(jnp.sum(weights), 1e-8)


class Sides(NamedTuple):
    """The sides of pairs within rows.

    Attributes:
        own: bool [N, S, S], completions of the same side: same group and same member, such as the turns of an episode.
        other: bool [N, S, S], completions of the other side of the pair.
        first: bool [N, S], the first completion of each side whose other side exists.
    """

    own: jax.Array
    other: jax.Array
    first: jax.Array

    @classmethod
    def of(cls, samples: Samples) -> Sides:
        """Find the sides of the pairs of each row."""
        exists = samples.recorded()
        both = exists[:, :, None] & exists[:, None] & (samples.group[:, :, None] == samples.group[:, None])
        same = samples.member[:, :, None] == samples.member[:, None]
        own, other = both & same, both & ~same
        earlier = jnp.tril(jnp.ones(own.shape[1:], bool), -1)
        return cls(own, other, exists & ~jnp.any(own & earlier, axis=2) & jnp.any(other, axis=2))

    def sums(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sum values [N, S] over the own and the other side of each completion."""
        own, other = (jnp.sum(jnp.where(side, x[:, None], 0.0), axis=2) for side in (self.own, self.other))
        return own, other


def join_pairs(samples: Samples) -> Samples:
    """Join the two rows of each pair into one row with two segments, [N/2, …].

    A pair is two rows of the same group, seat and policy with the members 0 and 1. Other rows, for example those of an
    episode whose partner failed, get weight 0.
    """
    if samples.n % 2 or samples.segment is not None:
        raise ValueError(f"there are {samples.n} rows, but pairs need an even number of rows of one conversation each")
    group, seat, member = samples.group[:, 0], samples.seat[:, 0], samples.member[:, 0]
    exists = samples.completion_lengths[:, 0] > 0
    table = jnp.zeros((samples.n_groups, samples.n_seats, 3), jnp.int32)
    table = table.at[group, seat].add(jnp.stack([exists, member * exists, samples.policy * exists], axis=1))
    count, members, policies = jnp.moveaxis(table[group, seat], 1, 0)
    paired = exists & (count == 2) & (members == 1) & (policies == 2 * samples.policy)
    samples = samples.replace(loss_weights=samples.loss_weights * paired[:, None])
    order = jnp.lexsort((member, seat, group, ~paired))
    first, second = take(samples, order[::2]), take(samples, order[1::2])
    tokens, answers = samples.tokens.shape[1], samples.n_completions
    inside = [jnp.arange(tokens) < x.lengths[:, None] for x in (first, second)]
    after = lambda x: jnp.where(x >= 0, x + answers, x)  # noqa: E731
    second = second.replace(
        completion_of=after(second.completion_of),
        logits_index=second.logits_index + tokens,
        branch=None if second.branch is None else after(second.branch),
    )
    joined = jax.tree.map(lambda a, b: a if a.ndim == 1 else jnp.concatenate([a, b], axis=1), first, second)
    segment = jnp.concatenate([jnp.where(inside[0], 0, -1), jnp.where(inside[1], 1, -1)], axis=1)
    return joined.replace(
        segment=segment.astype(jnp.int32), lengths=jnp.full_like(joined.lengths, 2 * tokens), prompt_len=None,
        branch_len=0, longest=samples.max_new,
    )  # fmt: skip
