"""AT-GRPO: K candidates of one prompt at every turn, compared with each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents.policy import Policy
from marl_jax.algorithms import at_grpo_config
from marl_jax.algorithms.algorithm import Algorithm, ClippedObjective
from marl_jax.algorithms.at_grpo_config import ATGRPOSettings
from marl_jax.algorithms.grpo import group_metrics, group_settings, with_advantages, with_old_logps
from marl_jax.learning import groups
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.rollouts.tree import TreeRollout
from marl_jax.samples import Samples


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: ATGRPOSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Compute the advantage of each candidate in its group by the reward of its seat."""
    samples = with_old_logps(policy, weights, samples, algo)
    place, size = (samples.group, samples.member), (samples.n_groups, samples.group_size)
    exists = samples.completion_lengths > 0
    rewards = jnp.zeros(size).at[place].add(samples.own_rewards() * exists)
    members = jnp.zeros(size, bool).at[place].max(exists)
    agents = jnp.zeros(size[:1], jnp.int32).at[samples.group].max(samples.seat * exists)
    result = groups.advantages(rewards, members, agents=agents, n_agents=samples.n_seats, **group_settings(algo))
    counts = jnp.any(jnp.zeros(size, bool).at[place].max(samples.loss_weights > 0), axis=1)
    metrics = group_metrics(result, counts, rewards, members)
    informative = result.informative[samples.group]
    return with_advantages(samples, result.advantages[place], rewards[place], informative, algo), metrics


def rollout(run: RunParts) -> Rollout:
    """Build the rollout, with several candidates at every turn."""
    algo = run.algo
    assert isinstance(algo, ATGRPOSettings)
    if run.task:
        return HostRollout(**run.task.arguments(candidates=algo.group_size), refill=algo.refill)
    assert run.game is not None
    return TreeRollout(
        **run.game.arguments, candidates=algo.group_size, continuation=algo.continuation, team_term=algo.team_term,
        refill=algo.refill,
    )  # fmt: skip


AT_GRPO = Algorithm(
    "at_grpo",
    ATGRPOSettings,
    rollout,
    compute_advantages,
    ClippedObjective(critic=False),
    check=at_grpo_config.check,
)
