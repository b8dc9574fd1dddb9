"""Counters in shared memory: each worker writes its own and reads those of all."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from marl_jax.serving.http.guard import Gauge as Count

FIELDS = ("requests", "sessions")


class SharedCounters:
    """Counters of all workers: int64 [workers, fields].

    They are mapped from an unnamed file that worker processes inherit.

    Args:
        workers: Number of workers.
        fd: File descriptor of the inherited file; None creates the file.
    """

    def __init__(self, workers: int, fd: int | None = None):
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
            os.truncate(fd, workers * len(FIELDS) * 8)
        self.fd = fd
        memory = mmap.mmap(fd, workers * len(FIELDS) * 8)
        self.numbers = np.frombuffer(memory, np.int64).reshape(workers, len(FIELDS))

    def count(self, worker: int, field: str) -> SharedCount:
        """Return the counter of a worker with this name."""
        return SharedCount(self.numbers[:, FIELDS.index(field)], worker)

    def each(self, field: str) -> list[int]:
        """Return the counters of all workers with this name."""
        return self.numbers[:, FIELDS.index(field)].tolist()

    def close(self) -> None:
        """Close the file; the memory stays mapped."""
        os.close(self.fd)


class SharedCount(Count):
    """One counter of one worker.

    Workers that read at the same moment do not see each other's updates, so a limit on the total can be exceeded by one
    for each of the other workers.
    """

    def __init__(self, numbers: np.ndarray, worker: int):
        self._numbers, self._worker = numbers, worker
        super().__init__()

    @property
    def own(self) -> int:
        """Count of this process."""
        return int(self._numbers[self._worker])

    @own.setter
    def own(self, value: int) -> None:
        self._numbers[self._worker] = value

    @property
    def total(self) -> int:
        """Sum over all processes."""
        return int(self._numbers.sum())
