"""Host tasks with `reset` and `step`: the caller writes the replies.

    with TaskEnv("arithmetic") as env:
        messages, info = env.reset(seed=0)
        while True:
            messages, reward, terminated, truncated, info = env.step(my_model(messages))
            if terminated or truncated:
                break

A task is a coroutine that waits for replies. It runs in the event loop of a separate thread, and only while `reset` or
`step` are called, so an environment also works in a notebook. Neither JAX nor Gymnasium is needed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from envs.tasks import make_task
from envs.tasks.replies import EpisodeError
from envs.tasks.scripted import ScriptedAsk
from envs.tasks.task import Task, check_split
from envs.tasks.workers import Workers

Messages = list[dict[str, str]]


class _Turn(NamedTuple):
    """A reply that the task waits for: seat, messages so far, future."""

    seat: int
    messages: Messages
    reply: asyncio.Future[str]


class _Ask(ScriptedAsk):
    """An `Ask` whose verifiers run in other processes."""

    def __init__(self, task: Task, answer: Callable, workers: Workers, seed: int):
        super().__init__(task, answer, seed=seed)
        self._workers = workers

    async def verify(self, function: Callable, *args: Any, limit: float = 5.0, name: str | None = None) -> Any:
        """Call a function in another process, with a time limit."""
        return await self._workers.call(function, *args, limit=limit)


class TaskEnv:
    """A host task with Gymnasium's `reset` and `step`.

    An observation is the conversation to continue, a list of `{"role", "content"}` messages, and an action is the reply
    as text. `info["role"]` names who is to reply. If several are, as in a debate, they follow one after the other. A
    step returns the new reward of the role that replied; `info["rewards"]` has the new rewards of all roles.
    At the end, the observation is empty and `info["outcome"]` is the task's `Outcome`. An episode that an error ends,
    such as a verifier that takes too long, is truncated, with the message in `info["error"]`.

    Args:
        task: The task, or its name.
        split: Split of the examples: train, validation or test.
        weights: Weights of team, agent and process reward.
        **params: Parameters of the task, if it is given by name.
    """

    def __init__(
        self, task: Task | str, split: str = "train", weights: Sequence[float] = (1.0, 1.0, 1.0), **params: Any
    ):
        self.task = make_task(task, **params) if isinstance(task, str) else task
        if self.task.serves:
            raise ValueError(
                f"{type(self.task).__name__} runs programs that call the models over HTTP, so it has no step. Serve a "
                "model and open a session instead (docs/serving.md)."
            )
        check_split(split)
        self.task.prepare()
        self.examples, self._weights = self.task.examples(split), tuple(weights)
        self._random = random.Random()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="task-env")
        self._loop = asyncio.new_event_loop()
        self._workers = Workers()
        self._episode: asyncio.Task | None = None
        self._turns: list[_Turn] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Messages, dict[str, Any]]:
        """Start an episode and return the first conversation.

        Args:
            seed: Seed of the choice of examples and of the episodes.
            options: {"example": i} plays the i-th example of the split.
        """
        if seed is not None:
            self._random = random.Random(seed)
        drawn = self._random.randrange(len(self.examples))
        self._index = (options or {}).get("example", drawn)
        self._paid = dict.fromkeys(self.task.roles, 0.0)
        self._ask = _Ask(self.task, self._wait, self._workers, self._random.getrandbits(32))
        self._run(self._started(self.examples[self._index]))
        return self._seen()

    def step(self, reply: str) -> tuple[Messages, float, bool, bool, dict[str, Any]]:
        """Reply as the role of the last observation, and wait for the next turn."""
        if not isinstance(reply, str):
            raise TypeError(f"reply is {reply!r}, but must be a string")
        if not self._turns:
            raise RuntimeError("the episode is over or has not begun; call reset")
        role = self.task.roles[self._turns[0].seat]
        self._run(self._answered(self._turns.pop(0), reply))
        messages, info = self._seen()
        over = not self._turns
        return messages, info["rewards"][role], over and "error" not in info, over and "error" in info, info

    def close(self) -> None:
        """Cancel the episode and end the processes of its verifiers."""
        if not self._loop.is_closed():
            self._run(self._ended())
            self._run(self._workers.close())
            self._thread.shutdown()
            self._loop.close()

    def __enter__(self) -> TaskEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the thread of the event loop

    def _run(self, coroutine: Coroutine) -> None:
        self._thread.submit(self._loop.run_until_complete, coroutine).result()

    def _wait(self, seat: int, messages: Messages, _: int) -> asyncio.Future[str]:
        turn = _Turn(seat, [dict(message) for message in messages], self._loop.create_future())
        self._turns.append(turn)
        self._changed.set()
        return turn.reply

    async def _started(self, example: Any) -> None:
        await self._ended()
        self._changed = asyncio.Event()
        self._episode = asyncio.ensure_future(self.task.play(self._ask, example))
        self._episode.add_done_callback(lambda _: self._changed.set())
        await self._settled()

    async def _answered(self, turn: _Turn, reply: str) -> None:
        turn.reply.set_result(reply)
        for _ in range(8):  # let the task read the reply before the next one is asked for
            await asyncio.sleep(0)
        await self._settled()

    async def _settled(self) -> None:
        """Wait until the task needs a reply or has ended."""
        assert self._episode is not None
        while not self._turns and not self._episode.done():
            self._changed.clear()
            await self._changed.wait()

    async def _ended(self) -> None:
        self._turns.clear()
        if self._episode is not None:
            self._episode.cancel()
            await asyncio.gather(self._episode, return_exceptions=True)

    # Results

    def _seen(self) -> tuple[Messages, dict[str, Any]]:
        info: dict[str, Any] = {"example": self._index, "rewards": self._new_rewards()}
        if self._turns:
            turn = self._turns[0]
            return turn.messages, info | {"role": self.task.roles[turn.seat]}
        assert self._episode is not None
        try:
            return [], info | {"outcome": self._episode.result()}
        except EpisodeError as error:
            return [], info | {"error": f"{error.reason}: {error}"}

    def _new_rewards(self) -> dict[str, float]:
        """Return the rewards of every role since the last call."""
        team, agent, process = self._weights
        shared = sum(reply.rewards.team for _, _, reply in self._ask.replies)
        total = dict.fromkeys(self.task.roles, team * shared)
        for seat, _, reply in self._ask.replies:
            total[self.task.roles[seat]] += agent * reply.rewards.agent + process * reply.rewards.process
        new = {role: amount - self._paid[role] for role, amount in total.items()}
        self._paid = total
        return new
