"""Scripted episodes, in which functions reply instead of models, for testing tasks."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from envs.tasks.chat import Chat
from envs.tasks.judges import Referee
from envs.tasks.replies import CallFailed, CallTimeout, EpisodeError, Reply, TaskError
from envs.tasks.task import Outcome, Session, Task
from envs.tasks.tools.tools import Tools

Answering = Callable[[int, list[dict[str, str]], int], str | Reply | Awaitable[str | Reply]]
"""(seat, messages so far, index of the candidate) -> reply. A reply with tool calls is a `Reply`."""


class ScriptedChat(Chat):
    """A chat stored as a list of `{"role", "content"}` messages."""

    def __init__(
        self, ask: ScriptedAsk, seat: int, messages: Sequence[dict[str, str]], path: tuple[int, ...] = (0,),
        schemas: Sequence[Mapping[str, Any]] = (),
    ):  # fmt: skip
        super().__init__(seat, path, schemas)
        self.messages, self._ask, self._texts = [dict(m) for m in messages], ask, ()

    async def _answer(self, text, n, sampling, label):
        results = isinstance(text, tuple)
        self.messages += [{"role": "tool" if results else "user", "content": t} for t in (text if results else (text,))]
        await asyncio.sleep(0)
        given = [self._ask.answer(self.seat, self.messages, k) for k in range(n)]
        given = [await one if inspect.isawaitable(one) else one for one in given]
        replies = [one if isinstance(one, Reply) else Reply(one) for one in given]
        self._texts = [reply.text for reply in replies]
        self._ask.replies += [(self.seat, self.turn, reply) for reply in replies]
        return replies

    def _keep(self, k):
        self.messages.append({"role": "assistant", "content": self._texts[k]})

    def _copy(self, path):
        return ScriptedChat(self._ask, self.seat, self.messages, path, self.schemas)

    def shorten(self, text, tokens):
        """Return the beginning of a text, taking a character for a token."""
        return text[:tokens]


class ScriptedAsk:
    """An `Ask` whose seats reply by a function.

    Verifiers are called in the same process, where no time limit can interrupt them.

    Attributes:
        replies: (seat, turn, reply) of every reply, including all candidates.
    """

    def __init__(
        self,
        task: Task,
        answer: Answering,
        candidates: int = 1,
        seed: int = 0,
        step: int = 0,
        judge: Referee | None = None,
    ):
        self.task, self.answer, self.candidates, self.random = task, answer, candidates, random.Random(seed)
        self.step, self.judge = step, judge
        self.replies: list[tuple[int, int, Reply]] = []

    def chat(self, seat: int, system: str | None = None, tools: Tools | None = None) -> ScriptedChat:
        """Open a new chat with a seat."""
        if not 0 <= seat < len(self.task.roles):
            raise TaskError(f"chat: seat is {seat!r}, but must be 0 to {len(self.task.roles) - 1}")
        messages = [] if system is None else [{"role": "system", "content": system}]
        return ScriptedChat(self, seat, messages, schemas=() if tools is None else tools.schemas)

    async def verify(self, function: Callable, *args: Any, limit: float = 5.0, name: str | None = None) -> Any:
        """Call a function and return its result."""

        async def call():
            return function(*args)

        return await self.record(name or function.__name__, call(), limit)

    async def record(self, name: str, call, limit: float | None = None) -> Any:
        """Await a coroutine and return its result."""
        try:
            async with asyncio.timeout(limit):
                return await call if inspect.isawaitable(call) else call
        except EpisodeError:
            raise
        except TimeoutError:
            raise CallTimeout(f"{name} took more than {limit:g} s") from None
        except Exception as error:
            raise CallFailed(f"{name}: {type(error).__name__}: {error}") from error

    def session(self) -> AbstractAsyncContextManager[Session]:
        """Raise `TaskError`: scripted episodes have no server."""
        raise TaskError("session: scripted episodes have no server")


def play(
    task: Task, example: Any, answer: Answering, candidates: int = 1, step: int = 0, judge: Referee | None = None
) -> tuple[Outcome, ScriptedAsk]:
    """Play one episode in which a function replies for all seats."""
    ask = ScriptedAsk(task, answer, candidates, step=step, judge=judge)
    return asyncio.run(task.play(ask, example)), ask
