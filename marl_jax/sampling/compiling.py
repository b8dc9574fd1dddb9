"""Programs of the sampler, compiled beside the work: who needs one early waits for that one alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from marl_jax.devices.ahead import Ahead

log = logging.getLogger(__name__)


class CompiledPrograms:
    """Programs by their keys.

    jobs  key, jitted function and its arguments, most urgent first
    """

    def __init__(self, jobs: Sequence[tuple[Hashable, Any, tuple]]):
        self._ahead, self._started, self._done = Ahead(), time.perf_counter(), 0
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
