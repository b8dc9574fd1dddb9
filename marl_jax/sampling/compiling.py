"""Programs that are compiled beside the work, the most urgent first: who needs one early waits for that one alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

log = logging.getLogger(__name__)


class CompiledPrograms:
    """Programs by their keys.

    jobs  key, jitted function and its arguments, most urgent first. Tracing holds Python's lock, so it is done one by
          one, in this order; the compiler does not, so it works at several at once.
    """

    def __init__(self, jobs: Sequence[tuple[Hashable, Any, tuple]], workers: int = 8):
        self._programs: dict[Hashable, Future] = {key: Future() for key, _, _ in jobs}
        self._threads = ThreadPoolExecutor(workers, "compile")
        self._lock, self._started, self._closed = threading.Lock(), time.perf_counter(), False
        self._threads.submit(self._lower, jobs)

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
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _lower(self, jobs):
        for key, program, arguments in jobs:
            if self._closed:
                return
            self._guarded(key, lambda p=program, a=arguments: p.lower(*a), self._compile)

    def _compile(self, key, lowered):
        self._threads.submit(self._guarded, key, lowered.compile, self._finish)

    def _finish(self, key, compiled):
        with self._lock:
            self._programs[key].set_result(compiled)
            done = sum(future.done() for future in self._programs.values())
            seconds = time.perf_counter() - self._started
            log.info("compiled %d of %d programs of the sampler after %.0f s", done, len(self._programs), seconds)

    def _guarded(self, key, make, then):
        """Passes on what was made; an error goes to whoever asks for the program."""
        try:
            then(key, make())
        except Exception as error:
            if not self._programs[key].done():
                self._programs[key].set_exception(error)
