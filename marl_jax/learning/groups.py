"""Group-relative advantages: the reward of a sample compared with others of the same prompt.

K, the samples of a group, is the last axis of all arrays. A group may have fewer than K members, for example if an
episode had no time to start; `members` marks the existing ones. If all members have the same reward, the group is not
informative: its advantages are zero.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.samples import Samples

Array = TypeVar("Array", jax.Array, np.ndarray)

EPS = 1e-6
EQUAL = 1e-6  # absolute tolerance for equal rewards, since sums in another order differ in their last bits
EQUAL_RELATIVE = 1e-5  # the same relative to the largest reward; a float32 sum of 100 terms may lose 2 of 7 digits


class Groups(NamedTuple):
    """Group-relative advantages.

    Attributes:
        advantages: float32 [..., K].
        informative: bool [...], groups of at least two members with different rewards.
    """

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
    """Compute the advantages of GRPO, RLOO, Dr. GRPO and related algorithms.

    Args:
        rewards: float32 [..., K].
        members: bool [..., K], the existing members; None for all.
        baseline: "mean" of the group, or "leave_one_out" for the mean of the other members (RLOO).
        std: Whether to divide by the standard deviation. Dr. GRPO does not.
        normalize: Scope of the standard deviation. "group" uses that of each group. "agent" uses one per agent (Dr.
            MAS), so that agents with small rewards learn as fast as others and nearly equal groups are not amplified.
            "batch" uses one over all informative groups (ScaleRL, Magistral), so that one failure among seven successes
            does not weigh more than four among eight.
        ddof: 0 divides the variance of a group by K, 1 by K - 1.
        agents: int32 [...], the agent of each group. Required for "agent".
        n_agents: Number of agents.
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
    # Masked last, so that a reward that is not finite affects only its own group.
    return Groups(jnp.where(counted, result, 0.0), informative)


def differ(rewards: Array, members: Array) -> Array:
    """Return which groups have at least two members with different rewards, bool [...].

    The arguments are both JAX arrays or both NumPy arrays.
    """
    xp = rewards.__array_namespace__()
    high = xp.max(xp.where(members, rewards, -xp.inf), axis=-1)
    low = xp.min(xp.where(members, rewards, xp.inf), axis=-1)
    largest = xp.max(xp.where(members, xp.abs(rewards), 0.0), axis=-1)
    return high - low > xp.maximum(EQUAL, EQUAL_RELATIVE * largest)  # the left side is -inf for an empty group


def informative_answers(samples: Samples, whole_episodes: bool) -> jax.Array:
    """Return which completions contribute to the loss and belong to informative groups, bool [N, S].

    A group is informative for a seat if its members' returns for that seat differ. Rewards are those of the rollout,
    without length penalties or a KL term.

    Args:
        samples: The samples.
        whole_episodes: Whether the members of a group are finished episodes (GRPO) or completions (AT-GRPO).
    """
    place, size = (samples.group, samples.member), (samples.n_groups, samples.group_size)
    returns = jnp.zeros((*size, samples.n_seats)).at[place].add(samples.rewards)
    members = jnp.zeros(size, bool).at[place].max(samples.ends if whole_episodes else samples.completion_lengths > 0)
    informative = differ(jnp.moveaxis(returns, -1, 1), members[:, None])  # [G, P]
    return informative[samples.group, samples.seat] & (samples.loss_weights > 0)


def centred(rewards: jax.Array, members: jax.Array, baseline: str) -> jax.Array:
    """Subtract the baseline from rewards [..., K]. Entries of missing members are undefined."""
    count = jnp.sum(members, axis=-1, keepdims=True)
    result = rewards - _mean(rewards, members)[..., None]
    if baseline == "mean":
        return result
    if baseline == "leave_one_out":
        # r - (S - r) / (K - 1) = (r - S / K) · K / (K - 1)
        return result * count / jnp.maximum(count - 1, 1)
    raise ValueError(f"baseline is {baseline!r}, but must be one of: mean, leave_one_out")


def group_std(rewards: jax.Array, members: jax.Array, ddof: int = 0) -> jax.Array:
    """Compute the standard deviation of each group, [...]."""
    squares = jnp.sum(_squares(rewards, members), axis=-1)
    return jnp.sqrt(squares / jnp.maximum(jnp.sum(members, axis=-1) - ddof, 1))


def agent_std(rewards: jax.Array, counted: jax.Array, agents: jax.Array, n_agents: int, ddof: int = 0) -> jax.Array:
    """Compute each agent's standard deviation around the means of its groups, float32 [n_agents]."""
    own = jax.nn.one_hot(agents, n_agents)  # [..., n_agents]
    over = tuple(range(agents.ndim))
    total = jnp.sum(own * jnp.sum(_squares(rewards, counted), axis=-1)[..., None], axis=over)
    count = jnp.sum(own * jnp.maximum(jnp.sum(counted, axis=-1) - ddof, 0)[..., None], axis=over)
    return jnp.sqrt(total / jnp.maximum(count, 1.0))


def _squares(rewards: jax.Array, members: jax.Array) -> jax.Array:
    """Compute squared deviations from the group mean, 0 for missing members."""
    return jnp.where(members, jnp.square(rewards - _mean(rewards, members)[..., None]), 0.0)


def _mean(x: jax.Array, members: jax.Array) -> jax.Array:
    """Compute the mean over the members of each group."""
    return jnp.sum(jnp.where(members, x, 0.0), axis=-1) / jnp.maximum(jnp.sum(members, axis=-1), 1)
