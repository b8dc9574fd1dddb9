"""VDN: the value of a joint action is the sum of the seats' values.

    Q_tot(s, u) = Σ_i Q_i(o_i, u_i)        loss = (Q_tot(s, u) − y)²,  y = r + γ((1 − λ) max Q_tot'(s') + λ y')

Each seat's values come from a linear head on the hidden state after its prompt, and the policy acts by them. Targets
come from a moving average of the weights. Since Q_tot is a sum, each seat's best action is part of the best joint one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents import scoring
from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import vdn_config
from marl_jax.algorithms.algorithm import Algorithm, score_in_parts
from marl_jax.algorithms.vdn_config import VDNSettings
from marl_jax.learning import rounds
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.rollouts.joint import JointRollout
from marl_jax.samples import Samples, in_parts
from marl_jax.samples import rows as take


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: VDNSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Compute the targets of joint values and drop the lookahead round."""
    assert samples.completion_at is not None
    slow = {**weights, **weights["target"]}
    best = score_in_parts(lambda part, _: best_values(policy, slow, part), samples, algo)
    values = jnp.swapaxes(rounds.by_round(samples, best), 1, 2)  # [K, B, P]
    first = take(samples, samples.completion_at[:: samples.n_seats].reshape(-1))  # a row of every round
    parts = algo.minibatches * algo.grad_accum_steps
    states = in_parts(lambda part: scoring.mixing_states(policy, slow, part), first, parts)
    joint = scoring.joint_values(slow, states, values.reshape(first.n, -1))
    rewards = jnp.sum(rounds.by_round(samples, jnp.mean(samples.rewards, axis=-1)), axis=1)
    ends = jnp.any(rounds.by_round(samples, samples.ends), axis=1)
    targets = rounds.lambda_targets(rewards, ends, joint.reshape(values.shape[:2]), algo.gamma, algo.lam)
    returns = jnp.broadcast_to(rounds.from_rounds(samples, targets), samples.targets.shape)
    return rounds.grouped(samples.replace(returns=returns)).without_lookahead(), {}


def best_values(policy: Policy, weights: dict, samples: Samples) -> jax.Array:
    """Compute the values of the best possible actions, float32 [N, 1].

    A seat without legal actions passes.
    """
    assert samples.legal is not None
    values = scoring.head_values(policy, weights, samples)
    passes = ~jnp.any(samples.legal, axis=-1, keepdims=True)
    possible = jnp.concatenate([samples.legal, passes], axis=-1)
    return jnp.max(jnp.where(possible, values, -jnp.inf), axis=-1)


class TemporalDifference(Objective):
    """The mean squared difference between the values of joint actions and their targets."""

    def loss_weights_for(self, samples: Samples, algo: VDNSettings) -> jax.Array:
        """Return the weights of rows [N], which sum to 1 over a minibatch."""
        return samples.loss_weights[:, 0] / jnp.maximum(jnp.sum(samples.loss_weights), 1.0)

    def loss(
        self, samples: Samples, weighed: jax.Array, scores: Scores, algo: VDNSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rounds and metrics."""
        error = scores.values[:, 0] - samples.returns[:, 0]
        loss = jnp.sum(weighed * error**2)
        return loss, {"loss": loss, "td_error": jnp.sum(weighed * jnp.abs(error))}

    def summary(self, samples: Samples, algo: VDNSettings) -> dict[str, jax.Array]:
        """Compute the mean target."""
        weights = samples.loss_weights[:, 0]
        return {"return": jnp.sum(weights * samples.returns[:, 0]) / jnp.maximum(jnp.sum(weights), 1.0)}


def rollout(run: RunParts) -> Rollout:
    """Build the rollout, in which every round has a row for every seat."""
    assert run.game is not None
    return JointRollout(**run.game.arguments)


VDN = Algorithm(
    "vdn", VDNSettings, rollout, compute_advantages, TemporalDifference(), critic=True, check=vdn_config.check
)
