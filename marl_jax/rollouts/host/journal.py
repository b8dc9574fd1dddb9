"""The journal of a host rollout: results that do not follow from seeds, on disk.

A rollout in progress is not saved. After an interruption it is repeated from the last checkpoint. Completions follow
from their seeds and the weights. Timeouts, failures and the results of tools and verifiers are read from the journal,
which is written before an episode continues. There is one file per step and process, with a header line that identifies
the rollout and one JSON line per entry, [episode, call, result]. A last line that was truncated by the interruption is
dropped.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any, BinaryIO

from marl_jax.errors import RunError
from marl_jax.running.line_writer import LineWriter
from marl_jax.running.private_files import make_private, make_private_folder

log = logging.getLogger(__name__)

GATHER = 0.01
"""Seconds for which entries wait for others, so that they are written and synced together.

Each write costs two turns of the event loop and a thread switch.
"""


class JournalError(RunError):
    """A journal that cannot be written. It ends the run, which could not be repeated."""


class Journal:
    """The entries of one rollout.

    Args:
        path: File of the journal, which is read if it exists and belongs to the same rollout; None keeps no file.
        header: JSON value that identifies the rollout.
    """

    def __init__(self, path: str | Path | None, header: Any = None):
        self.path = None if path is None else Path(path)
        self.entries: dict[tuple[str, str], Any] = {}
        self._lines: LineWriter | None = None
        if self.path is not None:
            try:
                file = self._open(self.path, json.loads(json.dumps(header)))
            except OSError as error:
                raise JournalError(f"the journal {self.path} cannot be opened: {error}") from error
            self._lines = LineWriter(file, f"the journal {self.path}", JournalError, GATHER)

    def get(self, episode: str, call: str) -> Any | None:
        """Return an entry, or None."""
        return self.entries.get((episode, call))

    async def write(self, episode: str, call: str, entry: Any) -> None:
        """Write an entry and wait until it is on disk; concurrent entries are synced together."""
        self.entries[episode, call] = entry
        if self._lines is not None:
            await self._lines.write(json.dumps([episode, call, entry]))

    def note(self, episode: str, call: str, entry: Any) -> None:
        """Write an entry without waiting; `flush` waits for it."""
        self.entries[episode, call] = entry
        if self._lines is not None:
            self._lines.add(json.dumps([episode, call, entry]))

    async def flush(self) -> None:
        """Wait until all entries are on disk."""
        if self._lines is not None:
            await self._lines.flush()

    def check(self) -> None:
        """Raise an error if an entry could not be written."""
        if self._lines is not None:
            self._lines.check()

    def close(self) -> None:
        """Close the file without deleting it."""
        if self._lines is not None:
            self._lines.close()

    def _open(self, path: Path, header: Any) -> BinaryIO:
        make_private_folder(path.parent)
        lines, size = _whole_lines(path)
        if lines and lines[0] == header:
            self.entries = {(episode, call): entry for episode, call, entry in lines[1:]}
            os.truncate(path, size)
            return open(path, "ab")
        if lines:
            log.warning("%s belongs to another rollout (%s) and is overwritten", path, lines[0])
        file = open(make_private(path), "wb")  # noqa: SIM115 (closed by `close`)
        file.write(json.dumps(header).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        folder = os.open(path.parent, os.O_RDONLY)  # so that the directory entry is on disk too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return file


def _whole_lines(path: Path) -> tuple[list[Any], int]:
    """Read the header and the entries up to the first invalid line.

    Returns:
        The values of the lines and their size in bytes.
    """
    lines, size = [], 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not line.endswith(b"\n") or (lines and not _is_entry(value)):
            break
        lines.append(value)
        size += len(line)
    return lines, size


def _is_entry(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(name, str) for name in value[:2])


def path_of(folder: str | Path | None, step: int, process: int = 0) -> Path | None:
    """Return the file of a step and a process."""
    return None if folder is None else Path(folder) / f"step_{step:08d}.process_{process}.jsonl"


def discard_before(folder: str | Path | None, step: int, process: int = 0) -> None:
    """Remove the journals of steps before `step`, which a checkpoint makes obsolete."""
    for number, path in _steps(folder, process):
        if number < step:
            path.unlink(missing_ok=True)


def discard_from(folder: str | Path | None, step: int, process: int = 0) -> None:
    """Remove the journals of `step` and later, which a resumed run must not repeat."""
    for number, path in _steps(folder, process):
        if number >= step:
            path.unlink(missing_ok=True)


def _steps(folder: str | Path | None, process: int) -> list[tuple[int, Path]]:
    """Return the journals of a process with their steps."""
    paths = [] if folder is None else Path(folder).glob(f"step_*.process_{process}.jsonl")
    numbered = ((re.match(r"step_([0-9]{1,18})\.", path.name), path) for path in paths)
    return [(int(match[1]), path) for match, path in numbered if match]
