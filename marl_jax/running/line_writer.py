"""Lines that are appended to a file from an event loop, which never waits for the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from marl_jax.errors import RunError


class LineWriter:
    """Appends to an open file; one thread writes, and lines that come meanwhile are written, and synced, together.

    file     opened for appending bytes; `close` closes it
    what     names the file in errors
    failure  the error that ends the run where a line cannot be written
    gather   seconds for which lines wait for others, with which they are written

    A writer belongs to one event loop at a time.
    """

    def __init__(self, file: BinaryIO, what: str, failure: type[RunError], gather: float = 0.0):
        self._file, self._what, self._failure, self._gather = file, what, failure, gather
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lines")
        self._pending: list[tuple[str, bool, Callable[[], object] | None, bool]] = []
        self._writing: asyncio.Task | None = None
        self._error: RunError | None = None

    async def write(self, line: str, sync: bool = True) -> None:
        """Returns when the line is with the operating system, with `sync` on disk. Lines keep their order."""
        written = asyncio.get_running_loop().create_future()
        self.add(line, sync, lambda: written.done() or written.set_result(None), always=True)
        await written
        self.check()

    def add(
        self, line: str, sync: bool = True, then: Callable[[], object] | None = None, always: bool = False
    ) -> None:  # fmt: skip
        """Writes a line for which nobody waits; `flush` does.

        then    called in the event loop when the line is where it belongs
        always  also if it could not be written
        """
        self.check()
        self._pending.append((line + "\n", sync, then, always))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_pending())

    async def flush(self) -> None:
        """Returns when all lines so far are where they belong."""
        while self._pending or not (self._writing is None or self._writing.done()):
            assert self._writing is not None  # `add` has started it
            await self._writing
        self.check()

    def check(self) -> None:
        """Raises if a line could not be written."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Closes the file; what was written is complete."""
        self._thread.shutdown()
        self._file.close()

    async def _write_pending(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            if self._gather:
                await asyncio.sleep(self._gather)
            batch, self._pending = self._pending, []
            text, sync = "".join(line for line, *_ in batch), any(sync for _, sync, *_ in batch)
            try:
                await loop.run_in_executor(self._thread, self._append, text, sync)
            except (OSError, RuntimeError, ValueError) as error:  # after `close` it is one of the latter two
                self._error = self._failure(f"{self._what} cannot be written: {error}")
            for _, _, then, always in batch:
                if then is not None and (always or self._error is None):
                    then()

    def _append(self, text: str, sync: bool) -> None:
        data = text.encode()
        written = self._file.write(data)
        while written < len(data):  # a file without a buffer may take a part, where a disk is about to be full
            written += self._file.write(data[written:])
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())
