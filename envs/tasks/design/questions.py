"""Questions with known answers for workflows: generated arithmetic, or a dataset of the `math` task.

Every row is {id, question, answer}. Answers are read and compared by the rules of those tasks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from envs.tasks import arithmetic
from envs.tasks.data import Dataset, from_list
from envs.tasks.math import prompts
from envs.tasks.math.sources import SOURCES, check_name, problems
from envs.tasks.math.verifier import LIMIT, ballot, verify

ARITHMETIC = "arithmetic"
GRADING = LIMIT + 2.0
"""Time limit of `grade` in seconds."""


@dataclasses.dataclass(frozen=True)
class Questions:
    """A dataset of questions.

    Attributes:
        dataset: "arithmetic", or a dataset of the `math` task, such as gsm8k.
        levels: Difficulty levels of arithmetic.
        n_examples: Number of arithmetic problems per split.
        seed: Random seed of arithmetic.
    """

    dataset: str
    levels: tuple[int, ...] = (1, 2)
    n_examples: int = 1000
    seed: int = 0

    def __post_init__(self):
        if self.dataset != ARITHMETIC:
            check_name(self.dataset)
            if self.dataset in SOURCES and not SOURCES[self.dataset].train:
                raise ValueError(f"dataset is {self.dataset!r}, which has no training split")

    @property
    def system(self) -> str:
        """System prompt of all roles, with the format of an answer."""
        return arithmetic.SYSTEM if self.dataset == ARITHMETIC else prompts.reasoner_system("boxed", False)

    def rows(self, part: str) -> Dataset:
        """Return the questions of a split."""
        if self.dataset == ARITHMETIC:
            drawn = arithmetic.draw_problems(part, self.levels, self.n_examples, self.seed)
            rows = [{"id": one.question, "question": one.question, "answer": str(one.answer)} for one in drawn]
        else:
            some = problems(self.dataset, part)
            rows = [{"id": one.id, "question": one.question, "answer": one.answer} for one in some]
        return from_list(rows, f"{self.dataset}/{part}")


def grade(dataset: str, text: str, answer: str) -> dict[str, Any]:
    """Return {"right", "answer"} of a completion; the answer is None or a spelling for votes.

    Runs in a process of `ask.verify`.
    """
    if dataset == ARITHMETIC:
        verdict = arithmetic.grade(text, int(answer))
        return {"right": verdict["right"], "answer": arithmetic.voted(verdict["answer"])}
    verdict = verify(answer, text)
    return {"right": verdict["right"], "answer": None if verdict["answer"] is None else ballot(verdict["answer"])}
