"""A writer that appends lines to a file without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from marl_jax.errors import RunError


class LineWriter:
    """A writer that appends to an open file in a thread.

    Lines that arrive during a write are written and synced together. A writer belongs to one event loop at a time.

    Args:
        file: File opened for appending bytes; `close` closes it.
        what: Name of the file in errors.
        failure: Error to raise if a line cannot be written.
        gather: Seconds for which lines wait for others, so that they are written together.
    """

    def __init__(self, file: BinaryIO, what: str, failure: type[RunError], gather: float = 0.0):
        self._file, self._what, self._failure, self._gather = file, what, failure, gather
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lines")
        self._pending: list[tuple[str, bool, Callable[[], object] | None, bool]] = []
        self._writing: asyncio.Task | None = None
        self._error: RunError | None = None

    async def write(self, line: str, sync: bool = True) -> None:
        """Write a line and wait for it.

        The call returns when the operating system has the line or, with `sync`, when it is on disk. Lines keep their
        order.
        """
        written = asyncio.get_running_loop().create_future()
        self.add(line, sync, lambda: written.done() or written.set_result(None), always=True)
        await written
        self.check()

    def add(
        self, line: str, sync: bool = True, then: Callable[[], object] | None = None, always: bool = False
    ) -> None:  # fmt: skip
        """Write a line without waiting; `flush` waits for it.

        Args:
            line: Line without its end.
            sync: Whether to sync the line to disk.
            then: Called in the event loop when the line is written.
            always: Whether to also call `then` if the line could not be written.
        """
        self.check()
        self._pending.append((line + "\n", sync, then, always))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_pending())

    async def flush(self) -> None:
        """Wait until all lines so far are written."""
        while self._pending or not (self._writing is None or self._writing.done()):
            assert self._writing is not None  # `add` has started it
            await self._writing
        self.check()

    def check(self) -> None:
        """Raise an error if a line could not be written."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close the file after all writes."""
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
            except (OSError, RuntimeError, ValueError) as error:  # RuntimeError or ValueError after `close`
                self._error = self._failure(f"{self._what} cannot be written: {error}")
            for _, _, then, always in batch:
                if then is not None and (always or self._error is None):
                    then()

    def _append(self, text: str, sync: bool) -> None:
        data = text.encode()
        written = self._file.write(data)
        while written < len(data):  # an unbuffered file may write only a part if the disk is almost full
            written += self._file.write(data[written:])
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())
