r"""Question task: any dataset with known answers, by config alone, for one or two roles.

For example:

    config.task.name = "question"
    config.task.params = dict(train="train.jsonl", test="test.jsonl", template="{problem} End with \\boxed{}.",
                              answer="solution", comparison="number")
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.data import DataError, Dataset, check_fields, from_list, make_splits, open_dataset
from envs.tasks.data.dataset import summary
from envs.tasks.data.places import warn_of_sample
from envs.tasks.question import samples
from envs.tasks.question.compare import COMPARISONS, FORMATS, check_answer, grade
from envs.tasks.question.template import fields_of, fill
from envs.tasks.replies import CallFailed, CallTimeout, Reply, Verdict
from envs.tasks.task import Ask, Outcome, Task, check_split

log = logging.getLogger(__name__)

ROLES = {"single": ("solver",), "roles": ("solver", "checker")}
CHECKER = "You check a solution and correct it where it is wrong."
BOXED = r"Think step by step, then write your final answer in \boxed{}."


@dataclasses.dataclass(frozen=True)
class Question(Task):
    r"""Questions with known answers.

    Attributes:
        train: Source of examples (see `open_dataset`); "" for the built-in sample.
        validation: Source of validation examples; "" to cut them from train.
        test: Source of test examples; "" to cut them from train.
        key: Field that identifies an example; "" uses the text of the prompt.
        template: Prompt with fields in braces. A list is written as options.
        system: System prompt, or "".
        answer: Field with the known answer.
        options: Field with the options for the comparison "choice", otherwise "".
        comparison: exact, one_of, contains, number, choice or math.
        form: "boxed" if the answer is in \boxed{}, "text" if it is the complete reply.
        agents: "single" for a solver; "roles" for a solver, and a checker that reads the solution and answers too.
        turns: Maximum number of turns per role. A solver alone checks its own answer. An episode ends when an answer is
            confirmed, and its success is that of the last answer.
        reward: Reward for a right answer. With one candidate per turn, only the last reply of each role is rewarded.
        format_reward: Process reward for a readable answer.
        group: Field by whose values success is also reported, or "".
        continuation: Candidate that counts if a turn has several: "best", "random" or "first".
        limit: Time limit of a comparison in seconds. A timeout counts as a wrong answer.
    """

    train: str = ""
    validation: str = ""
    test: str = ""
    key: str = ""
    template: str = "{question}"
    system: str = BOXED
    answer: str = "answer"
    options: str = ""
    comparison: str = "exact"
    form: str = "boxed"
    agents: str = "single"
    turns: int = 1
    reward: float = 1.0
    format_reward: float = 0.1
    group: str = ""
    continuation: str = "best"
    limit: float = 5.0

    sample: ClassVar[Mapping[str, Sequence[dict]]] = samples.QUESTIONS
    files: ClassVar[Mapping[str, str]] = {}
    prepared: ClassVar[str] = ""
    """Name of the dataset for `envs.tasks.data.prepare`."""

    def __post_init__(self):
        for name, value, accepted in (
            ("comparison", self.comparison, COMPARISONS),
            ("form", self.form, FORMATS),
            ("agents", self.agents, tuple(ROLES)),
            ("continuation", self.continuation, CONTINUATIONS),
        ):
            if value not in accepted:
                raise ValueError(f"{name} is {value!r}, but must be one of: {', '.join(accepted)}")
        if self.turns < 1:
            raise ValueError(f"turns is {self.turns}, but must be >= 1")
        if self.answer in fields_of(self.template) + fields_of(self.system):
            raise ValueError(f"the template shows {{{self.answer}}}, the field with the answer; remove it")
        if (self.comparison == "choice") != bool(self.options):
            raise ValueError(
                f"options is {self.options!r} with comparison {self.comparison!r}, but must be a field for 'choice' "
                "and '' for other comparisons"
            )
        if not self.train and (self.validation or self.test):
            raise ValueError("validation or test is set without train; set train as well")

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles."""
        return ROLES[self.agents]

    # ------------------------------------------------------------------------------------------------ data

    def examples(self, part: str) -> Dataset:
        """Return the rows of a split."""
        check_split(part)
        return self._parts[part]

    def sources(self) -> dict[str, str]:
        """Return the source of each split; {} if there are no files."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {part: source for part, source in given.items() if source}

    def read(self, row: dict[str, Any]) -> dict[str, Any]:
        """Convert a row of a file to the fields of the task.

        It is not called for rows of the sample.
        """
        return row

    @functools.cached_property
    def _parts(self) -> dict[str, Dataset]:
        sources = self.sources()
        if sources:
            parts = {part: open_dataset(source, part).map(self.read) for part, source in sources.items()}
            log.info("%s: %s", type(self).__name__, ", ".join(f"{p} from {s}" for p, s in sources.items()))
        else:
            parts = {part: from_list(rows, f"the sample of {part}") for part, rows in self.sample.items()}
            total = sum(map(len, parts.values()))
            if self.files:
                warn_of_sample(self.prepared, tuple(self.files.values()))
            log.info("%s: no data file, so the built-in sample of %d examples is used", type(self).__name__, total)
        for data in parts.values():
            self.check(data)
        return make_splits(**parts, key=self.key or self.prompt)

    def check(self, data: Dataset) -> None:
        """Raise a DataError that lists the rows without the fields that the task needs."""
        shown = fields_of(self.template) + fields_of(self.system)
        named = [name for name in (self.key, self.group) if name]
        check_fields(data, (*shown, *named, *([self.options] if self.options else [])), filled=(self.answer,))
        problems = []
        for i in range(len(data)):
            row = data.row(i)
            if problem := check_answer(self.comparison, row[self.answer], self._options(row)):
                problems.append(f"{data.where(i)}: {problem}")
            elif not self.prompt(row).strip():
                problems.append(f"{data.where(i)}: the prompt is empty")
        if problems:
            raise DataError(summary(problems))

    # ------------------------------------------------------------------------------------------------ an episode

    def prompt(self, row: Mapping[str, Any]) -> str:
        """Return the prompt of a row."""
        return fill(self.template, row)

    async def play(self, ask: Ask, example: dict[str, Any]) -> Outcome:
        """Play the roles in turn until an answer is confirmed or the turns are over."""
        system, question = fill(self.system, example), self.prompt(example)
        texts = [system, f"{CHECKER} {system}".strip()]
        chats = [ask.chat(seat, system=texts[seat] or None) for seat in range(len(self.roles))]
        last: dict[int, tuple[Reply, Verdict]] = {}
        said, verdict, agreed, right_first = "", None, False, False
        for turn in range(self.turns):
            for seat, chat in enumerate(chats):
                before = verdict
                reply, verdict = await self._say(ask, chat, self._request(turn, seat, question, said), example)
                said, last[seat] = reply.text, (reply, verdict)
                right_first = verdict["right"] if turn == seat == 0 else right_first
                agreed = before is not None and verdict["answer"] is not None and verdict["answer"] == before["answer"]
            if agreed:
                break
        assert verdict is not None  # `turns` is at least 1
        if ask.candidates == 1:
            for reply, judgement in last.values():
                self._pay(reply, judgement)
        metrics: dict[str, float] = {"parse_failure": verdict["answer"] is None}
        if self.turns * len(self.roles) > 1:
            metrics |= {"turns": turn + 1, "right_first": right_first}
        if self.group:
            metrics[f"success_{self.group}_{example[self.group]}"] = verdict["right"]
        score = None if before is None else float(agreed)
        reason = "agreed" if agreed else "done" if self.turns == 1 else "turns"
        return Outcome(verdict["right"], metrics, reason, verdict["answer"], score=score)

    async def _say(self, ask: Ask, chat: Chat, text: str, example: dict[str, Any]) -> tuple[Reply, Verdict]:
        """Play one turn of one role and return the kept reply with its verdict."""
        reply = await chat.say(text, n=ask.candidates)
        verdicts = await self.graded(ask, reply.replies, example)
        for candidate, verdict in zip(reply.replies, verdicts, strict=True):
            candidate.judge(**verdict)
            if ask.candidates > 1:
                self._pay(candidate, verdict)
        kept = keep_one(ask, chat, reply, self.continuation)
        return kept, verdicts[reply.replies.index(kept)]

    def _pay(self, reply: Reply, verdict: Verdict) -> None:
        reply.reward(team=self.reward * verdict["right"], process=self.format_reward * (verdict["answer"] is not None))

    def _request(self, turn: int, seat: int, question: str, said: str) -> str:
        """Return the prompt of a role at a turn, given the last reply."""
        if seat == 1:
            opening = question if turn == 0 else "The solver has tried again."
            return f"{opening}\n\nThe solver wrote:\n```\n{said.strip()}\n```\n\nIs that right? Give your own answer."
        if turn == 0:
            return question
        if self.agents == "single":
            return "Check your answer step by step, and answer again."
        return f"The checker wrote:\n```\n{said.strip()}\n```\n\nAnswer again: {question}"

    async def graded(self, ask: Ask, replies: Sequence[Reply], row: Mapping[str, Any]) -> list[Verdict]:
        """Grade replies; a timeout or an error of the verifier counts as wrong."""

        async def one(k: int, reply: Reply) -> Verdict:
            given = self.comparison, self.form, reply.text, row[self.answer], self._options(row)
            try:
                return await ask.verify(grade, *given, limit=self.limit, name=f"grade_{k}")
            except (CallTimeout, CallFailed) as error:
                return {"right": False, "answer": None, "reason": f"{error.reason}: {error}"}

        return list(await asyncio.gather(*(one(k, reply) for k, reply in enumerate(replies))))

    def _options(self, row: Mapping[str, Any]) -> list[str]:
        return list(row[self.options]) if self.options else []
