"""Episodes of a task, side by side in one event loop; whatever goes wrong in one of them ends that one only."""

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

from envs.tasks.replies import CallFailed, CallTimeout, EpisodeError, TaskError
from envs.tasks.task import Outcome, Session, Task
from envs.tasks.workers import Workers
from marl_jax.errors import RunError
from marl_jax.rollouts.host.conversation import Speaker, TokenChat, derive_seed
from marl_jax.rollouts.host.journal import Journal
from marl_jax.rollouts.host.watchdog import Blocked, Watchdog

log = logging.getLogger(__name__)
LOGGED_FAILURES = 3  # failed episodes of a rollout that are logged with their errors; all are counted
AT_ONCE = 64  # episodes that start before the first of them ask: the device begins while others start
LOOK = 0.1  # seconds between two looks at an episode whose time is almost up while the sampler compiles
GRACE = 1.0  # seconds that an episode which ran into its limit has to clean up behind it
END = "end"
"""The journal's name for how an episode ended."""

Server = Callable[[Mapping[str, Speaker]], contextlib.AbstractAsyncContextManager[Callable]]
"""From the speaker of each role to a server, as a context. What it gives opens a session by its seed, as a context
again: an `envs.tasks.task.Session` that also has `conversations()`."""


@dataclasses.dataclass(frozen=True)
class Job:
    """An episode to play: sample `sample` of the example at `position` of the data, in step `step`."""

    step: int
    position: int
    sample: int
    example: Any

    @property
    def id(self) -> str:
        """Its name in the journal."""
        return f"{self.position}.{self.sample}"


@dataclasses.dataclass
class Episode:
    """An episode that was played.

    chats    by seat and path, so that their order does not depend on who was answered first
    outcome  None if it failed
    failed   the reason, or None
    error    what was raised, in words
    rows     what a learner reads of it, when `collate.pack` has made them
    """

    job: Job
    chats: list[TokenChat]
    outcome: Outcome | None = None
    failed: str | None = None
    error: str = ""
    seconds: float = 0.0
    rows: list | None = None


