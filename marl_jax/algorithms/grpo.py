"""GRPO and its relatives: K whole episodes from one start, compared with each other; there is no critic.

Which member of the family it is, is settings: baseline, standard deviation and what is left out here, clips, ratio and
mean in the loss (`configs/algorithms.py`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents import scoring
from marl_jax.agents.policy import Policy
from marl_jax.algorithms import grpo_config
from marl_jax.algorithms.algorithm import Algorithm, ClippedObjective, score_in_parts, with_reference
from marl_jax.algorithms.grpo_config import GroupSettings
from marl_jax.learning import groups
from marl_jax.learning.groups import Groups
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.rollouts.groups import GroupRollout
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.samples import Samples


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: GroupSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Samples with the advantages of whole episodes within their groups, seat by seat, and metrics."""
    samples = with_old_logps(policy, weights, samples, algo)
    returns, ended = episode_returns(samples)  # [G, P, K], [G, K]
    members = jnp.broadcast_to(ended[:, None], returns.shape)
    agents = jnp.broadcast_to(jnp.arange(samples.n_seats), returns.shape[:-1])
    found = groups.advantages(returns, members, agents=agents, n_agents=samples.n_seats, **group_settings(algo))
    place = (samples.group, samples.seat, samples.member)
    active = jnp.zeros(returns.shape, bool).at[place].max(samples.loss_weights > 0)
    counts = jnp.any(members & active, axis=-1)
    informative = found.informative[samples.group, samples.seat]
    metrics = group_metrics(found, counts, returns, members)
    return with_advantages(samples, found.advantages[place], returns[place], informative, algo), metrics


def episode_returns(samples: Samples) -> tuple[jax.Array, jax.Array]:
    """What every seat earned in each episode of each group, float32 [G, P, K], and whether that ended, bool [G, K]."""
    place = (samples.group, samples.member)
    size = (samples.n_groups, samples.group_size)
    returns = jnp.zeros((*size, samples.n_seats)).at[place].add(samples.rewards)
    return jnp.moveaxis(returns, -1, 1), jnp.zeros(size, bool).at[place].max(samples.ends)


def with_old_logps(policy: Policy, weights: dict, samples: Samples, algo: GroupSettings) -> Samples:
    """`with_reference`, and against staleness the log-probabilities before the update."""
    if algo.tis_clip:
        old = score_in_parts(lambda *part: scoring.answer_logps(policy, weights, *part), samples, algo)
        samples = samples.replace(old_logps=old)
    return with_reference(policy, weights, samples, algo)


def with_advantages(
    samples: Samples, advantages: jax.Array, returns: jax.Array, informative: jax.Array, algo: GroupSettings
) -> Samples:
    """Fill in what is known of the completions, [N, S]; those of uninformative groups may be left out of the loss."""
    if algo.filter_zero_std_groups:
        samples = samples.replace(loss_weights=samples.loss_weights * informative)
    mask = samples.mask()
    return samples.replace(
        advantages=samples.to_tokens(advantages) * mask,
        returns=samples.to_tokens(returns) * mask,
        informative=informative,
    )


def group_settings(algo: GroupSettings) -> dict:
    """The arguments of `groups.advantages` that an experiment chooses."""
    return dict(baseline=algo.group_baseline, std=algo.group_std, normalize=algo.normalize, ddof=algo.std_ddof)


def group_metrics(found: Groups, exists: jax.Array, rewards: jax.Array, members: jax.Array | None = None) -> dict:
    """Of the groups that anyone learns from: how many, the share in which all were paid alike, their deviation."""
    count = jnp.maximum(jnp.sum(exists), 1)
    std = groups.group_std(rewards, jnp.ones_like(rewards, bool) if members is None else members)
    return {
        "groups": jnp.sum(exists),
        "zero_std_groups": jnp.sum(exists & ~found.informative) / count,
        "group_reward_std": jnp.sum(jnp.where(exists, std, 0.0)) / count,
    }


def rollout(run: RunParts) -> Rollout:
    """Build the rollout: whole episodes, `group_size` from every start or of every example."""
    algo = run.algo
    if run.task:
        return HostRollout(**run.task.arguments(samples=algo.group_size), refill=algo.refill)
    assert run.game is not None
    return GroupRollout(**run.game.arguments, candidates=algo.group_size, refill=algo.refill)


GRPO = Algorithm(
    "grpo",
    grpo_config.GRPOSettings,
    rollout,
    compute_advantages,
    ClippedObjective(critic=False),
    check=grpo_config.check,
)
