"""Policy improvement by playouts: every action is valued by letting a bot finish the game.

    ∇J = Σ_a ∇π(a | o) V(s, a)

V(s, a) is the return of action a in state s if a bot plays all seats from then on, minus that of the bot's own action.
The sum over actions is exact, so an action need not be sampled to be learned. The values are those of the true state s,
which the policy does not see. Because ∇J averages them over all states with the observation o, the policy learns the
best move given o, not the move that is best in hindsight.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores, value_taken
from marl_jax.algorithms import coma, playouts_config
from marl_jax.algorithms.algorithm import Algorithm
from marl_jax.algorithms.playouts_config import PlayoutSettings
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.rollouts.playouts import PlayoutRollout
from marl_jax.samples import Samples


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: PlayoutSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Drop the lookahead turns; the rollout has valued all actions."""
    return samples.without_lookahead(), {}


class ExpectedReturn(Objective):
    """The negative expected return of the policy's next move, minus an entropy bonus."""

    def loss_weights_for(self, samples: Samples, algo: PlayoutSettings) -> jax.Array:
        """Return the weights of completions [N, S], which sum to 1 over a minibatch."""
        return samples.loss_weights / jnp.maximum(jnp.sum(samples.loss_weights), 1.0)

    def loss(
        self, samples: Samples, weighed: jax.Array, scores: Scores, algo: PlayoutSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows and metrics."""
        assert scores.action_logps is not None and samples.action_values is not None
        metrics = {
            "policy_loss": -jnp.sum(weighed * coma.expected(samples.action_values, scores.action_logps)),
            "entropy": jnp.sum(weighed * samples.at_first(scores.entropy)),
        }
        loss = metrics["policy_loss"] - scheduled.entropy_coef * metrics["entropy"]
        return loss, {**metrics, "loss": loss}

    def summary(self, samples: Samples, algo: PlayoutSettings) -> dict[str, jax.Array]:
        """Compute the mean value of the actions that were taken."""
        assert samples.action_values is not None
        taken = value_taken(samples.action_values, samples)
        return {"gain": jnp.sum(samples.loss_weights * taken) / jnp.maximum(jnp.sum(samples.loss_weights), 1.0)}


def rollout(run: RunParts) -> Rollout:
    """Build the rollout of a game whose action names have one token each."""
    coma.check_one_token(run)
    assert run.game is not None and isinstance(run.algo, PlayoutSettings)
    return PlayoutRollout(**run.game.arguments, bot=run.game.bot(run.algo.bot))


PLAYOUTS = Algorithm(
    "playouts", PlayoutSettings, rollout, compute_advantages, ExpectedReturn(), check=playouts_config.check
)
