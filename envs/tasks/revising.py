"""Base of tasks in which an answer is tried and then revised.

In the form "roles" two seats write in turn: the first writes an answer, the second reads it with the result of its
trial and writes a corrected one, and so on. In the form "single" one agent writes all of them, in one conversation.
Both forms have at most `turns` completions in an episode. The episode ends early if an answer is repeated. The last
answer counts.

If the run samples K candidates (AT-GRPO), each of them is tried and rewarded, and one is continued. Otherwise only the
last completion of each seat is rewarded: with a reward for every completion, an agent could earn more by not finishing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypedDict

from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.code.extract import blocks
from envs.tasks.data import Dataset
from envs.tasks.replies import CallFailed, CallTimeout, Reply
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

FORMS = ("single", "roles")
MAX_TURNS = 8


class Trial(TypedDict):
    """The result of trying an answer, as a JSON value.

    Attributes:
        right: Correctness from 0 to 1, by a check that the agents do not see.
        answer: The answer that was read from the completion, or None.
        kind: Kind of result; the share of each kind is a metric.
        shown: Result for the next completion. It must not depend on the hidden check.
    """

    right: float
    answer: str | None
    kind: str
    shown: str


@dataclasses.dataclass(frozen=True)
class Revising(Task):
    """Answers that are tried and revised by one agent or by two roles.

    Subclasses implement `splits`, `opening` and `trial`.

    Attributes:
        form: "single" for one agent, "roles" for two.
        turns: Maximum number of completions in an episode.
        reward: Reward for a right answer.
        format_reward: Process reward for an answer whose trial succeeds, whether it is right or not.
        continuation: Candidate that is kept if a turn has several: "best", "random" or "first".
    """

    form: str = "roles"
    turns: int = 2
    reward: float = 1.0
    format_reward: float = 0.1
    continuation: str = "best"

    seats: ClassVar[tuple[str, str]]
    systems: ClassVar[tuple[str, str]]
    kinds: ClassVar[tuple[str, ...]]
    """Kinds of trials; the first ones up to `failed` are those that succeed."""
    failed: ClassVar[int] = 2

    def __post_init__(self):
        choices = dict(form=FORMS, continuation=CONTINUATIONS)
        check_params(self, choices, dict(turns=(1, MAX_TURNS), reward=(0, 100), format_reward=(0, 100)))

    # ------------------------------------------------------------------------------------------- for subclasses

    def splits(self) -> dict[str, Dataset]:
        """Return the examples by split."""
        raise NotImplementedError

    def opening(self, example: Any) -> str:
        """Return the task of an example as every seat reads it."""
        raise NotImplementedError

    def trial(self, text: str, example: Any) -> tuple[Callable, tuple, float]:
        """Return the function that tries a completion, its arguments, and a time limit in seconds.

        The function is called in another process and returns a `Trial`.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------- the episode

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles."""
        return self.seats if self.form == "roles" else self.seats[:1]

    def examples(self, part: str) -> Dataset:
        """Return the examples of a split."""
        check_split(part)
        return self.splits()[part]

    async def play(self, ask: Ask, example: Any) -> Outcome:
        """Write, try and revise an answer until it is repeated or the turns are over."""
        chats = [ask.chat(seat, system=self.systems[seat]) for seat in range(len(self.roles))]
        last: dict[int, tuple[Reply, Trial]] = {}
        trial: Trial | None = None
        first, agreed, turn = 0.0, False, 0
        while turn < self.turns and not agreed:
            before, seat = trial, turn % len(chats)
            text = self._request(turn, seat, example, last[(turn - 1) % len(chats)] if before else None)
            reply, trial = await self._say(ask, chats[seat], text, example)
            last[seat] = reply, trial
            first = trial["right"] if turn == 0 else first
            agreed = before is not None and trial["answer"] is not None and trial["answer"] == before["answer"]
            turn += 1
        assert trial is not None  # `turns` is at least 1
        if ask.candidates == 1:
            for reply, result in last.values():
                self._reward(reply, result)
        metrics: dict[str, float] = {f"kind_{kind}": trial["kind"] == kind for kind in self.kinds}
        metrics |= {"turns": turn, "right_first": first}
        return Outcome(trial["right"], metrics, "agreed" if agreed else "turns", trial["answer"], score=float(agreed))

    def _request(self, turn: int, seat: int, example: Any, before: tuple[Reply, Trial] | None) -> str:
        if before is None:
            return self.opening(example)
        reply, trial = before
        again = f"{trial['shown']}\n\nCheck the answer, correct it if it is wrong, and write the complete answer."
        if self.form == "single":
            return again
        other = self.seats[1 - seat]
        given = trial["answer"] if trial["answer"] is not None else reply.text
        said = f"The {other} wrote:\n```\n{given.strip()}\n```\n\n{again}"
        return f"{self.opening(example)}\n\n{said}" if turn == 1 else said

    async def _say(self, ask: Ask, chat: Chat, text: str, example: Any) -> tuple[Reply, Trial]:
        """Play one turn and return the kept completion with its trial."""
        reply = await chat.say(text, n=ask.candidates, label="first" if chat.turn == 0 else "again")

        async def tried(k: int, candidate: Reply) -> Trial:
            function, args, limit = self.trial(candidate.text, example)
            try:
                return await ask.verify(function, *args, limit=limit, name=f"trial_{k}")
            except (CallTimeout, CallFailed) as error:
                return Trial(right=0.0, answer=None, kind="failed", shown=f"The trial failed: {error.reason}.")

        trials = await asyncio.gather(*(tried(k, candidate) for k, candidate in enumerate(reply.replies)))
        for candidate, trial in zip(reply.replies, trials, strict=True):
            candidate.judge(trial["right"], trial["answer"], trial["kind"])
            if ask.candidates > 1:
                self._reward(candidate, trial)
        kept = keep_one(ask, chat, reply, self.continuation)
        return kept, trials[reply.replies.index(kept)]

    def _reward(self, reply: Reply, trial: Trial) -> None:
        ran = trial["kind"] in self.kinds[: self.failed]
        reply.reward(team=self.reward * trial["right"], process=self.format_reward * ran)


def fenced(text: str, labels: tuple[str, ...]) -> str | None:
    """Return the last fenced block with one of the labels, or else without any."""
    last = {True: "", False: ""}
    for block in blocks(text):
        if block.label in labels or not block.label:
            last[bool(block.label)] = block.text.strip()
    return last[True] or last[False] or None
