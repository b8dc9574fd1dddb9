"""Results of a thread for event loops, delivered with one wake-up per loop.

`asyncio.wrap_future` and `call_soon_threadsafe` write to the loop's socket each time. A decoding chunk finishes
hundreds of completions, or has new tokens for them, and the device waits for the thread that delivers them.
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
    """Delivers results of `concurrent.futures`, and calls, to event loops in order."""

    def __init__(self):
        self._lock = threading.Lock()
        self._due: dict[asyncio.AbstractEventLoop, list[tuple[Callable, tuple]]] = {}
        self._holding = threading.local()

    async def wait_for(self, future: Future) -> Any:
        """Wait for a future in a coroutine; cancelling the coroutine cancels the future."""
        loop = asyncio.get_running_loop()
        here = loop.create_future()
        future.add_done_callback(functools.partial(self.call, loop, _settle, here))
        try:
            return await here
        finally:
            if not future.done():
                future.cancel()

    def call(self, loop: asyncio.AbstractEventLoop, function: Callable, *args: Any) -> None:
        """Call a function in an event loop.

        Exceptions are reported to the loop and do not affect other calls.
        """
        with self._lock:
            self._due.setdefault(loop, []).append((function, args))
        if not getattr(self._holding, "now", False):
            self._wake()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Delay all results and calls of this thread until the end of the context."""
        outer, self._holding.now = getattr(self._holding, "now", False), True
        try:
            yield
        finally:
            self._holding.now = outer
            if not outer:
                self._wake()

    def _wake(self) -> None:
        """Deliver everything that is due, with one wake-up per loop."""
        with self._lock:
            due, self._due = self._due, {}
        for loop, calls in due.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(_deliver, loop, calls)


def _deliver(loop: asyncio.AbstractEventLoop, calls: list[tuple[Callable, tuple]]) -> None:
    """Run calls in the event loop."""
    for function, args in calls:
        try:
            function(*args)
        except Exception as error:
            loop.call_exception_handler({"message": f"{function} failed", "exception": error})


def _settle(here: asyncio.Future, future: Future) -> None:
    """Copy the result of a thread's future to one of the event loop."""
    if here.done():
        return
    if future.cancelled():
        here.cancel()
    elif (error := future.exception()) is not None:
        here.set_exception(error)
    else:
        here.set_result(future.result())
