"""Numbers in memory that all workers share: each writes its own, and reads those of all."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from marl_jax.serving.http.guard import Gauge as Count

FIELDS = ("requests", "sessions")


class SharedCounters:
    """int64 [workers, fields] in a file without a name, which worker processes inherit."""

    def __init__(self, workers: int, fd: int | None = None):
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
            os.truncate(fd, workers * len(FIELDS) * 8)
        self.fd = fd
        memory = mmap.mmap(fd, workers * len(FIELDS) * 8)
        self.numbers = np.frombuffer(memory, np.int64).reshape(workers, len(FIELDS))

    def count(self, worker: int, field: str) -> SharedCount:
        """The count that a worker keeps under this name."""
        return SharedCount(self.numbers[:, FIELDS.index(field)], worker)

    def each(self, field: str) -> list[int]:
        """The counts of all workers under this name."""
        return self.numbers[:, FIELDS.index(field)].tolist()

    def close(self) -> None:
        """Closes the file; the numbers stay where they are mapped."""
        os.close(self.fd)


class SharedCount(Count):
    """One count of one worker.

    Two workers that look at the same moment do not see each other: a limit on the total can be exceeded by one for each
    of the other workers.
    """

    def __init__(self, numbers: np.ndarray, worker: int):
        self._numbers, self._worker = numbers, worker
        super().__init__()

    @property
    def own(self) -> int:
        """In this process."""
        return int(self._numbers[self._worker])

    @own.setter
    def own(self, value: int) -> None:
        self._numbers[self._worker] = value

    @property
    def total(self) -> int:
        """In all processes."""
        return int(self._numbers.sum())