class EpisodeAsk:
    """The `Ask` of one episode (see `envs.tasks.task`)."""

    def __init__(self, runner: EpisodeRunner, job: Job, journal: Journal):
        self._runner, self._job, self._journal = runner, job, journal
        self.chats: list[TokenChat] = []
        self.candidates = runner.candidates
        self._opened: Counter[int] = Counter()
        self._calls: Counter[str] = Counter()
        self._running: set[str] = set()
        self._sessions = 0
        self._closed = False
        self.random = random.Random(self.seed("random"))

    def chat(self, seat: int, system: str | None = None) -> TokenChat:
        """A new, empty chat with a seat."""
        seats = len(self._runner.task.roles)
        if isinstance(seat, bool) or not isinstance(seat, int) or not 0 <= seat < seats:
            raise TaskError(f"chat({seat!r}): expected a seat from 0 to {seats - 1}")
        if system is not None and not isinstance(system, str):
            raise TaskError(f"chat(system={system!r}): expected a text or None")
        number, self._opened[seat] = self._opened[seat], self._opened[seat] + 1
        return TokenChat(self, seat, system, (number,))

    async def verify(self, function: Callable, *args: Any, limit: float = 5.0, name: str | None = None) -> Any:
        """Calls a function in another process, with a time limit."""
        call = self._runner.workers.call(function, *args, limit=limit)
        return await self._record(name or function.__name__, call, _entry)

    async def record(self, name: str, call, limit: float | None = None) -> Any:
        """Awaits something outside the episode; on a replay its result is read from the journal."""
        if not inspect.isawaitable(call):
            raise TaskError(f"record({name!r}, {call!r}): expected something to await")
        return await self._record(name, call, functools.partial(_plain_entry, limit=limit))

    async def _record(self, name: str, call, make_entry: Callable) -> Any:
        """The result of a call, by its entry in the journal, which `make_entry(name, call)` makes if there is none."""
        if name in self._running or self._closed:
            _close(call)
            raise TaskError(
                "record: the episode is over" if self._closed
                else f"record: two calls named {name!r} at the same time; give them different names"
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
        """A session of the server, whose conversations are chats of the episode."""
        if self._runner.open_session is None or self._closed:
            raise TaskError(
                "session: the episode is over" if self._closed else "session: a task that calls it has serves = True"
            )
        number, self._sessions = self._sessions, self._sessions + 1
        async with self._runner.open_session(self.seed("session", number)) as session:
            try:
                yield session
            finally:
                self.chats += session.conversations()

    def seed(self, *parts: Any) -> int:
        """A seed that depends on the run, the step, the example, the sample and the given parts only."""
        job = self._job
        return derive_seed(self._runner.seed, job.step, job.position, job.sample, *parts)

    def close(self) -> None:
        """The episode is over: whatever of it still runs gets no more answers."""
        self._closed = True

    def speaker(self, seat: int, turn: int) -> Speaker:
        """Who answers for a seat at a turn."""
        if self._closed:
            raise TaskError("say: the episode is over")
        return self._runner.speakers[self._runner.seating(seat, turn)]


def _close(call) -> None:
    """Ends a coroutine that nobody will await."""
    if inspect.iscoroutine(call):
        call.close()


async def _plain_entry(name: str, call, limit: float | None) -> dict:
    """`_entry` of a call that may return anything and take for ever; its result is made what a reader would get."""

    async def plain():
        try:
            async with asyncio.timeout(limit):
                result = await call
        except TimeoutError as error:
            raise CallTimeout(str(error) or f"{name} took more than {limit or 0:g} s") from None
        return json.loads(json.dumps(result))

    return await _entry(name, plain())


async def _entry(name: str, call) -> dict:
    """What a call came to, as it is written down; its result is a JSON value."""
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
    """Plays episodes of a task.

    speakers         the policies
    seating          (seat, turn) -> number of the speaker
    seed             of the run
    candidates       K, for tasks that ask for several candidates per turn
    time_limit       seconds that an episode may take from its start, not counting `compile_seconds`
    compile_seconds  returns the seconds that the samplers have spent compiling so far
    block_limit      seconds for which an episode may keep the event loop to itself
    concurrency      episodes that are played at the same time
    workers          processes for verifiers; None: one for each CPU, from 2 to 16
    server           for tasks whose episodes are other programs: serves the roles while episodes are played
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
    ):
        self.task, self.speakers, self.seating, self.seed = task, tuple(speakers), seating, seed
        self.candidates, self.time_limit, self.concurrency = candidates, time_limit, concurrency
        self.compile_seconds, self.block_limit = compile_seconds, block_limit
        self.server, self.open_session = server, None
        self.workers = Workers(min(max(os.cpu_count() or 2, 2), 16) if workers is None else workers)
        self._loop = asyncio.new_event_loop()

    def play(
        self, jobs: Sequence[Job], journal: Journal | None = None, ended: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """Every job's episode, in their order; those that failed say so. Waits for the last one.

        ended  is called with each of them when it has ended, while others are being played
        """
        return self._loop.run_until_complete(self._play(jobs, journal or Journal(None), ended))

    def close(self) -> None:
        """Ends the verifiers' processes and the event loop."""
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
                    async with asyncio.TaskGroup() as group:  # an error of the run, such as a full disk, ends them all
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
        """Runs the server of a task that needs one; a session is of one policy for each role."""
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
        """Play one episode, whatever happens in it.

        How it ended is in the journal before the rollout is over. An episode that ended in time does so again when it
        is replayed, however slow the machine is by then.
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
                await asyncio.wait({play}, timeout=GRACE)  # it may have processes to end
        episode.chats = sorted(ask.chats, key=lambda chat: (chat.seat, chat.path))
        episode.seconds = time.monotonic() - started
        if ended is None:
            journal.note(job.id, END, {"failed": episode.failed, "error": episode.error})
        return episode

    async def _wait_in_time(self, play: asyncio.Future) -> None:
        """Wait for an episode until its time is up, to which the time that the samplers compile is added.

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
            f"the episode took longer than task.time_limit ({self.time_limit:g} s). Raise it, or shorten episodes, for "
            "example by lowering task.max_new_tokens"
        )


class TimedOut(EpisodeError):
    """An episode took longer than its time limit."""

    reason = "timeout"


class Nonsense(EpisodeError):
    """A task's `play` returned something that is no outcome."""

    reason = "nonsense"


async def play_safely(task: Task, ask: EpisodeAsk, example: Any) -> Outcome:
    """`task.play`, whose result is an outcome in order; `sys.exit` and cancelling itself are errors like others."""
    try:
        playing = task.play(ask, example)
        outcome = await playing if inspect.isawaitable(playing) else playing
    except SystemExit as error:
        raise RuntimeError(f"the task called sys.exit({error.code!r})") from error
    if not isinstance(outcome, Outcome):
        raise Nonsense(f"play returned {outcome!r:.200}; expected an Outcome")
    if problem := outcome.problem():
        raise Nonsense(f"play returned an Outcome whose {problem}")
    return outcome


def _result(play: asyncio.Future) -> Outcome:
    """Return the outcome of an episode that has ended, or raise its error."""
    if play.cancelled():
        raise RuntimeError("the task cancelled its own episode")
    return play.result()


def _in_words(error: Exception) -> str:
    """Type, text and the last place of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
