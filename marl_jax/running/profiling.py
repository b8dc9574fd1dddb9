"""Where the time goes: seconds of each phase of a step, and a trace for TensorBoard and Perfetto.

In a trace (`--profile`, in the folder `profile` of a run) the phases of the loop are named on the host's lines, and the
parts of the programs in the names of their operations: prompt, answer, rules; advantages, forward_backward, optimizer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

WARM_UP = 2  # steps before a trace: the first compiles, and the second may once more
STEPS = 3  # in a trace


class Clock:
    """Seconds of each phase of a step."""

    def __init__(self):
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the seconds in its scope for a phase, which has this name in traces too."""
        before = time.perf_counter()
        with jax.profiler.TraceAnnotation(name):
            yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - before

    def seconds(self, name: str) -> float:
        """Of a phase so far."""
        return self._seconds.get(name, 0.0)

    def metrics(self, counted: Mapping[str, float]) -> dict[str, float]:
        """Seconds per phase, and games or episodes and tokens per second of playing and learning.

        Of a host rollout also `device_idle`: the share of playing and learning in which its device had nothing to do.
        """
        busy = sum(self._seconds.get(phase, 0.0) for phase in ("reshard", "rollout", "update"))
        rates = {f"{name}_per_s": counted[name] / busy for name in ("games", "episodes", "tokens") if name in counted}
        if busy and "seconds/device" in counted:
            rates["device_idle"] = max(self._seconds.get("rollout", 0.0) - counted["seconds/device"], 0.0) / busy
        return {**{f"seconds/{phase}": s for phase, s in self._seconds.items()}, **rates}


class ProfilerTrace:
    """A trace of a few steps after `start`, written to `folder`; None traces nothing."""

    def __init__(self, folder: Path | None, start: int, steps: int):
        """`steps`: the number of the run's last; a short run is traced from an earlier step."""
        self._folder, self._running = folder, False
        self._first = max(start, min(start + WARM_UP, steps - STEPS))

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around one step."""
        if self._folder is not None and number == self._first:
            jax.profiler.start_trace(self._folder)
            self._running = True
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            yield
        if number + 1 >= self._first + STEPS:
            self.close()

    def close(self) -> None:
        """Writes what there is."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
