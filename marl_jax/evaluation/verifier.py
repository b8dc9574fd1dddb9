"""Evaluation of a verifier on labelled completions of held-out questions.

    python launch.py --workdir=runs/verifier --mode=eval                     # on the test split

There are two rows: "balanced", with as many correct as wrong completions per question, and "natural", with all
completions as they were sampled. `verifier_scores` defines the metrics. The scores are written to
`scores/SPLIT_STEP.jsonl`, next to a reliability diagram for each row.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from marl_jax.agents.verifier import Scorer
from marl_jax.algorithms import verifier
from marl_jax.evaluation import intervals, verifier_scores
from marl_jax.rollouts import labelled
from marl_jax.running.metrics import replace_text
from marl_jax.setup.tasks import TaskSetup

log = logging.getLogger(__name__)

FOLDER = "scores"


class VerifierEvaluation:
    """Evaluation of a verifier, with the interface of `TaskEvaluation`."""

    def __init__(self, setup: TaskSetup, part: str):
        self._setup, self._part = setup, part
        c, backbone = setup.config, setup.backbone
        questions = verifier.read_split(c, setup.workdir, part)
        readable = labelled.Readable(backbone.tokenizer, questions, c.task.max_length)
        questions = readable.questions
        natural = [(i, a) for i, q in enumerate(questions) for a in q.answers if not a.gold]
        balanced = labelled.balance(questions, c.algo.samples, c.eval.seed, gold=False)
        self._sets: dict[str, list[labelled.Labelled]] = {}
        for name, chosen in (("balanced", balanced.chosen), ("natural", natural)):
            rows = readable.read(chosen)
            if not rows:
                log.warning("there are no %s completions of the %s split to evaluate on", name, part)
                continue
            log.info(
                "%s, %s: %d completions of %d questions", part, name, len(rows), len({one.question for one in rows})
            )
            self._sets[name] = rows
        if readable.left_out:
            log.info("%s: left out %d completions that are empty or too long", part, readable.left_out)
        self._scorer: Scorer | None = None
        self._scores: dict[str, np.ndarray] = {}

    def __call__(self, weights: dict[str, dict], baselines: bool = False) -> list[dict[str, Any]]:
        """Score the completions and return one row for each set."""
        setup, backbone = self._setup, self._setup.backbone
        own = weights[backbone.name]
        if self._scorer is None:
            self._scorer = Scorer(backbone.policy, own, backbone.tokenizer, setup.config.task.max_length)
        self._scorer.weights = own
        different = list(dict.fromkeys(one.reading for answers in self._sets.values() for one in answers))
        by_reading = dict(zip(different, self._scorer.score(different), strict=True))  # the sets share most completions
        self._scorer.weights = {}  # the next call has other arrays, and these may be donated
        rows = []
        for name, answers in self._sets.items():
            scores = np.array([by_reading[one.reading] for one in answers])
            right, questions = _columns(answers)
            self._scores[name] = scores
            row = verifier_scores.row(scores, right, questions, setup.config.eval.confidence)
            rows.append({"opponent": name, "part": self._part, **row})
            log.info("evaluation on %s, %s (%d completions of %d questions)", self._part, intervals.describe(rows[-1]),
                     row["games"], row["distinct"])  # fmt: skip
        return rows

    def write(self, workdir: Path, step: int) -> None:
        """Write the scores of the last call and their diagrams, in process 0."""
        if self._setup.process[0]:
            return
        folder = workdir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for name, scores in self._scores.items():
            right, questions = _columns(self._sets[name])
            for score, label, question in zip(scores.tolist(), right.tolist(), questions.tolist(), strict=True):
                lines.append(json.dumps({"set": name, "question": question, "right": label, "score": round(score, 6)}))
            title = f"{self._part}, {name}, step {step}"
            diagram = verifier_scores.diagram(title, scores, right)
            replace_text(folder / f"{self._part}_{name}_{step:08d}.svg", diagram)
        replace_text(folder / f"{self._part}_{step:08d}.jsonl", "".join(line + "\n" for line in lines))

    def everyone(self, workdir: Path, weights: dict) -> dict[str, Any]:
        """Return {}; a verifier has no round robin."""
        return {}

    def close(self) -> None:
        """Do nothing."""


def _columns(answers: list[labelled.Labelled]) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels, bool [n], and question indices, int [n]."""
    return np.array([one.right for one in answers]), np.array([one.question for one in answers])


class NoLog:
    """Empty log of a verifier, which plays no games or episodes."""

    def __call__(self, params: dict, key: Any, step: int) -> list:
        """Return no records."""
        return []

    def close(self) -> None:
        """Do nothing."""
