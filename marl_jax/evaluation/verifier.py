"""Evaluation of a verifier on held-out questions: the labelled answers of a part, scored.

    python launch.py --workdir=runs/verifier --mode=eval                     # those of the test part

Two rows, whatever the run learnt from: "balanced", as many right answers as wrong ones of each question, and
"natural", all answers as they were sampled. What the numbers mean stands in `verifier_scores`. The scores are written
to `scores/PART_STEP.jsonl`, and a reliability diagram of each row beside them.
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
    """The held-out answers of a run; used as `TaskEvaluation` is."""

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
                log.warning("there are no %s answers of %s to evaluate on", name, part)
                continue
            log.info("%s, %s: %d answers to %d questions", part, name, len(rows), len({one.question for one in rows}))
            self._sets[name] = rows
        if readable.left_out:
            log.info("%s: %d answers are left out as empty or too long", part, readable.left_out)
        self._scorer: Scorer | None = None
        self._scores: dict[str, np.ndarray] = {}

    def __call__(self, weights: dict[str, dict], baselines: bool = False) -> list[dict[str, Any]]:
        """One row for each set of answers; there are no baselines."""
        setup, backbone = self._setup, self._setup.backbone
        own = weights[backbone.name]
        if self._scorer is None:
            self._scorer = Scorer(backbone.policy, own, backbone.tokenizer, setup.config.task.max_length)
        self._scorer.weights = own
        different = list(dict.fromkeys(one.reading for answers in self._sets.values() for one in answers))
        found = dict(zip(different, self._scorer.score(different), strict=True))  # both sets share most answers
        self._scorer.weights = {}  # those of the next call are other arrays, and these may be donated
        rows = []
        for name, answers in self._sets.items():
            scores = np.array([found[one.reading] for one in answers])
            right, questions = _columns(answers)
            self._scores[name] = scores
            row = verifier_scores.row(scores, right, questions, setup.config.eval.confidence)
            rows.append({"opponent": name, "part": self._part, **row})
            log.info("evaluation on %s, %s (%d answers to %d questions)", self._part, intervals.describe(rows[-1]),
                     row["games"], row["distinct"])  # fmt: skip
        return rows

    def write(self, workdir: Path, step: int) -> None:
        """Writes the scores of the last call and their diagrams; process 0 does."""
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
        """Nothing: a verifier has no opponents."""
        return {}

    def close(self) -> None:
        """Nothing has to be ended."""


def _columns(answers: list[labelled.Labelled]) -> tuple[np.ndarray, np.ndarray]:
    """bool [n] labels and int [n] numbers of questions."""
    return np.array([one.right for one in answers]), np.array([one.question for one in answers])


class NoLog:
    """In place of the games or episodes that other runs log: a verifier plays none."""

    def __call__(self, params: dict, key: Any, step: int) -> list:
        """Nothing."""
        return []

    def close(self) -> None:
        """Nothing has to be ended."""
