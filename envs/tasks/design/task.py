"""The `design` task: a designer writes a workflow, and executors play it.

An example has `shown` questions, which the designer reads, and `executions` others, on which its workflow is played, so
a workflow cannot contain the answers. If the run samples K candidates (AT-GRPO), there are K designs for one prompt.
Equal designs are played once.

The designer is rewarded with the mean success of the executions. A design that is rejected (`workflow.designs`) gets a
process reward of −`penalty`, is not played, and is counted by its reason. The executor has one seat for all roles of a
workflow. Its candidates, K at every step, are rewarded with 1 for the right answer; without candidates, the replies of
the deciding step are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.chat import Chat, keep_one
from envs.tasks.data import Dataset, from_list
from envs.tasks.design import prompts
from envs.tasks.design.execution import Executed, execute, scored
from envs.tasks.design.questions import Questions
from envs.tasks.replies import Reply
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split
from envs.tasks.workflow.designs import REASONS, DesignError, canonical, read_design, read_json
from envs.tasks.workflow.graph import Workflow

DESIGNER, EXECUTOR = 0, 1


@dataclasses.dataclass(frozen=True)
class Design(Task):
    """Workflows written by a designer and played by an executor.

    Attributes:
        dataset: "arithmetic", or a dataset of the `math` task, such as gsm8k or sample.
        executions: Number of questions on which a design is played, N.
        shown: Number of other questions in the designer's prompt.
        penalty: Amount subtracted for a rejected design.
        levels: Difficulty levels of arithmetic.
        n_examples: Number of arithmetic problems per split.
        seed: Random seed of arithmetic.
    """

    dataset: str = "arithmetic"
    executions: int = 4
    shown: int = 2
    penalty: float = 0.5
    levels: tuple[int, ...] = (1, 2)
    n_examples: int = 1000
    seed: int = 0

    roles = ("designer", "executor")

    def __post_init__(self):
        ranges = dict(executions=(1, 64), shown=(1, 16), penalty=(0, 10), n_examples=(1, 10**6))
        check_params(self, {}, ranges)
        _ = self.questions  # report errors where the task is made

    @functools.cached_property
    def questions(self) -> Questions:
        """The dataset."""
        return Questions(self.dataset, tuple(self.levels), self.n_examples, self.seed)

    def examples(self, part: str) -> Dataset:
        """Return groups of questions: those shown, and those to answer."""
        check_split(part)
        rows, size = list(self.questions.rows(part)), self.shown + self.executions
        if len(rows) < size:
            raise ValueError(f"{self.dataset} has {len(rows)} questions in {part}, but an example needs {size}")
        groups = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
        return from_list(
            [{"shown": group[: self.shown], "questions": group[self.shown :]} for group in groups],
            f"{self.dataset}/{part} in groups",
        )

    async def play(self, ask: Ask, example: dict[str, Any]) -> Outcome:
        """Design, execute and reward."""
        chat = ask.chat(DESIGNER, system=prompts.SYSTEM)
        reply = await chat.say(prompts.design(example["shown"]), n=ask.candidates, label="design")
        designs, reasons = _read(reply)
        # Chats are opened before the first execution, so that their numbers do not depend on timing.
        opened = {key: [self._open(ask, workflow) for _ in example["questions"]] for key, workflow in designs.items()}
        played = await asyncio.gather(*(
            self._execute(ask, number, designs[key], example["questions"], opened[key])
            for number, key in enumerate(designs)
        ))  # fmt: skip
        results = dict(zip(designs, played, strict=True))
        scores = {key: statistics.fmean(one.success for one in runs) for key, runs in results.items()}
        for candidate, (key, why) in zip(reply.replies, reasons, strict=True):
            if key is None:
                candidate.reward(process=-self.penalty)
                candidate.judge(False, None, why)
            else:
                candidate.reward(agent=scores[key])
                candidate.judge(scores[key], key, f"{scores[key]:.0%} right")
        kept = keep_one(ask, chat, reply, "first")
        key, _ = reasons[reply.replies.index(kept)]
        metrics = _metrics(designs, reasons, results, scores)
        return Outcome(0.0 if key is None else scores[key], metrics, "rejected" if key is None else "executed")

    def _open(self, ask: Ask, workflow: Workflow) -> dict[str, Chat]:
        return {role: ask.chat(EXECUTOR, system=self.questions.system) for role in workflow.roles}

    async def _execute(
        self, ask: Ask, number: int, workflow: Workflow, rows: Sequence[Mapping[str, Any]],
        chats: Sequence[Mapping[str, Chat]],
    ) -> list[Executed]:  # fmt: skip
        done = await asyncio.gather(*(
            execute(workflow, ask, row, self.questions, name=f"design_{number}_{n}", opened=opened)
            for n, (row, opened) in enumerate(zip(rows, chats, strict=True))
        ))  # fmt: skip
        for one in done if ask.candidates == 1 else ():
            for reply in one.deciding:
                reply.reward(agent=one.success)
        return list(done)


Reason = tuple[str | None, str]
"""Key of an accepted design, or None and why it was rejected, which begins with one of REASONS."""


def _read(reply: Reply) -> tuple[dict[str, Workflow], list[Reason]]:
    """Return the distinct accepted designs, and a reason for every candidate."""
    designs: dict[str, Workflow] = {}
    reasons: list[Reason] = []
    for candidate in reply.replies:
        try:
            data = read_json(candidate.text)
            workflow = scored(read_design(data))
        except DesignError as error:
            reasons.append((None, f"{error.reason}: {error}"))
            continue
        designs.setdefault(canonical(data), workflow)
        reasons.append((canonical(data), ""))
    return designs, reasons


def _metrics(
    designs: Mapping[str, Workflow], reasons: Sequence[Reason], results: Mapping[str, Sequence[Executed]],
    scores: Mapping[str, float],
) -> dict[str, float]:  # fmt: skip
    """Return shares of the candidates by their fate, and the sizes of the accepted designs."""
    rejected = [why.partition(":")[0] for key, why in reasons if key is None]
    metrics = {f"rejected_{reason}": rejected.count(reason) / len(reasons) for reason in REASONS}
    metrics["accepted"] = 1 - len(rejected) / len(reasons)
    if designs:
        metrics |= {
            "distinct_designs": float(len(designs)),
            "design_success": statistics.fmean(scores.values()),
            "nodes": statistics.fmean(len(workflow.nodes) for workflow in designs.values()),
            "steps": statistics.fmean(one.steps for runs in results.values() for one in runs),
        }
    return metrics
