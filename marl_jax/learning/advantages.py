"""Who gets which reward, and what an answer was worth: GAE over each agent's own turns, whitening.

Rows of a rollout play game after game; in each game, the turns of one seat form a stream. A reward that arrives while
someone else moves belongs to the seat's last own turn before it: otherwise the loser, who never makes the last move,
would hear nothing of the loss.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.agents.policy import Policy
from marl_jax.learning.settings import LearnerSettings
from marl_jax.samples import Samples


class Credit(NamedTuple):
    """What the scan found, each [R, B]: advantage, return, and whether the outcome of the turn is known (bool)."""

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
    """Generalised advantage estimation over each seat's own turns, by one reverse scan.

    rewards  float32 [R, B, P]  what turn t paid to every seat
    values   float32 [R, B]     of the mover, before it moved
    players  int32 [R, B]       the mover
    ends     bool [R, B]        the game ended with turn t; the next turn is another game's
    tail     so many last turns were played only to look ahead: their values and rewards close the streams of the
             turns before, and they get no advantage themselves

    A seat's stream may still be open at the cut: its next decision is not among the turns. Such a turn has no
    advantage; it is not `known`, and it serves the seat's earlier turns as their bootstrap. With a tail as long as
    the players are many, every seat of a game with alternating moves decides once more, and nothing is lost.
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
        mine = lambda x: jnp.sum(jnp.where(mover, x, 0), axis=1)  # noqa: E731
        is_known = jnp.any(mover & known, axis=1) & ~looks_ahead
        delta = mine(collected) + gamma * mine(next_value) - value
        advantage = jnp.where(is_known, delta + gamma * lam * mine(next_advantage), 0.0)

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
    """GAE over the tokens inside each answer, for long ones -> advantages and returns [N, X].

    token_rewards  [N, X], the part of the answers' rewards that belongs to single tokens

    The answer's outcome, `advantages + turn_values` [N, S] less what its tokens were paid one by one, is what its last
    token leads to; from there the scan walks back over the critic's values [N, X] before each token.
    """
    mask = samples.mask()
    paid = token_rewards * mask
    outcome = samples.to_tokens(advantages + turn_values - samples.to_completions(paid))
    after = jnp.pad(samples.completion_of[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    is_last = (samples.completion_of >= 0) & (samples.completion_of != after)

    def step(carry, token):
        next_value, next_advantage = carry
        value, last, inside, outcome, paid = token
        target = paid + jnp.where(last, outcome, gamma * next_value)
        advantage = (target - value + gamma * lam * jnp.where(last, 0.0, next_advantage)) * inside
        return (value, advantage), advantage

    zeros = jnp.zeros((samples.n,))
    tokens = (samples.values.T, is_last.T, mask.T, outcome.T, paid.T)
    _, result = jax.lax.scan(step, (zeros, zeros), tokens, reverse=True)
    return result.T, result.T + samples.values * mask


def whiten(advantages: jax.Array, label: jax.Array, weights: jax.Array, n_labels: int, eps: float = 1e-6) -> jax.Array:
    """Zero mean and unit deviation over the entries of each label that count; others are scaled alike.

    advantages, label int32 and weights: of one shape
    """
    own = jax.nn.one_hot(label, n_labels, dtype=jnp.float32)  # [..., labels]
    over = tuple(range(advantages.ndim))
    total = lambda x: jnp.sum(own * (x * weights)[..., None], axis=over)  # noqa: E731
    count = jnp.maximum(total(jnp.ones_like(advantages)), 1.0)
    mean = (total(advantages) / count)[label]
    variance = (total(jnp.square(advantages - mean)) / count)[label]
    return (advantages - mean) / (jnp.sqrt(variance) + eps)


def handle_overlong(policy: Policy, samples: Samples, algo: LearnerSettings) -> tuple[Samples, dict[str, jax.Array]]:
    """Samples with over-long answers handled as `algo.overlong` says, and the share of answers that were cut."""
    cut = policy.answers.truncated(samples)
    counts = samples.loss_weights > 0
    share = jnp.sum(cut & counts) / jnp.maximum(jnp.sum(counts), 1)
    kind = algo.overlong
    if kind == "mask":
        samples = samples.replace(loss_weights=samples.loss_weights * ~cut)
    elif kind == "penalty":
        price = overlong_penalty(samples.completion_lengths, policy.width, algo.overlong_buffer)
        price = price * (samples.policy >= 0)[:, None]
        own = jax.nn.one_hot(samples.seat, samples.n_seats)
        samples = samples.replace(rewards=samples.rewards + price[..., None] * own)
    return samples, {"truncated_completions": share}


def overlong_penalty(lengths: jax.Array, longest: int, buffer: int) -> jax.Array:
    """float32 [...]: 0 up to `longest - buffer` tokens, then falling to -1 at `longest`."""
    return -jnp.clip((lengths - (longest - buffer)) / buffer, 0.0, 1.0)
