"""MADDPG: policies follow the gradient of a central critic by their own action.

    ∇J_i = Σ_a ∇π_i(a | o_i) Q_i(s, (u_−i, a))

Actions are discrete and few, so the sum over them is exact. The published form differentiates through one relaxed
sample instead (straight-through Gumbel-softmax), which is biased. The critic is that of COMA, with the rewards of the
policy's own seat, so that games may be competitive.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents import scoring
from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import coma, maddpg_config
from marl_jax.algorithms.algorithm import Algorithm, score_in_parts
from marl_jax.algorithms.maddpg_config import MADDPGSettings
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.samples import Samples


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: MADDPGSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Compute the critic's targets and drop the lookahead turns."""
    samples = coma.with_others_actions(policy, samples)
    slow = {**weights, "critic": weights["target"]["critic"]}  # the present policy, valued by the average critic
    scores = score_in_parts(lambda *part: scoring.score(policy, slow, *part), samples, algo)
    credit = coma.returns_from(samples, coma.expected(scores.action_values, scores.action_logps), algo)
    samples = samples.replace(
        returns=samples.to_tokens(samples.from_time(credit.returns)) * samples.first(),
        loss_weights=samples.loss_weights * samples.from_time(credit.known),
    )
    return samples.without_lookahead(), {}


class ThroughCritic(Objective):
    """The negative expected value of the policy's action, and the squared error of the critic."""

    def loss_weights_for(self, samples: Samples, algo: MADDPGSettings) -> jax.Array:
        """Return the weights of completions [N, S], which sum to 1 over a minibatch."""
        return samples.loss_weights / jnp.maximum(jnp.sum(samples.loss_weights), 1.0)

    def loss(
        self, samples: Samples, weighed: jax.Array, scores: Scores, algo: MADDPGSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows and metrics."""
        assert scores.action_logps is not None and scores.action_values is not None
        choice = jnp.exp(scores.action_logps)
        if algo.gradient == "gumbel":
            key = jax.random.fold_in(jax.random.key(0), scheduled.step)
            choice = straight_through(scores.action_logps, key, algo.gumbel_temperature)
        gain = jnp.sum(choice * jax.lax.stop_gradient(scores.action_values), axis=-1)
        error = samples.at_first(scores.values - samples.returns)
        metrics = {
            "policy_loss": -jnp.sum(weighed * gain),
            "entropy": jnp.sum(weighed * samples.at_first(scores.entropy)),
            "value_loss": jnp.sum(weighed * error**2),
        }
        loss = metrics["policy_loss"] + algo.value_coef * metrics["value_loss"]
        loss -= scheduled.entropy_coef * metrics["entropy"]
        return loss, {**metrics, "loss": loss}


def straight_through(logps: jax.Array, key: jax.Array, temperature: float) -> jax.Array:
    """Sample actions as one-hot vectors [..., A] with the gradient of their Gumbel-softmax relaxation.

    Args:
        logps: float32 [..., A], log-probabilities, -inf for illegal actions.
        key: PRNG key.
        temperature: Temperature of the relaxation.
    """
    noisy = jnp.where(jnp.isfinite(logps), logps, -1e9) + jax.random.gumbel(key, logps.shape)
    soft = jax.nn.softmax(noisy / temperature, axis=-1)
    hard = jax.nn.one_hot(jnp.argmax(noisy, axis=-1), logps.shape[-1])
    return hard + soft - jax.lax.stop_gradient(soft)


MADDPG = Algorithm(
    "maddpg",
    MADDPGSettings,
    coma.rollout,
    compute_advantages,
    ThroughCritic(),
    critic=True,
    check=maddpg_config.check,
)
