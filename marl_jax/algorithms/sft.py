"""Supervised training on what a bot plays, so that small models have something to improve by playing.

    python launch.py --config=experiments/plan_path.py:roles_sft --workdir=runs/warm
    python launch.py --config=experiments/plan_path.py --workdir=runs/mine --config.model.init_from=runs/warm

Its rollout reads instead of sampling: the answers are the bot's. The loss is the likelihood of whole answers.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import checks, fields
from marl_jax.algorithms.algorithm import Algorithm, Examined
from marl_jax.rollouts.demonstrations import Demonstrations
from marl_jax.samples import Samples

DRAWS = 32  # of the bot in a held-out position: what it plays in one of them is right
HELD_OUT_KEY = 7


def prepare(policy: Policy, weights: dict, samples: Samples, algo: ConfigDict) -> tuple[Samples, dict[str, jax.Array]]:
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


class Imitation:
    """How well a team imitates the bot in games that training never sees, the same ones at every call."""

    def __init__(self, run):
        shown = rollout(run)
        unseen = dataclasses.replace(shown, game=shown.game.held_out(), noise=0.0)
        self._program = jax.jit(lambda params: unseen.examine(params, jax.random.key(HELD_OUT_KEY), DRAWS))

    def __call__(self, params: dict[str, dict]) -> Examined:
        """How often the most likely answer is one of the bot's."""
        right, counts, prompts = jax.device_get(self._program(params))
        distinct = len(np.unique(prompts[counts], axis=0))
        return Examined("demonstrations", "accuracy", int(np.sum(right & counts)), int(np.sum(counts)), distinct)


SFT = Algorithm("sft", fields.SFT, rollout, prepare, Likelihood(), examine=Imitation, check=checks.sft)
