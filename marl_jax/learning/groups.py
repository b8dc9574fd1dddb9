"""Advantages within groups: what a sample earned against others that began alike.

Axis letters: K samples of a group, the last axis of every array here.

A group may have fewer than K members (an episode that had no time to begin); `members` marks those it has. A group
whose members all earned the same says nothing about which of them to prefer: its advantages are zero, and it does not
count as telling.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.samples import Samples

Array = TypeVar("Array", jax.Array, np.ndarray)

EPS = 1e-6
EQUAL = 1e-6  # rewards this close are one reward: sums in another order differ in their last bits
EQUAL_RELATIVE = 1e-5  # the same, as a share of the largest: float32 keeps 7 digits, a sum of 100 terms may lose 2


class Groups(NamedTuple):
    """Advantages float32 [..., K]; which groups are telling, bool [...]: two members or more, not all paid alike."""

    advantages: jax.Array
    informative: jax.Array


def advantages(
    rewards: jax.Array,
    members: jax.Array | None = None,
    *,
    baseline: str = "mean",
    std: bool = True,
    normalize: str = "group",
    ddof: int = 0,
    agents: jax.Array | None = None,
    n_agents: int = 1,
) -> Groups:
    """GRPO and its relatives.

    rewards    float32 [..., K]
    members    bool [..., K]; None: all
    baseline   "mean" of the group, or "leave_one_out": the mean of the others (RLOO)
    std        divide by the standard deviation; without it, Dr.GRPO
    normalise  "group": that of each group; "agent": one for all groups of an agent (Dr. MAS), so
               that an agent whose rewards are small learns as fast as the others, and a nearly equal group is not
               blown up; "batch": one for all informative groups of the batch (ScaleRL, Magistral), so that one failure
               among seven successes does not weigh more than four among eight
    ddof       0: the variance of a group is divided by its K members; 1: by K - 1
    agents     int32 [...], whose group it is; needed for "agent", with their number `n_agents`
    """
    members = jnp.ones(rewards.shape, bool) if members is None else members
    informative = differ(rewards, members)
    counted = members & informative[..., None]
    result = centred(rewards, members, baseline)
    if std and normalize == "group":
        result = result / (group_std(rewards, members, ddof) + EPS)[..., None]
    elif std:
        if normalize == "batch":
            agents, n_agents = jnp.zeros(rewards.shape[:-1], jnp.int32), 1
        assert agents is not None
        result = result / (agent_std(rewards, counted, agents, n_agents, ddof)[agents] + EPS)[..., None]
    # Last, so that a group with a reward that is not finite costs only itself.
    return Groups(jnp.where(counted, result, 0.0), informative)


def differ(rewards: Array, members: Array) -> Array:
    """Mark the groups that have at least two members and not all with the same reward, bool [...].

    The arrays are both JAX's or both NumPy's.
    """
    xp = rewards.__array_namespace__()
    high = xp.max(xp.where(members, rewards, -xp.inf), axis=-1)
    low = xp.min(xp.where(members, rewards, xp.inf), axis=-1)
    largest = xp.max(xp.where(members, xp.abs(rewards), 0.0), axis=-1)
    return high - low > xp.maximum(EQUAL, EQUAL_RELATIVE * largest)  # of an empty group the left side is -inf


def informative_answers(samples: Samples, whole_episodes: bool) -> jax.Array:
    """Mark the answers that contribute to the loss and whose group is informative for their seat, bool [N, S].

    Rewards are those that the rollout recorded, before an update adds a penalty for long answers or a KL.

    Args:
      whole_episodes: members of a group are the episodes that have ended (GRPO); otherwise they are answers (AT-GRPO).
    """
    place, size = (samples.group, samples.member), (samples.n_groups, samples.group_size)
    returns = jnp.zeros((*size, samples.n_seats)).at[place].add(samples.rewards)
    members = jnp.zeros(size, bool).at[place].max(samples.ends if whole_episodes else samples.completion_lengths > 0)
    informative = differ(jnp.moveaxis(returns, -1, 1), members[:, None])  # [G, P]
    return informative[samples.group, samples.seat] & (samples.loss_weights > 0)


def centred(rewards: jax.Array, members: jax.Array, baseline: str) -> jax.Array:
    """Rewards less their baseline, [..., K]; what is no member's means nothing."""
    count = jnp.sum(members, axis=-1, keepdims=True)
    result = rewards - _mean(rewards, members)[..., None]
    if baseline == "mean":
        return result
    if baseline == "leave_one_out":
        # r - (S - r) / (K - 1) = (r - S / K) · K / (K - 1)
        return result * count / jnp.maximum(count - 1, 1)
    raise ValueError(f"baseline is {baseline!r}, but must be 'mean', 'leave_one_out'")


def group_std(rewards: jax.Array, members: jax.Array, ddof: int = 0) -> jax.Array:
    """Standard deviation of each group, [...]; its squares are divided by the number of members less `ddof`."""
    squares = jnp.sum(_squares(rewards, members), axis=-1)
    return jnp.sqrt(squares / jnp.maximum(jnp.sum(members, axis=-1) - ddof, 1))


def agent_std(rewards: jax.Array, counted: jax.Array, agents: jax.Array, n_agents: int, ddof: int = 0) -> jax.Array:
    """float32 [n_agents]: the deviation from the means of their groups, over all counted samples of each agent."""
    own = jax.nn.one_hot(agents, n_agents)  # [..., n_agents]
    over = tuple(range(agents.ndim))
    total = jnp.sum(own * jnp.sum(_squares(rewards, counted), axis=-1)[..., None], axis=over)
    count = jnp.sum(own * jnp.maximum(jnp.sum(counted, axis=-1) - ddof, 0)[..., None], axis=over)
    return jnp.sqrt(total / jnp.maximum(count, 1.0))


def _squares(rewards: jax.Array, members: jax.Array) -> jax.Array:
    """Squared distances from the mean of the group, 0 for what is no member."""
    return jnp.where(members, jnp.square(rewards - _mean(rewards, members)[..., None]), 0.0)


def _mean(x: jax.Array, members: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(members, x, 0.0), axis=-1) / jnp.maximum(jnp.sum(members, axis=-1), 1)
