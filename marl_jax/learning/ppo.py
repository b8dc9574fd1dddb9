"""PPO in self-play: from the samples of a rollout to advantages and returns.

An algorithm is one function, `prepare(policy, weights, samples, algo) -> samples`, which takes what a rollout gives and
fills in what the update needs; it runs inside jit.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents.policy import Policy, Scores
from marl_jax.learning import advantages, losses
from marl_jax.samples import Samples, split, unsplit


def prepare(policy: Policy, weights: dict, samples: Samples, algo: ConfigDict, n_players: int) -> Samples:
    """Samples [R + P, B, …] of a rollout, the last P turns looking ahead -> rows [N, …] ready for the update."""
    shape = samples.action.shape
    rows = samples.flat()
    if algo.kl_coef:
        rows = rows.replace(ref_logps=in_parts(lambda s: policy.reference_logps(weights, s), rows, algo.minibatches))
    if algo.tis_clip or algo.gae == "token":
        scores: Scores = in_parts(lambda s: policy.score(weights, s), rows, algo.minibatches)
        rows = rows.replace(old_logps=scores.logps if algo.tis_clip else None, values=scores.values)

    mask = rows.mask()
    rewards = rows.rewards
    if algo.kl_coef and algo.kl_in == "reward":
        penalty = algo.kl_coef * jnp.sum(losses.kl(rows.logps, rows.ref_logps, algo.kl_kind) * mask, axis=1)
        rewards = rewards - penalty[:, None] * jax.nn.one_hot(rows.agent, n_players)

    in_time = lambda x: x.reshape(*shape, *x.shape[1:])  # noqa: E731
    values = rows.values[:, 0]
    credit = advantages.gae(
        in_time(rewards), in_time(values), samples.agent, samples.ends, algo.gamma, algo.lam, tail=n_players
    )
    advantage = credit.advantages.reshape(-1)
    if algo.gae == "token":
        advantage, returns = advantages.token_gae(advantage, rows.values, mask, values, algo.gamma_token, algo.lam)
    else:
        advantage, returns = advantage[:, None] * mask, credit.returns.reshape(-1, 1) * _first(mask)
    row_weights = rows.weights * credit.known.reshape(-1)
    if algo.whiten:
        advantage = advantages.whiten(advantage, rows.agent, row_weights[:, None] * mask, n_players) * mask
    rows = rows.replace(rewards=rewards, advantages=advantage, returns=returns, weights=row_weights)
    return jax.tree.map(lambda x: x[: (shape[0] - n_players) * shape[1]], rows)


def value_mask(rows: Samples, gae: str) -> jax.Array:
    """float32 [N, W]: where the critic is asked. Over turns, before the first token; over tokens, before each."""
    return rows.mask() if gae == "token" else _first(rows.mask())


def in_parts(function, rows: Samples, parts: int, unit: int = 1):
    """`function` (samples -> tree of [N, …]) over parts of the rows, so that memory stays that of a minibatch."""
    while rows.n // unit % parts:
        parts -= 1
    return unsplit(jax.lax.map(function, split(rows, parts, unit)), unit)


def _first(mask: jax.Array) -> jax.Array:
    return mask.at[:, 1:].set(0.0)
