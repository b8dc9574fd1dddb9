"""Evaluation of a reward model on held-out pairs.

    python launch.py --workdir=runs/reward --mode=eval                     # on the test split

The only row is "pairs". The probability of a pair is the sigmoid of the difference of its scores, and its metrics are
those of `verifier_scores`: accuracy is the share of pairs whose chosen completion has the higher score, and `ece`
measures the calibration. Margins are written to `scores/SPLIT_STEP.jsonl`, next to a reliability diagram.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from marl_jax.agents.verifier import Scorer
from marl_jax.algorithms.reward_model_config import RewardModelSettings
from marl_jax.evaluation import intervals, verifier_scores
from marl_jax.evaluation.verifier import FOLDER
from marl_jax.rollouts import pairs
from marl_jax.running.metrics import replace_text
from marl_jax.setup.tasks import TaskSetup

log = logging.getLogger(__name__)

EDGE = 1e-7  # distance of scores from 0 and 1, whose log-odds are infinite


class PairEvaluation:
    """Evaluation of a reward model, with the interface of `TaskEvaluation`."""

    def __init__(self, setup: TaskSetup, part: str):
        self._setup, self._part = setup, part
        algo = setup.algo
        assert isinstance(algo, RewardModelSettings)
        held_out = pairs.split_pairs(pairs.read_pairs(algo.data), part, algo.held_out)
        tokenizer = setup.backbone.tokenizer
        self._answers, counts = pairs.tokenize(tokenizer, held_out, setup.config.task.max_length, stop=False)
        log.info("pairs of %s: %s", part, ", ".join(f"{name} {count}" for name, count in counts.items()))
        self._scorer: Scorer | None = None
        self._margins = np.zeros((0,))

    def __call__(self, weights: dict[str, dict], baselines: bool = False) -> list[dict[str, Any]]:
        """Score both completions of every pair and return one row."""
        if not self._answers:
            return []
        setup, backbone = self._setup, self._setup.backbone
        own = weights[backbone.name]
        if self._scorer is None:
            self._scorer = Scorer(backbone.policy, own, backbone.tokenizer, setup.config.task.max_length)
        self._scorer.weights = own
        scores = np.clip(self._scorer.score([one.reading for one in self._answers]), EDGE, 1 - EDGE)
        self._scorer.weights = {}  # the next call has other arrays, and these may be donated
        odds = np.log(scores / (1 - scores))
        self._margins = odds[::2] - odds[1::2]
        likely, right, number = both_orders(self._margins)
        row = verifier_scores.row(likely, right, number, setup.config.eval.confidence)
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
        """Return {}; a reward model has no round robin."""
        return {}

    def close(self) -> None:
        """Do nothing."""


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
