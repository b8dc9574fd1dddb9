"""Concurrent episodes of a task in one event loop, isolated from the failures of others."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import json
import logging
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from envs.tasks.judges import Referee
from envs.tasks.replies import CallFailed, CallTimeout, EpisodeError, TaskError
from envs.tasks.task import Outcome, Session, Task
from envs.tasks.tools.tools import Tools
from envs.tasks.workers import Workers
from marl_jax.errors import RunError
from marl_jax.rollouts.host.conversation import RemoteLost, Speaker, TokenChat, derive_seed
from marl_jax.rollouts.host.journal import Journal
from marl_jax.rollouts.host.watchdog import Blocked, Watchdog
from marl_jax.sampling.conversation import Completion

log = logging.getLogger(__name__)
LOGGED_FAILURES = 3  # failed episodes per rollout whose errors are logged; all are counted
AT_ONCE = 64  # episodes to start before the first requests are sent, so that the device starts early
LOOK = 0.1  # seconds between checks of an episode close to its time limit, which compilation extends
GRACE = 1.0  # seconds that a timed-out episode has for cleaning up
END = "end"
"""Journal key for the end of an episode."""

Server = Callable[[Mapping[str, Speaker]], contextlib.AbstractAsyncContextManager[Callable]]
"""Maps the speaker of each role to a server, as a context manager. The server opens sessions by seed, also as context
managers. A session is an `envs.tasks.task.Session` with a method `conversations()`."""


@dataclasses.dataclass(frozen=True)
class Job:
    """An episode to play.

    Attributes:
        step: Training step.
        position: Position of the example in the data.
        sample: Number of the episode among those of the example.
        example: Example of the task.
    """

    step: int
    position: int
    sample: int
    example: Any

    @property
    def id(self) -> str:
        """Name of the episode in the journal."""
        return f"{self.position}.{self.sample}"


@dataclasses.dataclass
class Episode:
    """An episode that was played.

    Attributes:
        job: Job that was played.
        chats: Chats sorted by seat and path, so that their order does not depend on timing.
        outcome: Outcome, or None if the episode failed.
        failed: Reason of the failure, or None.
        error: Message of the error that was raised.
        seconds: Duration of the episode.
        rows: Rows for the learner, built by `collate.pack`.
    """

    job: Job
    chats: list[TokenChat]
    outcome: Outcome | None = None
    failed: str | None = None
    error: str = ""
    seconds: float = 0.0
    rows: list | None = None


class EpisodeAsk:
    """The `Ask` of one episode; see `envs.tasks.task`."""

    def __init__(self, runner: EpisodeRunner, job: Job, journal: Journal):
        self._runner, self._job, self._journal = runner, job, journal
        self.chats: list[TokenChat] = []
        self.candidates, self.step, self.judge = runner.candidates, job.step, runner.judge
        self._opened: Counter[int] = Counter()
        self._calls: Counter[str] = Counter()
        self._running: set[str] = set()
        self._sessions = 0
        self._closed = False
        self.random = random.Random(self.seed("random"))

    def chat(self, seat: int, system: str | None = None, tools: Tools | None = None) -> TokenChat:
        """Open a new, empty chat with a seat."""
        seats = len(self._runner.task.roles)
        if isinstance(seat, bool) or not isinstance(seat, int) or not 0 <= seat < seats:
            raise TaskError(f"chat({seat!r}): the seat must be an integer from 0 to {seats - 1}")
        if system is not None and not isinstance(system, str):
            raise TaskError(f"chat(system={system!r}): system must be a string or None")
        if not isinstance(tools, Tools | None):
            raise TaskError(f"chat(tools={tools!r:.200}): tools must be envs.tasks.tools.Tools or None")
        number, self._opened[seat] = self._opened[seat], self._opened[seat] + 1
        return TokenChat(self, seat, system, (number,), () if tools is None else tools.schemas)

    async def verify(self, function: Callable, *args: Any, limit: float = 5.0, name: str | None = None) -> Any:
        """Call a function in another process, with a time limit."""
        call = self._runner.workers.call(function, *args, limit=limit)
        return await self._record(name or function.__name__, call, _entry)

    async def record(self, name: str, call, limit: float | None = None) -> Any:
        """Await a call outside the episode; a replay reads its result from the journal."""
        if not inspect.isawaitable(call):
            raise TaskError(f"record({name!r}, {call!r}): the call must be awaitable")
        return await self._record(name, call, functools.partial(_plain_entry, limit=limit))

    async def remote_answers(self, name: str, call) -> list[Completion]:
        """Await completions of a remote model; a replay reads them from the journal."""
        result = await self._record(name, call, _remote_entry)
        if "failed" in result:
            raise RemoteLost(result["failed"])
        answers = []
        for tokens, finish in result["answers"]:
            zeros = np.zeros((len(tokens),), np.float32)
            answers.append(Completion(np.asarray(tokens, np.int32), zeros, finish, zeros.astype(np.int32)))
        return answers

    async def _record(self, name: str, call, make_entry: Callable) -> Any:
        """Return the result of a call from its journal entry.

        `make_entry(name, call)` makes the entry if there is none.
        """
        if name in self._running or self._closed:
            _close(call)
            raise TaskError(
                "record: the episode is over" if self._closed
                else f"record: two concurrent calls are named {name!r}; give them different names"
            )  # fmt: skip
        key = f"{name}#{self._calls[name]}"
        self._calls[name] += 1
        entry = self._journal.get(self._job.id, key)
        if entry is None:
            self._running.add(name)
            try:
                entry = await make_entry(name, call)
                await self._journal.write(self._job.id, key, entry)
            finally:
                self._running.discard(name)
        else:
            _close(call)
        if "timeout" in entry:
            raise CallTimeout(entry["timeout"])
        if "error" in entry:
            raise CallFailed(entry["error"])
        return entry["result"]

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Open a session of the server, whose conversations become chats of the episode."""
        if self._runner.open_session is None or self._closed:
            raise TaskError(
                "session: the episode is over" if self._closed else "session: the task must set serves = True"
            )
        number, self._sessions = self._sessions, self._sessions + 1
        async with self._runner.open_session(self.seed("session", number)) as session:
            try:
                yield session
            finally:
                self.chats += session.conversations()

    def seed(self, *parts: Any) -> int:
        """Return a seed that depends on run, step, example, sample and the given parts."""
        job = self._job
        return derive_seed(self._runner.seed, job.step, job.position, job.sample, *parts)

    def close(self) -> None:
        """End the episode: code that is still running gets no more completions."""
        self._closed = True

    def speaker(self, seat: int, turn: int) -> Speaker:
        """Return the policy that acts for a seat at a turn."""
        if self._closed:
            raise TaskError("say: the episode is over")
        return self._runner.speakers[self._runner.seating(seat, turn)]


