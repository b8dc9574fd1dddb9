"""Evaluation of reward models and policies on held-out pairs of a file.

    python launch.py --workdir=runs/reward --mode=eval                     # on the test split

The row "pairs" has the metrics of `verifier_scores`: accuracy is the share of pairs whose chosen completion has the
higher score, and `ece` measures the calibration of the probability of a pair, the sigmoid of the difference of its
scores. The score of a policy is its implicit reward β log π/π_ref, as in DPO. Margins are written to
`scores/SPLIT_STEP.jsonl`, next to a reliability diagram.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.agents import scoring
from marl_jax.agents.policy import Policy
from marl_jax.agents.verifier import TOKEN_UNIT, Scorer
from marl_jax.algorithms.algorithm import score_in_parts
from marl_jax.algorithms.preference_config import ContrastiveSettings
from marl_jax.algorithms.reward_model_config import RewardModelSettings
from marl_jax.evaluation import intervals, verifier_scores
from marl_jax.evaluation.verifier import FOLDER
from marl_jax.rollouts import pairs
from marl_jax.rollouts.host.sizes import bucket
from marl_jax.running.metrics import replace_text
from marl_jax.samples import Samples
from marl_jax.setup.tasks import TaskSetup
from models import sharding

log = logging.getLogger(__name__)

EDGE = 1e-7  # distance of scores from 0 and 1, whose log-odds are infinite


class PairEvaluation:
    """Evaluation on held-out pairs, with the interface of `TaskEvaluation`.

    Args:
        setup: Parts of the run, whose `algo.data` is a file of pairs.
        part: "validation" or "test".
        stop: Whether completions end with a stop token.
    """

    def __init__(self, setup: TaskSetup, part: str, stop: bool):
        self._setup, self._part = setup, part
        algo = setup.algo
        assert isinstance(algo, RewardModelSettings | ContrastiveSettings)
        held_out = pairs.split_pairs(pairs.read_pairs(algo.data), part, algo.held_out)
        tokenizer = setup.backbone.tokenizer
        self._answers, counts = pairs.tokenize(tokenizer, held_out, setup.config.task.max_length, stop=stop)
        log.info("pairs of %s: %s", part, ", ".join(f"{name} {count}" for name, count in counts.items()))
        self._margins = np.zeros((0,))

    def score(self, own: dict) -> np.ndarray:
        """Return the scores of all completions, float [2n].

        Args:
            own: Weights of the model for inference.
        """
        raise NotImplementedError

    def __call__(self, weights: dict[str, dict], baselines: bool = False) -> list[dict[str, Any]]:
        """Score both completions of every pair and return one row."""
        if not self._answers:
            return []
        scores = self.score(weights[self._setup.backbone.name])
        self._margins = scores[::2] - scores[1::2]
        likely, right, number = both_orders(self._margins)
        row = verifier_scores.row(likely, right, number, self._setup.config.eval.confidence)
        row |= {"games": len(self._margins), "margin": float(np.mean(self._margins))}
        row = {"opponent": "pairs", "part": self._part, **row}
        log.info("evaluation on %s (%d pairs)", intervals.describe(row), len(self._margins))
        return [row]

    def write(self, workdir: Path, step: int) -> None:
        """Write the margins of the last call and their diagram, in process 0."""
        if self._setup.process[0] or not len(self._margins):
            return
        folder = workdir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        likely, right, _ = both_orders(self._margins)
        title = f"{self._part}, pairs, step {step}"
        replace_text(folder / f"{self._part}_pairs_{step:08d}.svg", verifier_scores.diagram(title, likely, right))
        lines = "".join(json.dumps({"margin": round(margin, 6)}) + "\n" for margin in self._margins.tolist())
        replace_text(folder / f"{self._part}_{step:08d}.jsonl", lines)

    def everyone(self, workdir: Path, weights: dict) -> dict[str, Any]:
        """Return {}; pairs have no round robin."""
        return {}

    def close(self) -> None:
        """Do nothing."""


class RewardModelEvaluation(PairEvaluation):
    """Evaluation of a reward model."""

    def __init__(self, setup: TaskSetup, part: str):
        super().__init__(setup, part, stop=False)
        self._scorer: Scorer | None = None

    def score(self, own: dict) -> np.ndarray:
        """Return the log-odds of the scores."""
        if self._scorer is None:
            backbone, longest = self._setup.backbone, self._setup.config.task.max_length
            self._scorer = Scorer(backbone.policy, own, backbone.tokenizer, longest)
        self._scorer.weights = own
        scores = np.clip(self._scorer.score([one.reading for one in self._answers]), EDGE, 1 - EDGE)
        self._scorer.weights = {}  # the next call has other arrays, and these may be donated
        return np.log(scores / (1 - scores))


class PolicyPairEvaluation(PairEvaluation):
    """Evaluation of a policy by its implicit rewards, β log π/π_ref."""

    def __init__(self, setup: TaskSetup, part: str):
        super().__init__(setup, part, stop=True)
        assert isinstance(setup.algo, ContrastiveSettings)
        self._algo = dataclasses.replace(setup.algo, pack=0)
        self._initial: np.ndarray | None = None
        self._program = jax.jit(functools.partial(_log_likelihoods, setup.backbone.policy, self._algo))

    def score(self, own: dict) -> np.ndarray:
        """Return the implicit rewards."""
        if self._initial is None:
            self._initial = self._log_likelihoods(self._initial_weights(own))
        return self._algo.beta * (self._log_likelihoods(own) - self._initial)

    def _initial_weights(self, own: dict) -> dict:
        """Return the weights of the initial policy, which is the base for new adapters."""
        backbone = self._setup.backbone
        if backbone.policy.lora is not None and not backbone.policy.warm:
            return {"model": own["model"]}
        trained, frozen = backbone.weights_at_start()
        return backbone.policy.acting_params({**frozen, **trained})

    def _log_likelihoods(self, acting: Mapping) -> np.ndarray:
        """Return the log-likelihoods of all completions, or their averages over tokens."""
        answers = self._answers
        rows = pairs.PairRollout(answers, 2 * self._algo.n_pairs)
        lengths = np.array([one.reading.completion_length for one in answers])
        longest = max(len(one.reading.tokens) for one in answers)
        sizes = bucket(longest, TOKEN_UNIT), bucket(int(lengths.max()), TOKEN_UNIT)
        sums = []
        for first in range(0, len(answers), rows.n):
            batch = answers[first : first + rows.n]
            padded = [*batch, *batch[:1] * (rows.n - len(batch))]
            sums.append(np.asarray(self._program(acting, rows.collate(padded, *sizes)))[: len(batch)])
        total = np.concatenate(sums).astype(np.float64)
        return total / lengths if self._algo.average_tokens else total


def _log_likelihoods(policy: Policy, algo: ContrastiveSettings, acting: Mapping, samples: Samples) -> jax.Array:
    """Compute the log-likelihoods of completions, float32 [N], in the parts of the update."""
    logps = score_in_parts(lambda *part: scoring.answer_logps(policy, dict(acting), *part), samples, algo)
    return sharding.whole(jnp.sum(logps * samples.mask(), axis=1))  # every process needs all


def both_orders(margins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return every pair in both orders, so that both labels occur equally often.

    Equal scores are right in one of them.

    Args:
        margins: float [n], score of chosen minus score of rejected.

    Returns:
        Probabilities that the first completion is preferred, whether it is, and the number of the pair, each [2n].
    """
    p = 1 / (1 + np.exp(-margins))
    n = len(margins)
    return np.concatenate([p, 1 - p]), np.arange(2 * n) < n, np.arange(2 * n) % n
