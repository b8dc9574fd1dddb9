"""Results of a thread, for event loops: those that come together wake a loop once.

`asyncio.wrap_future` and `call_soon_threadsafe` write to the loop's socket each time. A chunk of decoding ends hundreds
of answers, or has new tokens for them, and the thread that hands them out has the device waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any


class LoopFutures:
    """Carries results of `concurrent.futures`, and calls, into the event loops that want them, in their order."""

    def __init__(self):
        self._lock = threading.Lock()
        self._due: dict[asyncio.AbstractEventLoop, list[tuple[Callable, tuple]]] = {}
        self._holding = threading.local()

    async def wait_for(self, future: Future) -> Any:
        """The result of a future; where the coroutine is cancelled, so is the future."""
        loop = asyncio.get_running_loop()
        here = loop.create_future()
        future.add_done_callback(functools.partial(self.call, loop, _settle, here))
        try:
            return await here
        finally:
            if not future.done():
                future.cancel()

    def call(self, loop: asyncio.AbstractEventLoop, function: Callable, *args: Any) -> None:
        """Calls a function in an event loop; one that raises is reported there and holds up nobody."""
        with self._lock:
            self._due.setdefault(loop, []).append((function, args))
        if not getattr(self._holding, "now", False):
            self._wake()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What this thread finishes or calls in its scope wakes the loops at its end."""
        outer, self._holding.now = getattr(self._holding, "now", False), True
        try:
            yield
        finally:
            self._holding.now = outer
            if not outer:
                self._wake()

    def _wake(self) -> None:
        with self._lock:
            due, self._due = self._due, {}
        for loop, calls in due.items():
            with contextlib.suppress(RuntimeError):  # a loop that was closed: nobody waits
                loop.call_soon_threadsafe(_deliver, loop, calls)


def _deliver(loop: asyncio.AbstractEventLoop, calls: list[tuple[Callable, tuple]]) -> None:
    for function, args in calls:
        try:
            function(*args)
        except Exception as error:
            loop.call_exception_handler({"message": f"{function} failed", "exception": error})


def _settle(here: asyncio.Future, future: Future) -> None:
    if here.done():
        return
    if future.cancelled():
        here.cancel()
    elif (error := future.exception()) is not None:
        here.set_exception(error)
    else:
        here.set_result(future.result())
