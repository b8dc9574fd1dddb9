"""Episodes of a workflow: prompt roles, score and keep candidates, and follow edges."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from envs.tasks.chat import Chat, keep_one
from envs.tasks.question.template import fill
from envs.tasks.replies import Reply
from envs.tasks.task import Ask
from envs.tasks.workflow.graph import Step, Workflow


@dataclasses.dataclass
class Turn:
    """One prompt and the reply of one role at one node.

    Attributes:
        number: Index of the node in the episode. Turns at the same time have the same index.
        node: Name of the node.
        step: The step of the role.
        prompt: The filled-in prompt.
        reply: The reply with its candidates.
        scores: Scores of the candidates, or None if they were not scored.
        kept: Candidate with which the episode continues.
    """

    number: int
    node: str
    step: Step
    prompt: str
    reply: Reply
    scores: Sequence[Any] | None = None
    kept: Reply | None = None

    @property
    def score(self) -> Any:
        """Score of the kept candidate, or None if it was not scored."""
        return None if self.scores is None else self.scores[self.reply.replies.index(self.kept)]


@dataclasses.dataclass(frozen=True)
class Walk:
    """The course of an episode.

    Attributes:
        turns: All turns.
        ended: Whether the episode reached the end before `max_steps`.
    """

    turns: list[Turn]
    ended: bool


Score = Callable[[Turn], Awaitable[Sequence[Any]]]
"""Rewards the candidates of a turn and returns a score for each, which the conditions of edges can use."""


async def play(
    workflow: Workflow,
    ask: Ask,
    values: Mapping[str, Any],
    score: Score,
    *,
    continuation: str = "best",
    system: str | None = None,
    opened: Mapping[str, Chat] | None = None,
) -> Walk:
    """Play a workflow from its start to its end.

    Args:
        workflow: The workflow.
        ask: The episode.
        values: Columns of the example.
        score: Called for steps with rewards, and for steps without if they turn out to be the last.
        continuation: Candidate to keep.
        system: System prompt of roles that have none.
        opened: Chats by role that are open already, such as those of workflows that are played concurrently.
    """
    values = {**dict.fromkeys(workflow.roles, ""), **values}  # roles that have not spoken yet are empty
    scores: dict[str, Any] = dict.fromkeys(workflow.roles)
    chats: dict[str, Chat] = dict(opened or {})
    turns: list[Turn] = []

    async def set_scores(turn: Turn) -> None:
        turn.scores = await score(turn)

    node, number = workflow.follow(workflow.start, values, scores), 0
    while node is not None and number < workflow.max_steps:
        for step in node.steps:  # before the first await; see `Ask.chat`
            if step.role not in chats:
                text = step.system if step.system is not None else system
                chats[step.role] = ask.chat(workflow.roles.index(step.role), system=text and fill(text, values))
        prompts = [fill(step.prompt, values) for step in node.steps]
        replies = await asyncio.gather(*(
            chats[step.role].say(prompt, n=ask.candidates, label=step.label)
            for step, prompt in zip(node.steps, prompts, strict=True)
        ))  # fmt: skip
        now = [
            Turn(number, node.name, step, prompt, reply)
            for step, prompt, reply in zip(node.steps, prompts, replies, strict=True)
        ]
        number += 1
        certain = node.is_last or number == workflow.max_steps
        await asyncio.gather(*(set_scores(turn) for turn in now if certain or turn.step.rewards is not None))
        for turn in now:
            turn.kept = keep_one(ask, chats[turn.step.role], turn.reply, continuation)
            values[turn.step.role] = turn.kept.text.strip()
            scores[turn.step.role] = turn.score
        node = workflow.follow(node.edges, values, scores)
        if node is None and not certain:
            await asyncio.gather(*(set_scores(turn) for turn in now if turn.step.rewards is None))
        turns += now
    return Walk(turns, node is None)
