"""Supervised fine-tuning on moves of a bot or reference completions of a task.

    python launch.py --config=experiments/plan_path.py:roles_sft --workdir=runs/warm
    python launch.py --config=experiments/plan_path.py --workdir=runs/mine --config.model.init_from=runs/warm

Completions come from the bot or the dataset instead of the policy. The loss is their negative log-likelihood.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.entry import GAMES
from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import sft_config
from marl_jax.algorithms.algorithm import Algorithm, HeldoutCount, HeldoutMetrics
from marl_jax.algorithms.sft_config import SFTSettings
from marl_jax.devices.aot import AotCompiler, Program
from marl_jax.errors import ConfigError
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.rollouts.demonstrations import DemonstrationAnswers, Demonstrations
from marl_jax.rollouts.host.gold import gold_rollout
from marl_jax.samples import Samples

DRAWS = 32  # draws of the bot in a held-out position; any move that it plays in one of them is right
HELD_OUT_KEY = 7


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: SFTSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Return the samples unchanged."""
    return samples, {}


class Likelihood(Objective):
    """The negative mean log-probability of completions or of their tokens."""

    def loss_weights_for(self, samples: Samples, algo: SFTSettings) -> jax.Array:
        """Return the weights of completions [N, S].

        Over a minibatch, those of all completions, or of all tokens, sum to 1.
        """
        lengths = samples.completion_lengths if algo.loss_agg == "token" else 1
        return samples.loss_weights / jnp.maximum(jnp.sum(samples.loss_weights * lengths), 1.0)

    def loss(
        self, samples: Samples, weighed: jax.Array, scores: Scores, algo: SFTSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows and metrics."""
        answers = samples.to_completions(scores.logps)
        loss = -jnp.sum(weighed * answers)
        by_token = samples.to_completions(jnp.exp(scores.logps) * samples.mask())
        likely = by_token if algo.loss_agg == "token" else jnp.exp(answers)
        metrics = {"loss": loss, "probability": jnp.sum(weighed * likely)}
        return loss, metrics | {"entropy": jnp.sum(weighed * samples.to_completions(scores.entropy))}


def rollout(run: RunParts) -> Rollout:
    """Build the rollout, in which a bot plays or the dataset replies."""
    if run.task is None:
        return demonstrations(run)
    arguments = run.task.arguments()
    task, name = arguments["runner"].task, run.config.task.name
    if task.gold_reply(task.examples(arguments["split"])[0]) is None:
        raise ConfigError(
            [
                f"config.algo.name is 'sft', but the task {name!r} has no reference completions. For the task dataset, "
                "set task.params.completion; other tasks need a method gold_reply"
            ]
        )
    return gold_rollout(arguments)


def demonstrations(run: RunParts) -> Demonstrations:
    """Build the rollout of a game, with moves of a bot or recorded ones."""
    algo = run.algo
    assert isinstance(algo, SFTSettings) and run.game is not None
    weights = sft_config.kind_weights(algo.kind_weights)
    by_action = tuple(weights.get(kind, 1.0) for kind in run.game.game.action_kinds) if weights else ()
    shown = Demonstrations(**run.game.arguments, bot=run.game.bot(algo.bot), noise=algo.noise, action_weights=by_action)
    if not algo.data:
        return shown
    read = GAMES.get(shown.game.name).read_moves
    assert read is not None  # `sft_config.check` requires it
    try:
        recorded = read(Path(algo.data).expanduser(), shown.game)
    except ValueError as error:
        raise ConfigError([f"config.algo.data is {algo.data!r}: {error}"]) from error
    rows = round(algo.data_frac * shown.rows)
    gains = dict(gain_weight=algo.gain_weight, min_gain=algo.min_gain)
    return dataclasses.replace(shown, recorded=recorded, recorded_rows=rows, **gains)


class Imitation:
    """Evaluation of imitation in held-out games, the same ones at every call."""

    def __init__(self, run: RunParts):
        shown = demonstrations(run)
        unseen = dataclasses.replace(shown, game=shown.game.held_out(), noise=0.0, recorded=None)
        self._kinds = np.array([*unseen.game.action_kinds, ""])  # the last entry: no action was named
        self._program = Program(
            lambda params: unseen.heldout_eval(params, jax.random.key(HELD_OUT_KEY), DRAWS),
            "the evaluation of the imitation",
        )

    def compile_ahead(self, ahead: AotCompiler, params: dict[str, dict]) -> None:
        """Start compiling the evaluation."""
        self._program.compile_ahead(ahead, lambda: (params,))

    def __call__(self, params: dict[str, dict]) -> HeldoutMetrics:
        """Count how often the most likely action is one that the bot plays.

        If actions have kinds, also compute for each kind the accuracy on the moves of the bot and the precision of the
        moves of the policy: the share of its moves of this kind that the bot would make.
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
