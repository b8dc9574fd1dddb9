"""GRPO and its variants: K full episodes from one start, compared without a critic.

Settings select the variant: baseline, standard deviation and filtering in this module; clipping, importance ratio and
averaging in the loss (see `configs/algorithms.py`).
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
    """Compute the advantages of full episodes in their groups, for each seat."""
    samples = with_old_logps(policy, weights, samples, algo)
    returns, ended = episode_returns(samples)  # [G, P, K], [G, K]
    members = jnp.broadcast_to(ended[:, None], returns.shape)
    agents = jnp.broadcast_to(jnp.arange(samples.n_seats), returns.shape[:-1])
    result = groups.advantages(returns, members, agents=agents, n_agents=samples.n_seats, **group_settings(algo))
    place = (samples.group, samples.seat, samples.member)
    active = jnp.zeros(returns.shape, bool).at[place].max(samples.loss_weights > 0)
    counts = jnp.any(members & active, axis=-1)
    informative = result.informative[samples.group, samples.seat]
    metrics = group_metrics(result, counts, returns, members)
    return with_advantages(samples, result.advantages[place], returns[place], informative, algo), metrics


def episode_returns(samples: Samples) -> tuple[jax.Array, jax.Array]:
    """Compute the returns of every seat in each episode of each group.

    Returns:
        Returns float32 [G, P, K], and whether the episode ended, bool [G, K].
    """
    place = (samples.group, samples.member)
    size = (samples.n_groups, samples.group_size)
    returns = jnp.zeros((*size, samples.n_seats)).at[place].add(samples.rewards)
    return jnp.moveaxis(returns, -1, 1), jnp.zeros(size, bool).at[place].max(samples.ends)


def with_old_logps(policy: Policy, weights: dict, samples: Samples, algo: GroupSettings) -> Samples:
    """Add log-probabilities before the update, if `tis_clip` needs them, and `with_reference`."""
    if algo.tis_clip:
        old = score_in_parts(lambda *part: scoring.answer_logps(policy, weights, *part), samples, algo)
        samples = samples.replace(old_logps=old)
    return with_reference(policy, weights, samples, algo)


def with_advantages(
    samples: Samples, advantages: jax.Array, returns: jax.Array, informative: jax.Array, algo: GroupSettings
) -> Samples:
    """Set advantages, returns and `informative` [N, S] of the completions.

    With `filter_zero_std_groups`, completions of uninformative groups get weight 0.
    """
    if algo.filter_zero_std_groups:
        samples = samples.replace(loss_weights=samples.loss_weights * informative)
    mask = samples.mask()
    return samples.replace(
        advantages=samples.to_tokens(advantages) * mask,
        returns=samples.to_tokens(returns) * mask,
        informative=informative,
    )


def group_settings(algo: GroupSettings) -> dict:
    """Return the arguments of `groups.advantages` that come from the config."""
    return dict(baseline=algo.group_baseline, std=algo.group_std, normalize=algo.normalize, ddof=algo.std_ddof)


def group_metrics(result: Groups, exists: jax.Array, rewards: jax.Array, members: jax.Array | None = None) -> dict:
    """Compute metrics of the groups that contribute to the loss.

    These are the number of groups, the share of groups whose rewards are all equal, and the standard deviation of
    rewards.
    """
    count = jnp.maximum(jnp.sum(exists), 1)
    std = groups.group_std(rewards, jnp.ones_like(rewards, bool) if members is None else members)
    return {
        "groups": jnp.sum(exists),
        "zero_std_groups": jnp.sum(exists & ~result.informative) / count,
        "group_reward_std": jnp.sum(jnp.where(exists, std, 0.0)) / count,
    }


def rollout(run: RunParts) -> Rollout:
    """Build the rollout of full episodes, `group_size` from every start or example."""
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
