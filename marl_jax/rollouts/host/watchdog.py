"""A watchdog for the event loop: an episode that blocks it is interrupted, so that it costs itself and nobody else."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

from envs.tasks import workers
from envs.tasks.replies import EpisodeError

_OURS = (str(Path(__file__).resolve().parents[2]), str(Path(workers.__file__).resolve()))
_ASYNCIO = str(Path(asyncio.__file__).resolve().parent)


class Blocked(EpisodeError):
    """An episode kept the event loop to itself: it computed or waited without `await`."""

    reason = "blocked"


class Watchdog:
    """While it is entered, `Blocked` is raised in code of a task that runs for `limit` seconds without a pause.

    It uses the alarm signal, so it watches only in the main thread of a process; elsewhere it does nothing.
    """

    def __init__(self, limit: float):
        self.limit = limit

    def __enter__(self):
        self._active = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        if self._active:
            self._loop = asyncio.get_running_loop()
            self._before = signal.signal(signal.SIGALRM, self._alarm)
            self._tick()
        return self

    def __exit__(self, *exc):
        if self._active:
            self._active = False
            self._next.cancel()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _tick(self):
        """The loop is alive: the alarm is put off."""
        signal.setitimer(signal.ITIMER_REAL, self.limit, self.limit)
        self._next = self._loop.call_later(self.limit / 4, self._tick)

    def _alarm(self, number, frame):
        if self._active and _in_task_code(frame):
            raise Blocked(f"an episode did not pause for {self.limit:g} s; use ask.verify for what takes time")


def _in_task_code(frame) -> bool:
    """Whether the loop is in a step of an episode, and not in its own code or ours, which must not be interrupted.

    Below the loop's frames, a step begins with `play_safely` or with a coroutine that the task runs beside it.
    """
    if frame.f_code.co_filename.startswith(_OURS):
        return False
    first = None
    while frame is not None and not frame.f_code.co_filename.startswith(_ASYNCIO):
        first, frame = frame, frame.f_back
    if first is None or frame is None:
        return False  # in the loop itself, or in no loop at all
    return not first.f_code.co_filename.startswith(_OURS) or first.f_code.co_name == "play_safely"
