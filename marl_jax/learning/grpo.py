"""GRPO and AT-GRPO: from the samples of a rollout to advantages within groups; there is no critic.

Which member of the family it is, is settings: baseline, spread and what is left out here, clips, ratio and mean in the
loss (`configs/algorithms.py`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents.policy import Policy
from marl_jax.learning import groups, losses
from marl_jax.learning.groups import Groups
from marl_jax.learning.ppo import in_parts
from marl_jax.samples import Samples


def prepare(
    policy: Policy, weights: dict, samples: Samples, algo: ConfigDict, n_players: int
) -> tuple[Samples, dict[str, jax.Array]]:
    """Samples [R, B, …] of a rollout -> rows [N, …] ready for the update, and figures.

    With AT-GRPO the rows of a group are next to each other.
    """
    shape = samples.action.shape
    rows = samples.flat()
    train_state = lambda function: in_parts(function, rows, algo.minibatches, policy.share)  # noqa: E731
    if algo.kl_coef:
        rows = rows.replace(ref_logps=train_state(lambda s: policy.reference_logps(weights, s)))
    if algo.tis_clip:
        rows = rows.replace(old_logps=train_state(lambda s: policy.score(weights, s).logps))
    mask, rewards = rows.mask(), rows.rewards
    if algo.kl_coef and algo.kl_in == "reward":
        penalty = algo.kl_coef * jnp.sum(losses.kl(rows.logps, rows.ref_logps, algo.kl_kind) * mask, axis=1)
        rewards = rewards - penalty[:, None] * jax.nn.one_hot(rows.agent, n_players)

    in_time = samples.replace(rewards=rewards.reshape(*shape, n_players))
    if algo.name == "at_grpo":
        advantage, informative, found = by_turn(in_time, algo, n_players)
    else:
        advantage, informative, found = by_episode(in_time, algo)
    if algo.filter_zero_std_groups:
        rows = rows.replace(weights=rows.weights * informative)
    return rows.replace(rewards=rewards, advantages=advantage[:, None] * mask), found


def by_turn(samples: Samples, algo: ConfigDict, n_players: int) -> tuple[jax.Array, jax.Array, dict]:
    """AT-GRPO: candidates of one prompt against each other -> advantages [N], whether their group tells, figures."""
    rows = samples.flat()
    mine = jnp.take_along_axis(rows.rewards, rows.agent[:, None], axis=1).reshape(-1, algo.group_size)
    agents = rows.agent.reshape(-1, algo.group_size)[:, 0]
    found = groups.advantages(mine, agents=agents, n_agents=n_players, **_settings(algo))
    informative = jnp.repeat(found.informative, algo.group_size)
    counts = jnp.any(rows.weights.reshape(mine.shape) > 0, axis=1)
    return found.advantages.reshape(-1), informative, _figures(found, counts, mine)


def by_episode(samples: Samples, algo: ConfigDict) -> tuple[jax.Array, jax.Array, dict]:
    """GRPO: whole episodes from one start against each other, seat by seat -> as `by_turn`."""
    returns, whole = episode_returns(samples)
    batch, episodes, n_players = returns.shape
    in_groups = lambda x: jnp.moveaxis(x.reshape(-1, algo.group_size, *x.shape[1:]), 1, -1)  # noqa: E731
    grouped = in_groups(returns)  # [B/K, E, P, K]
    members = jnp.broadcast_to(in_groups(whole)[:, :, None], grouped.shape)
    agents = jnp.broadcast_to(jnp.arange(n_players), grouped.shape[:-1])
    found = groups.advantages(grouped, members, agents=agents, n_agents=n_players, **_settings(algo))

    def of_samples(x):
        """[B/K, E, P, K] -> [R·B]: what belongs to each sample's row, episode and seat."""
        per_row = jnp.moveaxis(x, -1, 1).reshape(batch, episodes, n_players)
        return per_row[jnp.arange(batch), samples.episode, samples.agent].reshape(-1)

    informative = of_samples(jnp.broadcast_to(found.informative[..., None], grouped.shape))
    place = (jnp.arange(batch), samples.episode, samples.agent)
    active = in_groups(jnp.zeros(returns.shape, bool).at[place].max(samples.weights > 0))
    counts = jnp.any(members & active, axis=-1)
    return of_samples(found.advantages), informative, _figures(found, counts, grouped, members)


def episode_returns(samples: Samples) -> tuple[jax.Array, jax.Array]:
    """What every seat earned in each episode of each row, float32 [B, E, P], and whether that ended, bool [B, E].

    E is the number of turns and one more: no row can end more episodes, and one that waits has a number of its own.
    """
    turns, batch, n_players = samples.rewards.shape
    place = (jnp.arange(batch), samples.episode)  # [R, B]
    returns = jnp.zeros((batch, turns + 1, n_players)).at[place].add(samples.rewards)
    return returns, jnp.zeros((batch, turns + 1), bool).at[place].max(samples.ends)


def _settings(algo: ConfigDict) -> dict:
    return dict(baseline=algo.group_baseline, std=algo.group_std, normalise=algo.normalise)


def _figures(found: Groups, exists: jax.Array, rewards: jax.Array, members: jax.Array | None = None) -> dict:
    """Of the groups that teach someone: how many, the share in which all were paid alike, and their spread."""
    count = jnp.maximum(jnp.sum(exists), 1)
    spread = groups.spread(rewards, jnp.ones_like(rewards, bool) if members is None else members)
    return {
        "groups": jnp.sum(exists),
        "zero_std_groups": jnp.sum(exists & ~found.informative) / count,
        "group_reward_std": jnp.sum(jnp.where(exists, spread, 0.0)) / count,
    }
