"""Futures of a thread, awaited in event loops: those that are done together wake a loop once.

`asyncio.wrap_future` writes to the loop's socket for every future. A chunk of decoding ends hundreds of answers, and
the thread that hands them out has the device waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any


class LoopFutures:
    """Carries results of `concurrent.futures` into the event loops in which they are awaited."""

    def __init__(self):
        self._lock = threading.Lock()
        self._done: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future, Future]]] = {}
        self._holding = threading.local()

    async def wait_for(self, future: Future) -> Any:
        """The result of a future; where the coroutine is cancelled, so is the future."""
        loop = asyncio.get_running_loop()
        here = loop.create_future()
        future.add_done_callback(functools.partial(self._add, loop, here))
        try:
            return await here
        finally:
            if not future.done():
                future.cancel()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What this thread finishes in its scope wakes the loops at its end."""
        self._holding.now = True
        try:
            yield
        finally:
            self._holding.now = False
            self._wake()

    def _add(self, loop: asyncio.AbstractEventLoop, here: asyncio.Future, future: Future) -> None:
        with self._lock:
            self._done.setdefault(loop, []).append((here, future))
        if not getattr(self._holding, "now", False):
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            done, self._done = self._done, {}
        for loop, pairs in done.items():
            with contextlib.suppress(RuntimeError):  # a loop that was closed: nobody waits
                loop.call_soon_threadsafe(_deliver, pairs)


def _deliver(pairs: list[tuple[asyncio.Future, Future]]) -> None:
    for here, future in pairs:
        if here.done():
            continue
        if future.cancelled():
            here.cancel()
        elif (error := future.exception()) is not None:
            here.set_exception(error)
        else:
            here.set_result(future.result())
