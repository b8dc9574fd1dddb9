"""What a task is, and what it works with: `Task`, `Ask`, `Reply`, `Outcome` and the errors of an episode.

    class Echo(Task):
        roles = ("speaker",)

        def examples(self, part):
            return {"train": ["red", "green"], "validation": ["white"], "test": ["blue"]}[part]

        async def play(self, ask, example):
            chat = ask.chat(0, system="Repeat the word.")
            reply = await chat.say(example)
            right = reply.text.strip() == example
            reply.reward(team=float(right))
            return Outcome(success=right)

An episode is one call of `play`. It runs beside hundreds of others in one event loop, so it never blocks: it awaits
replies, and leaves everything that takes time to `ask.verify` (a function, in a process of its own) and `ask.record`
(a coroutine, such as a call to a server). What these two return is written down before the episode continues, so that
an interrupted run repeats the same episodes; whatever else a task does must follow from the example, the replies and
`ask.random`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from envs.tasks.chat import Chat
from envs.tasks.workflow.graph import Workflow

SPLITS = ("train", "validation", "test")
"""The parts of a task's examples, which share none: one to learn from, one to choose by, one to report."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How an episode ended.

    success  share of the task that was achieved, 0 to 1; a bool will do
    metrics  further numbers, averaged over episodes
    reason   why it ended, for counting: "agreed", "turns" …
    answer   what the episode came to, to be voted on: equal texts are equal answers; None abstains
    score    how good the task itself holds the outcome to be, without the known answer; chooses the best of several
    """

    success: float
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = "done"
    answer: str | None = None
    score: float | None = None

    def problem(self) -> str | None:
        """What is wrong with the values, or None."""
        numbers = {"success": self.success, **{f"metrics[{k!r}]": v for k, v in dict(self.metrics).items()}}
        numbers |= {} if self.score is None else {"score": self.score}
        for name, value in numbers.items():
            try:
                fine = not isinstance(value, str) and math.isfinite(value)
            except TypeError:
                fine = False
            if not fine:
                return f"{name} is {value!r}; expected a finite number"
        if not 0 <= self.success <= 1:
            return f"success is {self.success!r}; expected 0 to 1"
        if not isinstance(self.answer, str | None):
            return f"answer is {self.answer!r}; expected a text or None"
        return None if isinstance(self.reason, str) else f"reason is {self.reason!r}; expected a text"


# ---------------------------------------------------------------------------------------------------- protocols


class Session(Protocol):
    """What a program needs to ask the models over HTTP, and what has come of it.

    url      of an OpenAI-compatible API, for OPENAI_BASE_URL
    key      for OPENAI_API_KEY: all calls with it belong to this episode
    answers  how many answers were given so far
    paid     team rewards so far, posted by the program or given by `reward`; None where there were none at all
    """

    url: str
    key: str

    @property
    def answers(self) -> int: ...

    @property
    def paid(self) -> float | None: ...

    async def reward(self, amount: float, role: str | None = None) -> None:
        """Pays the team for the last answer, or a role for its own last one."""
        ...


class Ask(Protocol):
    """An episode's way to the seats and to everything outside.

    candidates  K of the run: how many candidates per turn the algorithm wants; 1 for most
    random      a generator that is seeded for this episode
    """

    candidates: int
    random: random.Random

    def chat(self, seat: int, system: str | None = None) -> Chat:
        """A new, empty chat with a seat. Chats that are opened side by side are opened before the first await."""
        ...

    async def verify(self, function: Callable, *args: Any, limit: float = 5.0, name: str | None = None) -> Any:
        """Calls a function of a module in another process; arguments and result are JSON values.

        Raises `CallTimeout` after `limit` seconds, when the process is killed, and `CallFailed` if the function raises.
        `name` tells calls apart that run at the same time; otherwise it is the name of the function.
        """
        ...

    async def record(self, name: str, call: Coroutine | Awaitable, limit: float | None = None) -> Any:
        """Awaits something whose result does not follow from the episode, such as a tool or a judge.

        The result is a JSON value and is written down; when the rollout is repeated, it is read, not computed. Raises
        as `verify` does. Calls of the same name must not overlap.
        """
        ...

    def session(self) -> AbstractAsyncContextManager[Session]:
        """A session of a server in which roles are models, for episodes that are other programs.

        When it is left, calls under way are cancelled and later ones refused, and what was said becomes the episode's
        chats. Only for tasks with `serves = True`.
        """
        ...


# ----------------------------------------------------------------------------------------------------------- task


class Task:
    """Base class of tasks: who takes part, on what examples, and how an episode is played.

    Subclasses set `roles` and implement `examples` and `play`. The other members have defaults.

    Attributes:
        roles: Names of the seats.
        serves: Whether `ask.session()` is available, for episodes that are programs of their own.
        concurrency: Maximum number of episodes that are played at the same time.
        graph: The workflow that plays the task, if there is one. Reports show a drawing of it.
    """

    roles: tuple[str, ...]
    serves: bool = False
    concurrency: int = 4096
    graph: Workflow | None = None

    def examples(self, part: str) -> Sequence[Any]:
        """Return the examples of one of `SPLITS`, always the same ones in the same order."""
        raise NotImplementedError

    async def play(self, ask: Ask, example: Any) -> Outcome:
        """Play one episode. Rewards are put on the replies they belong to."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare for the first episode; a RuntimeError, such as a missing sandbox, ends the run with its text."""

    def gold_reply(self, example: Any) -> str | None:
        """Return a correct reply in the form that the task asks for, or None if the dataset has none."""
        return None

    def for_evaluation(self) -> Task:
        """Return the task as evaluations play it. It may have more or fewer seats; extra seats reuse the policies."""
        return self


def check_split(part: str) -> None:
    """Refuses a part that does not exist."""
    if part not in SPLITS:
        raise ValueError(f"part is {part!r}; accepted: {', '.join(SPLITS)}")
