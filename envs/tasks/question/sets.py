r"""Datasets of questions: natural language inference (ANLI) and multiple choice (ARC, SciQ).

Files are found in $MARL_JAX_DATA by the names in `files`, or named in the config; none are part of this project.
ANLI is under CC BY-NC 4.0, SciQ under CC BY-NC 3.0: neither may be used commercially. ARC is under CC BY-SA 4.0.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from envs.tasks.data import find
from envs.tasks.question import samples
from envs.tasks.question.compare import LETTERS
from envs.tasks.question.task import BOXED, Question

LABELS = {"e": "entailment", "n": "neutral", "c": "contradiction"}


@dataclasses.dataclass(frozen=True)
class _Found(Question):
    """A question task that searches for its files if the config names none."""

    def sources(self) -> dict[str, str]:
        """Return the sources of the config, or else the files that exist.

        Without a train file, the first other file is used for training, and the missing split is cut from it.
        """
        if given := super().sources():
            return given
        paths = {part: str(path) for part, name in self.files.items() if (path := find(name)) is not None}
        if not paths or "train" in paths:
            return paths
        return {"train": paths.pop(next(iter(paths))), **paths}


@dataclasses.dataclass(frozen=True)
class Nli(_Found):
    """Natural language inference: does a premise entail a hypothesis, contradict it, or neither?

    Rows are in ANLI's published form or in that of the samples. The train split is the file `anli_train`. Training on a
    part of it with two of the three labels would teach never to use the third, so without that file the validation
    split is used for training, except for the examples that are kept for validation.
    """

    template: str = (
        "Premise: {premise}\n\nHypothesis: {hypothesis}\n\nDoes the premise entail the hypothesis, contradict it, or "
        "neither? Answer in this form:\n\nReason: (one or two sentences)\nLabel: \\boxed{ entailment }, "
        "\\boxed{ contradiction } or \\boxed{ neutral }"
    )
    system: str = r"Give a reason, then write the label in \boxed{}."
    answer: str = "label"

    prepared: ClassVar[str] = "anli"
    files: ClassVar[Mapping[str, str]] = {"train": "anli_train", "validation": "anli_dev", "test": "anli_test"}
    sample: ClassVar[Mapping[str, Sequence[dict]]] = samples.NLI

    def read(self, row: dict[str, Any]) -> dict[str, Any]:
        """Convert a row.

        ANLI's published form, with `context` for the premise and one letter for the label, works as well.
        """
        label = row["label"]
        if isinstance(label, int):  # as on the Hub
            label = ("entailment", "neutral", "contradiction")[label]
        label = LABELS.get(label, label)
        if label not in LABELS.values():
            raise ValueError(f"the label is {row['label']!r}, but must be one of: {', '.join(LABELS.values())}")
        premise = row["premise"] if "premise" in row else row["context"]
        kept = {name: row[name] for name in ("uid", "round") if name in row}
        return {**kept, "premise": premise, "hypothesis": row["hypothesis"], "label": label}


@dataclasses.dataclass(frozen=True)
class _MultipleChoice(_Found):
    template: str = "{question}\n\n{choices}"
    system: str = rf"{BOXED} It is the letter of one of the options."
    options: str = "choices"
    comparison: str = "choice"


@dataclasses.dataclass(frozen=True)
class Arc(_MultipleChoice):
    """ARC: science questions from school exams, with three to five options."""

    prepared: ClassVar[str] = "arc"
    files: ClassVar[Mapping[str, str]] = {
        "train": "arc_challenge_train", "validation": "arc_challenge_val", "test": "arc_challenge_test",
    }  # fmt: skip
    sample: ClassVar[Mapping[str, Sequence[dict]]] = samples.CHOICES

    def read(self, row: dict[str, Any]) -> dict[str, Any]:
        """Convert a row. Options are lettered from A, even if the source numbers them."""
        if "answer" in row and isinstance(row["choices"], list):
            return row
        labels, texts = row["choices"]["label"], row["choices"]["text"]
        if row["answerKey"] not in labels or len(labels) != len(texts):
            raise ValueError(f"the answer {row['answerKey']!r} is none of {labels}")
        answer = LETTERS[labels.index(row["answerKey"])]
        return {"id": row["id"], "question": row["question"], "choices": list(texts), "answer": answer}


@dataclasses.dataclass(frozen=True)
class SciQ(_MultipleChoice):
    """SciQ: science questions with four options, ordered by a hash of the question.

    Attributes:
        support: Whether to show the passage that supports the answer before the question.
    """

    support: bool = False

    prepared: ClassVar[str] = "sciq"
    files: ClassVar[Mapping[str, str]] = {"train": "sciq_train", "validation": "sciq_val", "test": "sciq_test"}
    sample: ClassVar[Mapping[str, Sequence[dict]]] = samples.CHOICES

    def read(self, row: dict[str, Any]) -> dict[str, Any]:
        """Convert a row: insert the right answer among the three distractors."""
        if "choices" in row:
            return row
        question, texts = row["question"], [row[f"distractor{i}"] for i in (1, 2, 3)]
        at = hashlib.sha256(question.encode()).digest()[0] % 4
        texts.insert(at, row["correct_answer"])
        if self.support and row.get("support"):
            question = f"{row['support']}\n\n{question}"
        return {"question": question, "choices": texts, "answer": LETTERS[at]}
