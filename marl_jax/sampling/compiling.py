"""Background compilation of the sampler's programs, and the time that the sampler spends waiting for it."""

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
    """Seconds that one thread at a time has waited for the compiler; any thread may read them."""

    def __init__(self):
        self._state: tuple[float, float | None] = (0.0, None)  # total, start of the current wait; replaced at once

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
        """The total so far, including the current wait."""
        total, started = self._state
        return total if started is None else total + time.monotonic() - started


class CompiledPrograms:
    """Programs by their keys.

    jobs  key, jitted function and its arguments, most urgent first
    """

    def __init__(self, jobs: Sequence[tuple[Hashable, Any, tuple]]):
        self._ahead, self._started, self._done = AotCompiler(), time.perf_counter(), 0
        self._programs: dict[Hashable, Future] = {}
        for key, program, arguments in jobs:
            self._programs[key] = self._ahead.submit(program, lambda a=arguments: a)
        for future in self._programs.values():
            future.add_done_callback(self._report)

    def get(self, key: Hashable) -> Callable | None:
        """The program of this key, when it is there; None if it is none of these."""
        future = self._programs.get(key)
        return None if future is None else future.result()

    def wait(self) -> None:
        """Returns when all are there."""
        for future in self._programs.values():
            future.result()

    def close(self) -> None:
        """Gives up what has not been begun."""
        self._ahead.close()

    def _report(self, done: Future) -> None:
        if not done.cancelled() and done.exception() is None:
            self._done += 1
            seconds = time.perf_counter() - self._started
            log.info("compiled %d of %d programs of the sampler after %.0f s", self._done, len(self._programs), seconds)
