"""A watchdog for the event loop, which interrupts episodes that block it."""

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
    """An error for an episode that computed or waited without `await`."""

    reason = "blocked"


class Watchdog:
    """A context manager that raises `Blocked` in task code that runs without a pause.

    It uses the alarm signal, so it only works in the main thread of a process; in other threads it does nothing.

    Args:
        limit: Maximum seconds without a pause.
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
        """Restart the alarm, because the event loop is responsive."""
        signal.setitimer(signal.ITIMER_REAL, self.limit, self.limit)
        self._next = self._loop.call_later(self.limit / 4, self._tick)

    def _alarm(self, number, frame):
        if self._active and _in_task_code(frame):
            raise Blocked(f"an episode blocked the event loop for {self.limit:g} s; use ask.verify for slow functions")


def _in_task_code(frame) -> bool:
    """Return whether the loop runs a step of an episode and not library code.

    Code of the event loop and of this package must not be interrupted. Below the frames of the loop, a step starts with
    `play_safely` or with a coroutine that the task runs concurrently.
    """
    if frame.f_code.co_filename.startswith(_OURS):
        return False
    first = None
    while frame is not None and not frame.f_code.co_filename.startswith(_ASYNCIO):
        first, frame = frame, frame.f_back
    if first is None or frame is None:
        return False  # in the loop itself, or in no loop at all
    return not first.f_code.co_filename.startswith(_OURS) or first.f_code.co_name == "play_safely"
