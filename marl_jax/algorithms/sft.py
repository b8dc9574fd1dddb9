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
from marl_jax.rollouts.turns import Turn
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
        self._team = run.team
        self._turns, self._right = jax.jit(unseen.examine, static_argnums=1)(jax.random.key(HELD_OUT_KEY), DRAWS)
        prompts = np.asarray(self._turns.prompts)[np.asarray(self._turns.counts) > 0]
        self._distinct = len(np.unique(prompts, axis=0))
        self._program = jax.jit(self._answers)

    def __call__(self, params: dict[str, dict]) -> Examined:
        """How often the most likely answer is one of the bot's."""
        right, counts = jax.device_get(self._program(params, self._turns, self._right))
        return Examined("demonstrations", "accuracy", int(np.sum(right & counts)), int(np.sum(counts)), self._distinct)

    def _answers(self, params, turns: Turn, right):
        """Whether the most likely answers are right, and whether they count: bool [R, B] each."""
        ready = self._team.prepare_for_sampling(params)

        def turn(xs):
            shown, right = xs
            keys = jax.vmap(jax.random.key)(jnp.arange(shown.seat.shape[0]))  # the most likely answer needs no luck
            said = self._team.act(
                ready, shown.prompts, shown.lengths, shown.legal, keys, shown.policy, temperature=0.0
            ).action
            return jnp.take_along_axis(right, jnp.maximum(said, 0)[:, None], axis=1)[:, 0] & (said >= 0)

        return jax.lax.map(turn, (turns, right)), turns.counts > 0


SFT = Algorithm("sft", fields.SFT, rollout, prepare, Likelihood(), examine=Imitation, check=checks.sft)
