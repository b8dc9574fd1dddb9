"""Rounds: the turns of all seats that form one joint action.

In a simultaneous game, a round consists of one turn of every seat. Otherwise one seat moves and the others pass, and
`rollouts/joint.py` records rows for the seats that pass. In both cases `Samples.completion_at` has the shape [K·P, B]:
K rounds of P seats in B games. The last round is a lookahead.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples


def by_round(samples: Samples, x: jax.Array) -> jax.Array:
    """Reorder values [N, 1, …] by round, seat and game: [K, P, B, …]."""
    x = samples.in_time(x)
    return x.reshape(-1, samples.n_seats, *x.shape[1:])


def from_rounds(samples: Samples, x: jax.Array) -> jax.Array:
    """Scatter values [K, B] of rounds to the rows of all their seats: [N, 1]."""
    each = jnp.broadcast_to(x[:, None], (len(x), samples.n_seats, x.shape[-1]))
    return samples.from_time(each.reshape(-1, x.shape[-1]))


def grouped(samples: Samples) -> Samples:
    """Return the samples with a group for every round, so that its rows stay together."""
    assert samples.completion_at is not None
    turns, games = samples.completion_at.shape
    n = turns // samples.n_seats * games
    number = from_rounds(samples, jnp.arange(n, dtype=jnp.int32).reshape(-1, games))
    return samples.replace(group=number, member=samples.seat, n_groups=n, group_size=samples.n_seats)


def others(samples: Samples) -> jax.Array:
    """Return the other seats' actions of each row's round, int32 [N, P - 1].

    They are in the order of the seats after the row's seat.
    """
    assert samples.action is not None and samples.completion_at is not None
    actions = by_round(samples, samples.action)  # [K, P, B]
    turns, games = samples.completion_at.shape

    def scattered(shift: int) -> jax.Array:
        return samples.from_time(jnp.roll(actions, -shift, axis=1).reshape(turns, games))[:, 0]

    return jnp.stack([scattered(shift) for shift in range(1, samples.n_seats)], axis=1)


def lambda_targets(rewards: jax.Array, ends: jax.Array, best: jax.Array, gamma: float, lam: float) -> jax.Array:
    """Compute targets of joint values.

    y = r + γ((1 − λ) best' + λ y'), where a prime marks the next round.

    Args:
        rewards: float32 [K, B], rewards of the rounds.
        ends: bool [K, B], whether the game ended with the round.
        best: float32 [K, B], value of the best joint action in the round.
        gamma: Discount factor per round.
        lam: Weight λ of the next target against the next best value.

    Returns:
        float32 [K, B]. The last round has no target, but its best value.
    """

    def step(carry, turn):
        best_next, target_next = carry
        reward, end, best = turn
        target = reward + gamma * jnp.where(end, 0.0, (1 - lam) * best_next + lam * target_next)
        return (best, target), target

    turns = (rewards[:-1], ends[:-1], best[:-1])
    _, targets = jax.lax.scan(step, (best[-1], best[-1]), turns, reverse=True)
    return jnp.concatenate([targets, best[-1:]])
