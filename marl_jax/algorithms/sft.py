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

from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import sft_config
from marl_jax.algorithms.algorithm import Algorithm, HeldoutCount, HeldoutMetrics
from marl_jax.algorithms.sft_config import SFTSettings
from marl_jax.devices.aot import AotCompiler, Program
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.rollouts.base import RunParts
from marl_jax.rollouts.demonstrations import DemonstrationAnswers, Demonstrations
from marl_jax.samples import Samples

DRAWS = 32  # of the bot in a held-out position: what it plays in one of them is right
HELD_OUT_KEY = 7


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: SFTSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """The samples as they are."""
    return samples, {}


class Likelihood(Objective):
    """Minus the mean log-probability of whole answers."""

    def loss_weights_for(self, samples: Samples, algo: SFTSettings) -> jax.Array:
        """[N, S], adding up to 1 over a minibatch."""
        return samples.loss_weights / jnp.maximum(jnp.sum(samples.loss_weights), 1.0)

    def loss(
        self, samples: Samples, weighed: jax.Array, scores: Scores, algo: SFTSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """The loss of some rows, and metrics."""
        answers = samples.to_completions(scores.logps)
        loss = -jnp.sum(weighed * answers)
        metrics = {"loss": loss, "probability": jnp.sum(weighed * jnp.exp(answers))}
        return loss, metrics | {"entropy": jnp.sum(weighed * samples.to_completions(scores.entropy))}


def rollout(run: RunParts) -> Demonstrations:
    """Build the rollout: the games of a bot."""
    algo = run.algo
    assert isinstance(algo, SFTSettings) and run.game is not None
    weights = sft_config.kind_weights(algo.kind_weights)
    by_action = tuple(weights.get(kind, 1.0) for kind in run.game.game.action_kinds) if weights else ()
    return Demonstrations(**run.game.arguments, bot=run.game.bot(algo.bot), noise=algo.noise, action_weights=by_action)


class Imitation:
    """How well a team imitates the bot in games that training never sees, the same ones at every call."""

    def __init__(self, run: RunParts):
        shown = rollout(run)
        unseen = dataclasses.replace(shown, game=shown.game.held_out(), noise=0.0)
        self._kinds = np.array([*unseen.game.action_kinds, ""])  # the last: an answer that names nothing
        self._program = Program(
            lambda params: unseen.heldout_eval(params, jax.random.key(HELD_OUT_KEY), DRAWS),
            "the imitation's evaluation",
        )

    def compile_ahead(self, ahead: AotCompiler, params: dict[str, dict]) -> None:
        """Begins to compile what a call needs."""
        self._program.compile_ahead(ahead, lambda: (params,))

    def __call__(self, params: dict[str, dict]) -> HeldoutMetrics:
        """How often the most likely answer is one of the bot's: its accuracy.

        Where actions have kinds, also the accuracy of the bot's moves of each, and the precision of the policy's: of
        the plays that it chooses, the share that the bot would make.
        """
        answers = jax.device_get(self._program(params))
        counts = {"accuracy": _count(answers, answers.counts)}
        for kind in dict.fromkeys(self._kinds[:-1]):
            counts[f"{kind}_accuracy"] = _count(answers, answers.counts & (self._kinds[answers.bot] == kind))
            counts[f"{kind}_precision"] = _count(answers, answers.counts & (self._kinds[answers.own] == kind))
        return HeldoutMetrics("demonstrations", counts)


def _count(answers: DemonstrationAnswers, among: np.ndarray) -> HeldoutCount:
    return HeldoutCount(
        int(np.sum(answers.right & among)), int(np.sum(among)), len(np.unique(answers.prompts[among], axis=0))
    )


SFT = Algorithm(
    "sft", SFTSettings, rollout, compute_advantages, Likelihood(), heldout_eval=Imitation, check=sft_config.check
)
