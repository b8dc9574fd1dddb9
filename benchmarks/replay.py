"""A sampler without a model, and CPU times of the host, for benchmarks."""

from __future__ import annotations

import collections
import cProfile
import dataclasses
import os
import pstats
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

import numpy as np

from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.requests import OnTokens, Usage
from marl_jax.sampling.settings import Sampling

Reply = Callable[[Sequence[int], Sampling], Sequence[int]]
"""Returns the completion of a prompt."""


@dataclasses.dataclass(eq=False)
class _Row:
    """A completion and its progress."""

    answer: Completion
    written: int = 0
    shown: int = 0
    on_tokens: OnTokens | None = None


class Replay:
    """A stand-in for `Batcher` that takes time but returns known completions.

    It has the interface that `BatcherThread` needs.

    Args:
        reply: Returns the completion of a prompt.
        rows: Number of completions that are generated at a time.
        chunk: Number of steps between refills.
        rate: Tokens per second with all rows.
        floor: Minimum seconds per step.
    """

    n_policies = 1

    def __init__(self, reply: Reply, rows: int, chunk: int, rate: float, floor: float):
        self.reply, self.rows, self.chunk, self.rate, self.floor = reply, rows, chunk, rate, floor
        self.updating, self.next_deadline = set(), None
        self._open: dict[int, _Row] = {}
        self._waiting: collections.deque[int] = collections.deque()
        self._active: list[int] = []
        self._done: list[tuple[int, list[Completion]]] = []
        self._ids, self._usage = 0, Usage(versions=(0,))
        self._logps = -np.random.default_rng(0).exponential(size=1 << 16).astype(np.float32)
        self.first = self.last = self.late = self.between = self._began = 0.0
        self._chunk: Future | None = None

    def check_request(self, ids, sampling, policy=0, n=1):
        """Accept all requests."""

    def submit(self, ids, sampling, policy=0, n=1, deadline=None) -> int:
        """Queue a request; requests get rows in order of arrival."""
        self._ids += 1
        tokens = np.asarray(self.reply(ids, sampling), np.int32)
        finish = "length" if len(tokens) == sampling.max_new_tokens else "stop"
        logps = self._logps[: len(tokens)]
        self._open[self._ids] = _Row(Completion(tokens, logps, finish, np.zeros_like(tokens)))
        self._waiting.append(self._ids)
        return self._ids

    def watch(self, request: int, on_tokens: OnTokens) -> None:
        """Stream a request. See `Batcher.watch`."""
        self._open[request].on_tokens = on_tokens

    def cancel(self, request: int) -> None:
        """Do nothing: requests cannot be cancelled."""

    def expire(self) -> None:
        """Do nothing: requests have no deadline."""

    def close(self) -> None:
        """Do nothing."""

    def results(self):
        """Return the completions since the last call."""
        done, self._done = self._done, []
        return done

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._open)

    @property
    def usage(self) -> Usage:
        """Usage so far."""
        return dataclasses.replace(self._usage)

    def refill(self) -> None:
        """Do nothing."""

    def begin(self, device: Executor) -> Future:
        """Assign rows to waiting requests and start a chunk."""
        self._began = time.perf_counter()
        while self._waiting and len(self._active) < self.rows:
            self._active.append(self._waiting.popleft())
        self._chunk = device.submit(self._decode, self.chunk * max(self.floor, len(self._active) / self.rate))
        return self._chunk

    def _decode(self, seconds: float) -> None:
        """Sleep for the time of a chunk."""
        began = time.perf_counter()
        if self.last:
            self.between += began - self.last
        else:
            self.first = began
        time.sleep(seconds)
        self.last = time.perf_counter()
        self.late += self.last - began - seconds
        self._usage.device += seconds

    def finish(self) -> None:
        """Wait for the chunk."""
        self._chunk.result()
        active, self._active = self._active, []
        for request in active:
            row = self._open[request]
            row.written += self.chunk
            if row.written >= len(row.answer.tokens):
                del self._open[request]
                self._done.append((request, [row.answer]))
                self._usage.generated += len(row.answer.tokens)
            else:
                self._active.append(request)
        self._usage.seconds += time.perf_counter() - self._began

    def catch_up(self) -> None:
        """Pass new tokens to the streamed requests."""
        for row in (self._open[request] for request in self._active):
            if row.on_tokens is not None and row.shown < row.written:
                new = (x[row.shown : row.written].copy() for x in (row.answer.tokens, row.answer.logps))
                row.on_tokens(0, Completion(*new, "going", row.answer.versions[row.shown : row.written].copy()))
                row.shown = row.written


# ----------------------------------------------------------------------------------------------------- CPU of the host


def thread_seconds(event_loop: str = "MainThread") -> dict[str, float]:
    """Return the CPU seconds of all Python threads of this process by name.

    Threads of a pool are added up. The thread called `event_loop` is listed as "event loop".
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds_by_name: dict[str, float] = collections.defaultdict(float)
    for task in os.listdir("/proc/self/task"):
        fields = Path(f"/proc/self/task/{task}/schedstat").read_text().split()
        name = names.get(int(task), "others")
        seconds_by_name["event loop" if name == event_loop else name.split("_")[0]] += int(fields[0]) / 1e9
    return seconds_by_name


def causes(profile: cProfile.Profile, places: Mapping[str, str]) -> dict[str, float]:
    """Return the CPU seconds of a profiled thread by cause, the largest first.

    Args:
        profile: The profile.
        places: Maps prefixes of file paths, relative to the repository or the library, to causes. The first match
            counts.
    """

    def cause(file: str) -> str:
        return next((name for start, name in places.items() if f"/{start}" in file), "others")

    seconds_by_cause: dict[str, float] = collections.defaultdict(float)
    for (file, _, _), (_, _, seconds, _, callers) in pstats.Stats(profile).stats.items():
        if file == "~":  # builtins are attributed to their callers
            for (caller, _, _), (_, _, own, _) in callers.items():
                seconds_by_cause[cause(caller)] += own
        else:
            seconds_by_cause[cause(file)] += seconds
    return dict(sorted(seconds_by_cause.items(), key=lambda item: -item[1]))
