"""Interfaces of tasks: `Task`, `Ask`, `Outcome` and `Session`.

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

An episode is one call of `play`. Hundreds of episodes share one event loop, so `play` must not block: it awaits
replies, and leaves slow work to `ask.verify` (a function, in another process) and `ask.record` (a coroutine, such as a
call to a server). The results of these two are recorded before the episode continues, so that an interrupted run
repeats the same episodes. Everything else in an episode must depend only on the example, the replies and `ask.random`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from envs.tasks.chat import Chat
from envs.tasks.judges.referee import Referee
from envs.tasks.tools.tools import Tools
from envs.tasks.workflow.graph import Workflow

SPLITS = ("train", "validation", "test")
"""Disjoint splits of a task's examples: for training, for model selection and for reporting."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of an episode.

    Attributes:
        success: Achieved fraction of the task, 0 to 1; a bool also works.
        metrics: Further numbers, averaged over episodes.
        reason: Why the episode ended, for counting: "agreed", "turns" …
        answer: Final answer, for voting. Equal strings are equal answers; None abstains.
        score: Quality of the outcome as the task estimates it without the known answer. Selects the best of several.
    """

    success: float
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = "done"
    answer: str | None = None
    score: float | None = None

    def problem(self) -> str | None:
        """Return a description of the first invalid value, or None."""
        numbers = {"success": self.success, **{f"metrics[{k!r}]": v for k, v in dict(self.metrics).items()}}
        numbers |= {} if self.score is None else {"score": self.score}
        for name, value in numbers.items():
            try:
                fine = not isinstance(value, str) and math.isfinite(value)
            except TypeError:
                fine = False
            if not fine:
                return f"{name} is {value!r}, but must be a finite number"
        if not 0 <= self.success <= 1:
            return f"success is {self.success!r}, but must be 0 to 1"
        if not isinstance(self.answer, str | None):
            return f"answer is {self.answer!r}, but must be a string or None"
        return None if isinstance(self.reason, str) else f"reason is {self.reason!r}, but must be a string"


# ----------------------------------------------------------------------------------------------------------- protocols


class Session(Protocol):
    """A session in which a program calls the models over HTTP.

    Attributes:
        url: Address of an OpenAI-compatible API, for OPENAI_BASE_URL.
        key: Key for OPENAI_API_KEY. All calls with it belong to this episode.
    """

    url: str
    key: str

    @property
    def answers(self) -> int:
        """Number of completions so far."""
        ...

    @property
    def paid(self) -> float | None:
        """Sum of the team rewards so far, or None if there were none."""
        ...

    async def reward(self, amount: float, role: str | None = None) -> None:
        """Reward the team for the last completion, or a role for its own last one."""
        ...


class Ask(Protocol):
    """Access of an episode to its seats and to everything outside.

    Attributes:
        candidates: Number of candidates per turn that the algorithm wants (K); 1 for most algorithms.
        random: Random number generator, seeded for this episode.
        step: Training step, for context agents that change over time; 0 in evaluations.
        judge: Judge that rewards the episode (`envs.tasks.judges.referee`); None in evaluations, and by default.
    """

    candidates: int
    random: random.Random
    step: int
    judge: Referee | None

    def chat(self, seat: int, system: str | None = None, tools: Tools | None = None) -> Chat:
        """Open a new, empty chat with a seat.

        Chats that are used concurrently must be opened before the first await.

        Args:
            seat: Index of the seat.
            system: System message.
            tools: Tools that the seat may call; the prompt describes them, and `reply.calls` has its calls.
        """
        ...

    async def verify(self, function: Callable, *args: Any, limit: float = 5.0, name: str | None = None) -> Any:
        """Call a module-level function in another process.

        Args:
            function: The function.
            *args: Its arguments, which are JSON values, as is the result.
            limit: Time limit in seconds, after which the process is killed.
            name: Distinguishes concurrent calls; the name of the function by default.

        Raises:
            CallTimeout: The call exceeded the time limit.
            CallFailed: The function raised.
        """
        ...

    async def record(self, name: str, call: Coroutine | Awaitable, limit: float | None = None) -> Any:
        """Await a result that does not follow from the episode, such as a tool call.

        The result is a JSON value. It is recorded, and read back when the rollout is repeated. Calls with the same name
        must not overlap. Raises the same errors as `verify`.
        """
        ...

    def session(self) -> AbstractAsyncContextManager[Session]:
        """Open a session in which another program calls the roles as models.

        When the session closes, pending calls are cancelled and later ones rejected, and its conversations become the
        episode's chats. The task must have `serves = True`.
        """
        ...


# ---------------------------------------------------------------------------------------------------------------- task


class Task:
    """Base class of tasks: roles, examples, and how an episode is played.

    Subclasses set `roles` and implement `examples` and `play`. The other members have defaults.

    Attributes:
        roles: Names of the seats.
        serves: Whether `ask.session()` is available, for episodes that run other programs.
        concurrency: Maximum number of episodes that are played at the same time.
        forks: Whether several candidates per turn are possible. False for tools that cannot be forked.
        graph: The workflow that plays the task, if there is one. Reports show a drawing of it.
    """

    roles: tuple[str, ...]
    serves: bool = False
    concurrency: int = 4096
    forks: bool = True
    graph: Workflow | None = None

    @property
    def contests(self) -> tuple[str, ...]:
        """Texts that a judge can compare the learner's with: "reference", "partner", or none."""
        return ()

    def examples(self, part: str) -> Sequence[Any]:
        """Return the examples of one of `SPLITS`, always the same ones in the same order."""
        raise NotImplementedError

    async def play(self, ask: Ask, example: Any) -> Outcome:
        """Play one episode and add rewards to its replies."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare for the first episode.

        A RuntimeError, for example because of a missing sandbox, ends the run with its message.
        """

    def gold_reply(self, example: Any) -> str | None:
        """Return a correct reply in the task's format, or None if the dataset has none."""
        return None

    def for_evaluation(self) -> Task:
        """Return the task to use in evaluations.

        It may have more or fewer seats; extra seats reuse the policies.
        """
        return self


def check_params(task: Task, choices: Mapping[str, Sequence[str]], ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise a ValueError for the first parameter of a task that is out of range.

    Args:
        task: The task.
        choices: Possible values by parameter.
        ranges: Lowest and highest value by parameter.
    """
    for name, accepted in choices.items():
        if getattr(task, name) not in accepted:
            raise ValueError(f"{name} is {getattr(task, name)!r}, but must be one of: {', '.join(accepted)}")
    for name, (low, high) in ranges.items():
        if not low <= getattr(task, name) <= high:
            raise ValueError(f"{name} is {getattr(task, name)}, but must be between {low} and {high}")


def check_split(part: str) -> None:
    """Raise a ValueError if a split does not exist."""
    if part not in SPLITS:
        raise ValueError(f"part is {part!r}, but must be one of: {', '.join(SPLITS)}")
