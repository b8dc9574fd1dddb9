"""Background compilation of the sampler's programs, and the time spent waiting for it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from marl_jax.devices.aot import AotCompiler

log = logging.getLogger(__name__)


class CompileClock:
    """Seconds that a thread has waited for the compiler. Any thread may read them."""

    def __init__(self):
        self._state: tuple[float, float | None] = (0.0, None)  # total, start of the current wait; replaced atomically

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time in this context."""
        total, started = self._state[0], time.monotonic()
        self._state = total, started
        try:
            yield
        finally:
            self._state = total + time.monotonic() - started, None

    @property
    def seconds(self) -> float:
        """Total so far, including the current wait."""
        total, started = self._state
        return total if started is None else total + time.monotonic() - started


class CompiledPrograms:
    """Programs that are compiled in the background, by key.

    Args:
        jobs: Key, jitted function and arguments of each program, most urgent first.
    """

    def __init__(self, jobs: Sequence[tuple[Hashable, Any, tuple]]):
        self._ahead, self._started, self._done = AotCompiler(), time.perf_counter(), 0
        self._programs: dict[Hashable, Future] = {}
        for key, program, arguments in jobs:
            self._programs[key] = self._ahead.submit(program, lambda a=arguments: a)
        for future in self._programs.values():
            future.add_done_callback(self._report)

    def get(self, key: Hashable) -> Callable | None:
        """Wait for a program and return it; None if the key is unknown."""
        future = self._programs.get(key)
        return None if future is None else future.result()

    def wait(self) -> None:
        """Wait until all programs are compiled."""
        for future in self._programs.values():
            future.result()

    def close(self) -> None:
        """Cancel compilations that have not been started."""
        self._ahead.close()

    def _report(self, done: Future) -> None:
        """Log the progress."""
        if not done.cancelled() and done.exception() is None:
            self._done += 1
            seconds = time.perf_counter() - self._started
            log.info("compiled %d of %d sampler programs after %.0f s", self._done, len(self._programs), seconds)