def _close(call) -> None:
    """Close a coroutine that will not be awaited."""
    if inspect.iscoroutine(call):
        call.close()


async def _plain_entry(name: str, call, limit: float | None) -> dict:
    """Return the entry of a call that may return anything and may not end.

    The result is converted to the value that a reader of the journal gets.
    """

    async def plain():
        try:
            async with asyncio.timeout(limit):
                result = await call
        except TimeoutError as error:
            raise CallTimeout(str(error) or f"{name} took more than {limit or 0:g} s") from None
        return json.loads(json.dumps(result))

    return await _entry(name, plain())


async def _remote_entry(name: str, call) -> dict:
    """Return the journal entry of a request to a remote model."""
    try:
        return {"result": {"answers": [[one.tokens.tolist(), one.finish] for one in await call]}}
    except RemoteLost as error:
        return {"result": {"failed": str(error)}}


async def _entry(name: str, call) -> dict:
    """Return the journal entry of a call, whose result must be a JSON value."""
    try:
        return {"result": await call}
    except CallTimeout as error:
        return {"timeout": str(error)}
    except CallFailed as error:
        return {"error": str(error)}
    except (Blocked, RunError):
        raise
    except Exception as error:
        return {"error": f"{name}: {type(error).__name__}: {error}"}


class EpisodeRunner:
    """Runner of the episodes of a task.

    Args:
        task: Task to play.
        speakers: Policies.
        seating: Maps (seat, turn) to the number of a speaker.
        seed: Seed of the run.
        candidates: Number of candidates per turn, K, for tasks that use them.
        time_limit: Maximum seconds of an episode, not counting `compile_seconds`.
        compile_seconds: Returns the seconds that the samplers have spent compiling so far.
        block_limit: Maximum seconds for which an episode may block the event loop.
        concurrency: Maximum number of concurrent episodes.
        workers: Number of processes for verifiers; None uses one per CPU, from 2 to 16.
        server: Serves the roles to tasks whose episodes are other programs.
        judge: Judge that rewards the episodes, if any.
    """

    def __init__(
        self,
        task: Task,
        speakers: Sequence[Speaker],
        seating: Callable[[int, int], int] = lambda seat, turn: 0,
        *,
        seed: int = 0,
        candidates: int = 1,
        time_limit: float = 600.0,
        compile_seconds: Callable[[], float] = lambda: 0.0,
        block_limit: float = 10.0,
        concurrency: int = 4096,
        workers: int | None = None,
        server: Server | None = None,
        judge: Referee | None = None,
    ):
        self.judge = judge
        self.task, self.speakers, self.seating, self.seed = task, tuple(speakers), seating, seed
        self.candidates, self.time_limit, self.concurrency = candidates, time_limit, concurrency
        self.compile_seconds, self.block_limit = compile_seconds, block_limit
        self.server, self.open_session = server, None
        self.workers = Workers(min(max(os.cpu_count() or 2, 2), 16) if workers is None else workers)
        self._loop = asyncio.new_event_loop()

    def play(
        self, jobs: Sequence[Job], journal: Journal | None = None, ended: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """Play all jobs and return their episodes in order, including those that failed.

        Args:
            jobs: Episodes to play.
            journal: Journal of the rollout; None keeps none.
            ended: Called with each episode when it ends, while others are still running.
        """
        return self._loop.run_until_complete(self._play(jobs, journal or Journal(None), ended))

    def close(self) -> None:
        """Stop the verifier processes and the event loop."""
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self):
        await self.workers.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=GRACE)

    async def _play(self, jobs, journal, ended):
        places = asyncio.Semaphore(self.concurrency)

        async def one(job):
            async with places:
                episode = await self.episode(job, journal)
            if ended is not None:
                ended(episode)
            return episode

        async with self._serving():
            with Watchdog(self.block_limit):
                try:
                    async with asyncio.TaskGroup() as group:  # an error of the run, such as a full disk, cancels all
                        tasks = []
                        for job in jobs:
                            tasks.append(group.create_task(one(job)))
                            if len(tasks) % AT_ONCE == 0:
                                await asyncio.sleep(0)
                except BaseExceptionGroup as errors:
                    raise errors.exceptions[0] from None
                await journal.flush()
        episodes = [task.result() for task in tasks]
        for episode in [e for e in episodes if e.failed][:LOGGED_FAILURES]:
            log.warning("episode %s failed (%s): %s", episode.job.id, episode.failed, episode.error)
        return episodes

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Run the server of a task that needs one, with one policy per role."""
        if self.server is None:
            yield
            return
        speakers = {role: self.speakers[self.seating(seat, 0)] for seat, role in enumerate(self.task.roles)}
        async with self.server(speakers) as self.open_session:
            try:
                yield
            finally:
                self.open_session = None

    async def episode(self, job: Job, journal: Journal) -> Episode:
        """Play one episode and catch its errors.

        The end of the episode is in the journal before the rollout is over. An episode that ended in time also does so
        when it is replayed, however slow the machine is then.
        """
        ended = journal.get(job.id, END)
        if ended is not None and ended["failed"]:
            return Episode(job, [], failed=ended["failed"], error=ended["error"])
        ask, episode, started = EpisodeAsk(self, job, journal), Episode(job, []), time.monotonic()
        play = asyncio.ensure_future(play_safely(self.task, ask, job.example))
        try:
            await (asyncio.wait({play}) if ended is not None else self._wait_in_time(play))
            episode.outcome = _result(play)
        except RunError:
            raise
        except Exception as error:
            episode.failed, episode.error = getattr(error, "reason", "error"), _in_words(error)
        finally:
            ask.close()
            if play.cancel():
                await asyncio.wait({play}, timeout=GRACE)  # it may have processes to stop
        episode.chats = sorted(ask.chats, key=lambda chat: (chat.seat, chat.path))
        episode.seconds = time.monotonic() - started
        if ended is None:
            journal.note(job.id, END, {"failed": episode.failed, "error": episode.error})
        return episode

    async def _wait_in_time(self, play: asyncio.Future) -> None:
        """Wait for an episode until its time is up, not counting the time of compilation.

        Raises:
            TimedOut: The episode has taken longer than `time_limit`.
        """
        started, compiled, left = time.monotonic(), self.compile_seconds(), self.time_limit
        while left > 0:
            await asyncio.wait({play}, timeout=left)
            if play.done():
                return
            left = self.time_limit + self.compile_seconds() - compiled - (time.monotonic() - started)
            left = max(left, LOOK) if left > 0 else left
        raise TimedOut(
            f"the episode took longer than task.time_limit ({self.time_limit:g} s). Raise it or shorten episodes, for "
            "example by lowering task.max_new_tokens"
        )


class TimedOut(EpisodeError):
    """An error for an episode that took longer than its time limit."""

    reason = "timeout"


class Nonsense(EpisodeError):
    """An error for a task whose `play` did not return a valid outcome."""

    reason = "nonsense"


async def play_safely(task: Task, ask: EpisodeAsk, example: Any) -> Outcome:
    """Run `task.play` and check its outcome.

    `sys.exit` and cancellation by the task are treated like other errors.
    """
    try:
        playing = task.play(ask, example)
        outcome = await playing if inspect.isawaitable(playing) else playing
    except SystemExit as error:
        raise RuntimeError(f"the task called sys.exit({error.code!r})") from error
    if not isinstance(outcome, Outcome):
        raise Nonsense(f"play returned {outcome!r:.200}, but must return an Outcome")
    if problem := outcome.problem():
        raise Nonsense(f"play returned an Outcome whose {problem}")
    return outcome


def _result(play: asyncio.Future) -> Outcome:
    """Return the outcome of an episode that has ended, or raise its error."""
    if play.cancelled():
        raise RuntimeError("the task cancelled its own episode")
    return play.result()


def _in_words(error: Exception) -> str:
    """Return the type, the message and the last location of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
