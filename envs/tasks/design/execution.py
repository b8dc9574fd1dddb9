"""The `workflow` task: roles of a declared workflow answer a question.

The answer of an episode is the last readable one: of the last step in which a reply has an answer, and the most common
one if several roles spoke at once. A step that only checks or reviews need not repeat the answer.

If the run samples K candidates (AT-GRPO), every candidate is rewarded with 1 for the right answer, because it is
compared only with candidates for the same prompt. Otherwise the replies of the deciding step are rewarded, so that more
steps never earn more.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.chat import CONTINUATIONS, Chat
from envs.tasks.data import Dataset
from envs.tasks.design.questions import GRADING, Questions, grade
from envs.tasks.replies import CallFailed, CallTimeout, Reply
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split
from envs.tasks.workflow.designs import SINGLE, read_design, read_json
from envs.tasks.workflow.graph import Node, Workflow
from envs.tasks.workflow.play import Turn, play

Verdict = dict[str, Any]
"""{"right", "answer"} of a candidate."""


@dataclasses.dataclass(frozen=True)
class Executed:
    """A workflow that was played on a question.

    Attributes:
        success: Share of the deciding step's candidates with the right answer; of one candidate, 1 or 0.
        answer: Answer of the episode, or None.
        deciding: Replies of the deciding step that were kept.
        steps: Number of steps.
        ended: Whether the episode ended before `max_steps`.
    """

    success: float
    answer: str | None
    deciding: Sequence[Reply]
    steps: int
    ended: bool


def scored(workflow: Workflow) -> Workflow:
    """Return the workflow with the reward "right" at every step, which compares candidates."""
    nodes = {
        name: Node(name, tuple(dataclasses.replace(step, rewards=("right",)) for step in node.steps), node.edges)
        for name, node in workflow.nodes.items()
    }
    return dataclasses.replace(workflow, nodes=nodes)


async def execute(
    workflow: Workflow, ask: Ask, row: Mapping[str, Any], questions: Questions, *, continuation: str = "first",
    name: str = "grade", opened: Mapping[str, Chat] | None = None,
) -> Executed:  # fmt: skip
    """Play a workflow on a question.

    Args:
        workflow: A workflow after `scored`.
        ask: The episode.
        row: The question.
        questions: Its dataset.
        continuation: Candidate to keep.
        name: Prefix of the recorded calls, distinct for executions at the same time.
        opened: Chats by role; None opens a chat of the seat with the role's number.
    """
    verdicts: dict[int, list[Verdict]] = {}  # of the candidates of a turn, by the reply's id

    async def one(call: str, reply: Reply) -> Verdict:
        try:
            return await ask.verify(grade, questions.dataset, reply.text, row["answer"], limit=GRADING, name=call)
        except (CallTimeout, CallFailed):
            return {"right": False, "answer": None}

    async def score(turn: Turn) -> list[Verdict]:
        prefix = f"{name}_{turn.number}_{turn.step.role}"
        replies = turn.reply.replies
        graded = await asyncio.gather(*(one(f"{prefix}_{k}", reply) for k, reply in enumerate(replies)))
        for reply, verdict in zip(replies, graded, strict=True):
            reply.judge(verdict["right"], verdict["answer"])
            if ask.candidates > 1:
                reply.reward(agent=float(verdict["right"]))
        verdicts[id(turn)] = list(graded)
        return list(graded)

    walk = await play(
        workflow, ask, {"question": row["question"]}, score, continuation=continuation, system=questions.system,
        opened=opened,
    )  # fmt: skip
    steps = max(turn.number for turn in walk.turns) + 1
    for number in reversed(range(steps)):
        turns = [turn for turn in walk.turns if turn.number == number and turn.score["answer"] is not None]
        if not turns:
            continue
        (answer, _), *_ = collections.Counter(turn.score["answer"] for turn in turns).most_common()
        chosen = [turn for turn in turns if turn.score["answer"] == answer]
        several = len(turns) > 1
        candidates = [turn.score for turn in chosen] if several else verdicts[id(turns[0])]
        success = sum(verdict["right"] for verdict in candidates) / len(candidates)
        return Executed(success, answer, [turn.kept for turn in chosen if turn.kept], steps, walk.ended)
    return Executed(0.0, None, (), steps, walk.ended)


@dataclasses.dataclass(frozen=True)
class Execution(Task):
    """Questions for the roles of a declared workflow.

    Attributes:
        workflow: The workflow as data or JSON; see `envs.tasks.workflow.designs`.
        dataset: "arithmetic", or a dataset of the `math` task, such as gsm8k or sample.
        levels: Difficulty levels of arithmetic.
        n_examples: Number of arithmetic problems per split.
        seed: Random seed of arithmetic.
        continuation: Candidate that is kept if a step has several: "best", "random" or "first".
    """

    workflow: Any = dataclasses.field(default_factory=lambda: SINGLE)
    dataset: str = "arithmetic"
    levels: tuple[int, ...] = (1, 2)
    n_examples: int = 1000
    seed: int = 0
    continuation: str = "best"

    def __post_init__(self):
        check_params(self, dict(continuation=CONTINUATIONS), dict(n_examples=(1, 10**6)))
        _ = self.graph, self.questions  # report errors where the task is made

    @functools.cached_property
    def questions(self) -> Questions:
        """The dataset."""
        return Questions(self.dataset, tuple(self.levels), self.n_examples, self.seed)

    @functools.cached_property
    def graph(self) -> Workflow:
        """The workflow."""
        data = read_json(self.workflow) if isinstance(self.workflow, str) else self.workflow
        return scored(read_design(data))

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles, in the order in which they first speak."""
        return self.graph.roles

    def examples(self, part: str) -> Dataset:
        """Return the questions of a split."""
        check_split(part)
        return self.questions.rows(part)

    async def play(self, ask: Ask, example: dict[str, Any]) -> Outcome:
        """Play the workflow on a question."""
        done = await execute(self.graph, ask, example, self.questions, continuation=self.continuation)
        if ask.candidates == 1:
            for reply in done.deciding:
                reply.reward(agent=done.success)
        metrics = {"steps": float(done.steps), "parse_failure": float(done.answer is None)}
        return Outcome(done.success, metrics, "done" if done.ended else "max_steps", answer=done.answer)
