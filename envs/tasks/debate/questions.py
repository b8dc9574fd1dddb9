"""Sources of questions with known answers for debates.

- arithmetic: `envs.tasks.arithmetic`.
- nli, arc, sciq, question: `envs.tasks.question`, with its parameters.
- gsm8k, math, sample, X.jsonl …: `envs.tasks.math`, with all of its datasets.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envs.tasks import TASKS, arithmetic
from envs.tasks.math import prompts as math_prompts
from envs.tasks.math import sources
from envs.tasks.math.extract import FORMS
from envs.tasks.question.task import Question
from envs.tasks.question.template import fill
from envs.tasks.replies import CallFailed, CallTimeout, Reply, Verdict
from envs.tasks.task import Ask

ARITHMETIC = "arithmetic"
KNOWN_ANSWERS = ("arc", "nli", "question", "sciq")


class Questions(Protocol):
    """Questions, how to answer them, and how to grade answers."""

    def examples(self, part: str) -> Sequence[Any]:
        """Return the examples of a split."""
        ...

    def question(self, example: Any) -> str:
        """Return the text of a question."""
        ...

    def system(self, example: Any) -> str:
        """Return the system prompt of an agent alone, as in the original task."""
        ...

    def format(self, example: Any) -> str:
        """Return the instruction on how an answer must end."""
        ...

    async def graded(self, ask: Ask, replies: Sequence[Reply], example: Any) -> list[Verdict]:
        """Return a verdict on each reply.

        Agents vote on the answers of verdicts, so equal answers must be equal strings.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ArithmeticQuestions:
    """Problems of `envs.tasks.arithmetic`, with the parameters of `Arithmetic`."""

    levels: tuple[int, ...] = (1, 2, 3)
    n_examples: int = 1000
    seed: int = 0

    def examples(self, part: str) -> list[arithmetic.ArithmeticProblem]:
        """Return distinct problems of a split."""
        return arithmetic.draw_problems(part, self.levels, self.n_examples, self.seed)

    def question(self, example: arithmetic.ArithmeticProblem) -> str:
        """Return the text of a problem."""
        return example.question

    def system(self, example: arithmetic.ArithmeticProblem) -> str:
        """Return the system prompt of `Arithmetic`."""
        return arithmetic.SYSTEM

    def format(self, example: arithmetic.ArithmeticProblem) -> str:
        """Return the instruction to end with `answer: N`."""
        return arithmetic.FORMAT

    async def graded(self, ask: Ask, replies: Sequence[Reply], example: arithmetic.ArithmeticProblem) -> list[Verdict]:
        """Grade replies by their number."""
        grades = await arithmetic.graded(ask, replies, example.answer)
        verdicts = []
        for grade, reply in zip(grades, replies, strict=True):
            assert reply.verdict is not None  # set by `arithmetic.graded`
            answer = arithmetic.voted(grade["answer"])
            verdicts.append(Verdict(right=grade["right"], answer=answer, reason=reply.verdict["reason"]))
        return verdicts


@dataclasses.dataclass(frozen=True)
class MathQuestions:
    """Problems of `envs.tasks.math`.

    Attributes:
        dataset: Name of a dataset, or a .jsonl file.
        answer: "boxed", or "final" to accept other forms as well.
    """

    dataset: str = sources.SAMPLE
    answer: str = "boxed"

    def __post_init__(self):
        if self.answer not in FORMS:
            raise ValueError(f"answer is {self.answer!r}, but must be one of: {', '.join(FORMS)}")

    def examples(self, part: str) -> tuple[sources.MathProblem, ...]:
        """Return the problems of a split."""
        return sources.problems(self.dataset, part)

    def question(self, example: sources.MathProblem) -> str:
        """Return the text of a problem."""
        return example.question

    def system(self, example: sources.MathProblem) -> str:
        """Return the system prompt of a reasoner without a tool agent."""
        return math_prompts.reasoner_system(self.answer, with_tool_agent=False)

    def format(self, example: sources.MathProblem) -> str:
        """Return the instruction to end with a box."""
        return math_prompts.ANSWER[self.answer]

    async def graded(self, ask: Ask, replies: Sequence[Reply], example: sources.MathProblem) -> list[Verdict]:
        """Grade replies with the math verifier; a timeout or an error counts as wrong."""
        from envs.tasks.math.verifier import LIMIT, ballot, verify  # imports a computer algebra system

        async def one(k: int, reply: Reply) -> Verdict:
            given = example.answer, reply.text, self.answer
            try:
                verdict: Verdict = await ask.verify(verify, *given, limit=LIMIT, name=f"verify_{k}")
            except (CallTimeout, CallFailed) as error:
                return Verdict(right=False, answer=None, reason=f"{error.reason}: {error}")
            return {**verdict, "answer": None if verdict["answer"] is None else ballot(verdict["answer"])}

        return list(await asyncio.gather(*(one(k, reply) for k, reply in enumerate(replies))))


@dataclasses.dataclass(frozen=True)
class KnownAnswers:
    """Questions of a task of `envs.tasks.question`."""

    task: Question

    def examples(self, part: str) -> Sequence[Any]:
        """Return the rows of a split."""
        return self.task.examples(part)

    def question(self, example: Mapping[str, Any]) -> str:
        """Return the task's prompt."""
        return self.task.prompt(example)

    def system(self, example: Mapping[str, Any]) -> str:
        """Return the task's system prompt, which says how to answer."""
        return fill(self.task.system, example)

    format = system

    async def graded(self, ask: Ask, replies: Sequence[Reply], example: Mapping[str, Any]) -> list[Verdict]:
        """Grade replies by the task's comparison."""
        return await self.task.graded(ask, replies, example)


def make_questions(dataset: str, source: Mapping[str, Any]) -> Questions:
    """Create the questions of a dataset.

    Args:
        dataset: Name of the dataset, or a .jsonl file of math problems.
        source: Parameters of the questions, such as the files of "question".
    """
    if dataset == ARITHMETIC:
        return ArithmeticQuestions(**source)
    if dataset in KNOWN_ANSWERS:
        return KnownAnswers(TASKS.get(dataset)(**source))
    try:
        sources.check_name(dataset)
    except ValueError:
        known = ", ".join([ARITHMETIC, *KNOWN_ANSWERS, *sources.SOURCES, sources.SAMPLE])
        raise ValueError(
            f"dataset is {dataset!r}, but must be a .jsonl file of math problems or one of: {known}"
        ) from None
    return MathQuestions(dataset, **source)
