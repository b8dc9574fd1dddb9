"""A sampler without a model, and what the host does beside it: for benchmarks of everything around the batcher."""

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
"""The tokens with which a prompt is answered."""


@dataclasses.dataclass(eq=False)
class _Row:
    answer: Completion
    written: int = 0
    shown: int = 0
    on_tokens: OnTokens | None = None


class Replay:
    """A `Batcher` in outline, for `BatcherThread`: answers are known, and only their time passes.

    reply  has the answers
    rows   answers that are written at once
    chunk  steps between refills
    rate   tokens a second with all rows; a step takes `floor` seconds at least
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
        """All are fine."""

    def submit(self, ids, sampling, policy=0, n=1, deadline=None) -> int:
        """Requests get rows in the order in which they come."""
        self._ids += 1
        tokens = np.asarray(self.reply(ids, sampling), np.int32)
        finish = "length" if len(tokens) == sampling.max_new_tokens else "stop"
        logps = self._logps[: len(tokens)]
        self._open[self._ids] = _Row(Completion(tokens, logps, finish, np.zeros_like(tokens)))
        self._waiting.append(self._ids)
        return self._ids

    def watch(self, request: int, on_tokens: OnTokens) -> None:
        """As `Batcher.watch`."""
        self._open[request].on_tokens = on_tokens

    def cancel(self, request: int) -> None:
        """Nothing is cancelled here."""

    def expire(self) -> None:
        """Nothing has a deadline."""

    def close(self) -> None:
        """Nothing to end."""

    def results(self):
        """What has finished since the last call."""
        done, self._done = self._done, []
        return done

    @property
    def busy(self) -> bool:
        return bool(self._open)

    @property
    def usage(self) -> Usage:
        return dataclasses.replace(self._usage)

    def refill(self) -> None:
        """Costs nothing here."""

    def begin(self, device: Executor) -> Future:
        """Gives rows to those who wait, and the device a chunk."""
        self._began = time.perf_counter()
        while self._waiting and len(self._active) < self.rows:
            self._active.append(self._waiting.popleft())
        self._chunk = device.submit(self._decode, self.chunk * max(self.floor, len(self._active) / self.rate))
        return self._chunk

    def _decode(self, seconds: float) -> None:
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
        """Waits for the chunk."""
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
        """Hands new tokens to the requests that are watched."""
        for row in (self._open[request] for request in self._active):
            if row.on_tokens is not None and row.shown < row.written:
                new = (x[row.shown : row.written].copy() for x in (row.answer.tokens, row.answer.logps))
                row.on_tokens(0, Completion(*new, "going", row.answer.versions[row.shown : row.written].copy()))
                row.shown = row.written


# ----------------------------------------------------------------------------------------------------- CPU of the host


def thread_seconds(event_loop: str = "MainThread") -> dict[str, float]:
    """CPU seconds of every thread of this process that Python knows, by name; those of a pool together.

    `event_loop` is the name of the thread that is listed as such.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = collections.defaultdict(float)
    for task in os.listdir("/proc/self/task"):
        fields = Path(f"/proc/self/task/{task}/schedstat").read_text().split()
        name = names.get(int(task), "others")
        found["event loop" if name == event_loop else name.split("_")[0]] += int(fields[0]) / 1e9
    return found


def causes(profile: cProfile.Profile, places: Mapping[str, str]) -> dict[str, float]:
    """CPU seconds of a profiled thread by cause, the largest first.

    places  from the beginning of a file's path, below the repository or the library, to what it does; the first counts
    """

    def cause(file: str) -> str:
        return next((name for start, name in places.items() if f"/{start}" in file), "others")

    found: dict[str, float] = collections.defaultdict(float)
    for (file, _, _), (_, _, seconds, _, callers) in pstats.Stats(profile).stats.items():
        if file == "~":  # builtins count for who calls them
            for (caller, _, _), (_, _, own, _) in callers.items():
                found[cause(caller)] += own
        else:
            found[cause(file)] += seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))
