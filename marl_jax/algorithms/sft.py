"""Supervised training on what a bot plays, so that small models have something to improve by playing.

    python launch.py --config=experiments/plan_path.py:roles_sft --workdir=runs/warm
    python launch.py --config=experiments/plan_path.py --workdir=runs/mine --config.model.init_from=runs/warm

Its rollout reads instead of sampling: the answers are the bot's. The loss is the likelihood of whole answers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms.algorithm import Algorithm
from marl_jax.rollouts.demonstrations import Demonstrations
from marl_jax.samples import Samples


def prepare(
    policy: Policy, weights: dict, samples: Samples, algo: ConfigDict
) -> tuple[Samples, dict[str, jax.Array]]:
    """The samples as they are."""
    return samples, {}


class Likelihood:
    """Minus the mean log-probability of whole answers."""

    def weigh(self, samples: Samples, algo: ConfigDict) -> jax.Array:
        """[N, S], adding up to 1 over a minibatch."""
        return samples.loss_weights / jnp.maximum(jnp.sum(samples.loss_weights), 1.0)

    def loss(self, samples: Samples, weighed: jax.Array, scores: Scores, algo: ConfigDict) -> tuple[jax.Array, dict]:
        """The loss of some rows, and metrics."""
        answers = samples.to_answers(scores.logps)
        loss = -jnp.sum(weighed * answers)
        metrics = {"loss": loss, "probability": jnp.sum(weighed * jnp.exp(answers))}
        return loss, metrics | {"entropy": jnp.sum(weighed * samples.to_answers(scores.entropy))}

    def summary(self, samples: Samples, algo: ConfigDict) -> dict[str, jax.Array]:
        """Nothing more."""
        return {}


def rollout(run) -> Demonstrations:
    """The games of a bot."""
    return Demonstrations(**run.rollout_settings(), bot=run.demonstrator(), noise=run.config.algo.noise)


SFT = Algorithm("sft", {}, rollout, prepare, Likelihood())
