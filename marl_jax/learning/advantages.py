"""Advantages: GAE over the turns of a seat or the tokens of a completion.

A row of a rollout plays one game after another, and the turns of one seat in a game form a stream. A reward that
arrives during another seat's turn is credited to the seat's last turn before it: the loser, who never makes the last
move, would otherwise see no reward.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.agents.policy import Policy
from marl_jax.learning.settings import LearnerSettings
from marl_jax.samples import Samples


class Credit(NamedTuple):
    """Result of `gae`, each [R, B].

    Attributes:
        advantages: float32.
        returns: float32.
        known: bool, whether the outcome of the turn is known.
    """

    advantages: jax.Array
    returns: jax.Array
    known: jax.Array


def gae(
    rewards: jax.Array,
    values: jax.Array,
    players: jax.Array,
    ends: jax.Array,
    gamma: float,
    lam: float,
    tail: int = 0,
) -> Credit:
    """Compute generalized advantage estimates over the turns of each seat, in one reverse scan.

    A seat's stream may still be open at the end: its next turn is not part of the rollout. The last turn of such a
    stream has no advantage and is not `known`; its value bootstraps the seat's earlier turns. If the tail has as many
    turns as there are players, every seat of a game with alternating moves acts once more, and no turn is lost.

    Args:
        rewards: float32 [R, B, P], reward of every seat at each turn.
        values: float32 [R, B], value of the mover before its move.
        players: int32 [R, B], the mover.
        ends: bool [R, B], whether the game ended with the turn. The next turn belongs to another game.
        gamma: Discount factor.
        lam: GAE parameter λ.
        tail: Number of final turns that were played as lookahead only. They bootstrap earlier turns and get no
            advantage.
    """
    turns, batch, n_players = rewards.shape
    seats = jnp.arange(n_players)

    def step(carry, turn):
        next_value, next_advantage, collected, known = carry
        reward, value, player, end, looks_ahead = turn
        end = end[:, None]
        next_value = jnp.where(end, 0.0, next_value)
        next_advantage = jnp.where(end, 0.0, next_advantage)
        collected = jnp.where(end, 0.0, collected) + reward
        known = known | end

        mover = seats == player[:, None]
        of_mover = lambda x: jnp.sum(jnp.where(mover, x, 0), axis=1)  # noqa: E731
        is_known = jnp.any(mover & known, axis=1) & ~looks_ahead
        delta = of_mover(collected) + gamma * of_mover(next_value) - value
        advantage = jnp.where(is_known, delta + gamma * lam * of_mover(next_advantage), 0.0)

        next_value = jnp.where(mover, value[:, None], next_value)
        next_advantage = jnp.where(mover, advantage[:, None], next_advantage)
        collected = jnp.where(mover, 0.0, collected)
        return (next_value, next_advantage, collected, known | mover), (advantage, is_known)

    zeros = jnp.zeros((batch, n_players), jnp.float32)
    start = (zeros, zeros, zeros, jnp.zeros((batch, n_players), bool))
    looks_ahead = jnp.arange(turns) >= turns - tail
    _, (advantages, known) = jax.lax.scan(step, start, (rewards, values, players, ends, looks_ahead), reverse=True)
    return Credit(advantages, advantages + values, known)


def token_gae(
    samples: Samples,
    advantages: jax.Array,
    turn_values: jax.Array,
    gamma: float,
    lam: float,
    token_rewards: jax.Array | float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Compute GAE over the tokens of each completion, for long completions.

    The outcome of a completion is `advantages + turn_values` without the rewards of single tokens, and it is credited
    to the last token. The scan runs backwards over the critic's values before each token.

    Args:
        samples: The samples, with values [N, X].
        advantages: float32 [N, S], advantages of the completions.
        turn_values: float32 [N, S], values before the completions.
        gamma: Discount factor.
        lam: GAE parameter λ.
        token_rewards: float32 [N, X], the part of the rewards that belongs to single tokens.

    Returns:
        Advantages and returns, both float32 [N, X].
    """
    mask = samples.mask()
    rewarded = token_rewards * mask
    outcome = samples.to_tokens(advantages + turn_values - samples.to_completions(rewarded))

    def step(carry, token):
        next_value, next_advantage = carry
        value, last, inside, outcome, rewarded = token
        target = rewarded + jnp.where(last, outcome, gamma * next_value)
        advantage = (target - value + gamma * lam * jnp.where(last, 0.0, next_advantage)) * inside
        return (value, advantage), advantage

    zeros = jnp.zeros((samples.n,))
    tokens = (samples.values.T, samples.last().T > 0, mask.T, outcome.T, rewarded.T)
    _, result = jax.lax.scan(step, (zeros, zeros), tokens, reverse=True)
    return result.T, result.T + samples.values * mask


def whiten(advantages: jax.Array, label: jax.Array, weights: jax.Array, n_labels: int, eps: float = 1e-6) -> jax.Array:
    """Normalize advantages to zero mean and unit standard deviation per label.

    The three arrays have one shape. Entries with weight 0 do not affect the statistics, but are normalized too.

    Args:
        advantages: float32.
        label: int32, the label of each entry.
        weights: float32, the weight of each entry in mean and variance.
        n_labels: Number of labels.
        eps: Added to the standard deviation.
    """
    own = jax.nn.one_hot(label, n_labels, dtype=jnp.float32)  # [..., labels]
    over = tuple(range(advantages.ndim))
    total = lambda x: jnp.sum(own * (x * weights)[..., None], axis=over)  # noqa: E731
    count = jnp.maximum(total(jnp.ones_like(advantages)), 1.0)
    mean = (total(advantages) / count)[label]
    variance = (total(jnp.square(advantages - mean)) / count)[label]
    return (advantages - mean) / (jnp.sqrt(variance) + eps)


def handle_overlong(policy: Policy, samples: Samples, algo: LearnerSettings) -> tuple[Samples, dict[str, jax.Array]]:
    """Handle overlong completions as `algo.overlong` specifies.

    A truncated completion gets the full penalty, whichever limit cut it off.

    Returns:
        The samples, and as a metric the share of completions that were truncated.
    """
    cut, counts = samples.truncated, samples.loss_weights > 0
    share = jnp.sum(cut & counts) / jnp.maximum(jnp.sum(counts), 1)
    kind = algo.overlong
    if kind == "mask":
        samples = samples.replace(loss_weights=samples.loss_weights * ~cut)
    elif kind == "penalty":
        price = overlong_penalty(samples.completion_lengths, policy.width, algo.overlong_buffer)
        price = jnp.where(cut, -1.0, price) * (samples.policy >= 0)[:, None]
        own = jax.nn.one_hot(samples.seat, samples.n_seats)
        samples = samples.replace(rewards=samples.rewards + price[..., None] * own)
    return samples, {"truncated_completions": share}


def overlong_penalty(lengths: jax.Array, longest: int, buffer: int) -> jax.Array:
    """Return 0 up to `longest - buffer` tokens, decreasing linearly to -1 at `longest`."""
    return -jnp.clip((lengths - (longest - buffer)) / buffer, 0.0, 1.0)
