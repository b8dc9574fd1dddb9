"""Profiling: seconds of each phase of a step, and a trace for TensorBoard and Perfetto.

In a trace (`--profile`, in the folder `profile` of a run), the phases of the loop appear on the lines of the host, and
the parts of programs in the names of their operations: prompt, answer, rules; advantages, forward_backward, optimizer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

WARM_UP = 2  # steps before a trace: the first compiles, and the second may compile again
STEPS = 3  # number of steps in a trace


class Clock:
    """Seconds of each phase of a step."""

    def __init__(self):
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the time in its scope for a phase, which is also named in traces."""
        before = time.perf_counter()
        with jax.profiler.TraceAnnotation(name):
            yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - before

    def seconds(self, name: str) -> float:
        """Return the seconds of a phase so far."""
        return self._seconds.get(name, 0.0)

    def metrics(self, counted: Mapping[str, float]) -> dict[str, float]:
        """Compute seconds per phase, and games, episodes and tokens per second.

        For a host rollout, `device_idle` is the share of rollout and update time in which its device is idle.
        """
        busy = sum(self._seconds.get(phase, 0.0) for phase in ("reshard", "rollout", "update"))
        rates = {f"{name}_per_s": counted[name] / busy for name in ("games", "episodes", "tokens") if name in counted}
        if busy and "seconds/device" in counted:
            rates["device_idle"] = max(self._seconds.get("rollout", 0.0) - counted["seconds/device"], 0.0) / busy
        return {**{f"seconds/{phase}": s for phase, s in self._seconds.items()}, **rates}


class ProfilerTrace:
    """A profiler trace of a few steps.

    Args:
        folder: Folder of the trace; None traces nothing.
        start: First step of this process.
        steps: Last step of the run; a short run is traced from an earlier step.
    """

    def __init__(self, folder: Path | None, start: int, steps: int):
        self._folder, self._running = folder, False
        self._first = max(start, min(start + WARM_UP, steps - STEPS))

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Trace one step, if it is due."""
        if self._folder is not None and number == self._first:
            jax.profiler.start_trace(self._folder)
            self._running = True
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            yield
        if number + 1 >= self._first + STEPS:
            self.close()

    def close(self) -> None:
        """Stop the trace and write it."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
