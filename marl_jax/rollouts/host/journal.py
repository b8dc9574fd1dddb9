"""The journal of a host rollout: what does not follow from seeds, on disk before an episode continues.

A rollout in progress is not saved. After an interruption it is repeated from the last checkpoint: answers follow from
their seeds and the weights, and time-outs, failures and the results of tools and verifiers are read from here. One file
per step and process holds one JSON line per entry, [episode, call, result], behind a first line that says to which
rollout it belongs. A last line that was cut short by the interruption is dropped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from marl_jax.errors import RunError

log = logging.getLogger(__name__)


class JournalError(RunError):
    """The journal cannot be written: the run ends, because it could not be repeated."""


class Journal:
    """The entries of one rollout.

    path    of the file, which is read if it is there and belongs to the same rollout; None: nothing is kept
    header  what tells rollouts apart, a JSON value
    """

    def __init__(self, path: str | Path | None, header: Any = None):
        self.path = None if path is None else Path(path)
        self.entries: dict[tuple[str, str], Any] = {}
        self._error: JournalError | None = None
        self._pending: list[tuple[str, asyncio.Future]] = []
        self._writing: asyncio.Task | None = None
        if self.path is not None:
            # One thread writes, so that syncing the disk never holds up the event loop.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
            try:
                self._file = self._open(json.loads(json.dumps(header)))
            except OSError as error:
                raise JournalError(f"the journal {self.path} cannot be opened: {error}") from error

    def get(self, episode: str, call: str) -> Any | None:
        """The entry, or None."""
        return self.entries.get((episode, call))

    async def write(self, episode: str, call: str, entry: Any) -> None:
        """Returns when the entry is on disk; entries that come at the same time are synced together."""
        self.entries[episode, call] = entry
        if self.path is None:
            return
        written = asyncio.get_running_loop().create_future()
        self._pending.append((json.dumps([episode, call, entry]) + "\n", written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_pending())
        await written
        self.check()

    def check(self) -> None:
        """Raises if an entry could not be written."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Closes the file; it stays where it is."""
        if self.path is not None:
            self._thread.shutdown()
            self._file.close()

    async def _write_pending(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                await loop.run_in_executor(self._thread, self._append, "".join(line for line, _ in batch))
            except OSError as failure:
                self._error = JournalError(f"the journal {self.path} cannot be written: {failure}")
            for _, written in batch:
                if not written.done():  # an episode may have been ended meanwhile
                    written.set_result(None)

    def _append(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _open(self, header: Any):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines, size = _whole_lines(self.path)
        if lines and lines[0] == header:
            self.entries = {(episode, call): entry for episode, call, entry in lines[1:]}
            os.truncate(self.path, size)
            return open(self.path, "ab")
        if lines:
            log.warning("%s belongs to another rollout (%s); it is started anew", self.path, lines[0])
        file = open(self.path, "wb")  # noqa: SIM115 (closed by `close`)
        file.write(json.dumps(header).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        folder = os.open(self.path.parent, os.O_RDONLY)  # so that the file's name is on disk as well
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return file


def _whole_lines(path: Path) -> tuple[list[Any], int]:
    """The JSON values of the lines that were written to their end, and the bytes these take."""
    lines, size = [], 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            value = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        lines.append(value)
        size += len(line)
    return lines, size


def path_of(folder: str | Path | None, step: int, process: int = 0) -> Path | None:
    """The file of a step and a process."""
    return None if folder is None else Path(folder) / f"step_{step:08d}.process_{process}.jsonl"


def discard_before(folder: str | Path | None, step: int, process: int = 0) -> None:
    """Removes this process's journals of steps before `step`, which no resumed run needs once a checkpoint has it."""
    for path in () if folder is None else Path(folder).glob(f"step_*.process_{process}.jsonl"):
        if int(path.name[len("step_") :].split(".")[0]) < step:
            path.unlink(missing_ok=True)
