"""JSONL files, plain or compressed (.gz, .xz), checked once and read in place."""

from __future__ import annotations

import array
import gzip
import hashlib
import json
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from envs.tasks.data.dataset import DataError, Dataset, canonical, summary

MOST_LEVELS = 100  # code that walks through rows is recursive
TOO_DEEP = f"nested too deeply; rows must have at most {MOST_LEVELS} levels"
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_MARK = b"\xef\xbb\xbf"  # byte order mark, which some editors write at the beginning of a UTF-8 file


def from_jsonl(paths: str | Path | Sequence[str | Path], name: str | None = None) -> Dataset:
    """Open one or several files with one JSON object per line.

    Several files are concatenated, and empty lines are skipped. All lines that are not a JSON object or not UTF-8 are
    reported together, by file and line. The contents are not held in memory; a compressed file is unpacked into a
    temporary one.
    """
    files = [Path(p).expanduser() for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not files:
        raise DataError("no JSONL file was given")
    return _Lines(files, name or files[0].name.split(".")[0])


class _Lines(Dataset):
    def __init__(self, files: Sequence[Path], name: str):
        self.name, self._paths = name, list(files)
        self._files: list[BinaryIO] = []
        self._places = array.array("q")  # file, offset, length and line number of every row
        problems: list[str] = []
        digest = hashlib.sha256()
        for number, path in enumerate(self._paths):
            self._files.append(_opened(path))
            self._scan(number, digest, problems)
        if problems:
            raise DataError(summary(problems))
        self.fingerprint = digest.hexdigest()

    def __len__(self):
        return len(self._places) // 4

    def row(self, i):
        file, offset, length, _ = self._places[4 * i : 4 * i + 4]
        try:
            return _parse(os.pread(self._files[file].fileno(), length, offset))
        except ValueError as error:
            raise DataError(f"{self.where(i)}: {error}; the file has changed since it was opened") from None

    def where(self, i):
        file, _, _, line = self._places[4 * i : 4 * i + 4]
        return f"{self._paths[file]}:{line}"

    def _scan(self, number: int, digest: Any, problems: list[str]) -> None:
        offset = 0
        for line, raw in enumerate(self._files[number], 1):
            start, offset = offset, offset + len(raw)
            if line == 1 and raw.startswith(_MARK):
                raw, start = raw[len(_MARK) :], len(_MARK)
            if not raw.strip():
                continue
            try:
                digest.update(canonical(_parse(raw), lambda: "the line") + b"\n")
            except ValueError as error:
                problems.append(f"{self._paths[number]}:{line}: {error}")
                continue
            self._places.extend((number, start, len(raw), line))


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"invalid UTF-8: byte 0x{byte:02x} at column {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if raw.count(b"[") + raw.count(b"{") > MOST_LEVELS and _levels(row) > MOST_LEVELS:
        raise ValueError(TOO_DEEP)
    if not isinstance(row, dict):
        raise ValueError(f"{row!r:.80} is not a JSON object")
    return row


def _levels(value: Any) -> int:
    """Return the number of levels of nesting, without recursion."""
    levels, here = 0, [value]
    while here := [x for x in here if isinstance(x, dict | list)]:
        levels += 1
        here = [item for x in here for item in (x.values() if isinstance(x, dict) else x)]
    return levels


def _opened(path: Path) -> BinaryIO:
    """Open a file for random access."""
    try:
        if path.suffix not in _OPENERS:
            return path.open("rb")
        unpacked = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the dataset exists)
        with _OPENERS[path.suffix](path, "rb") as packed:
            shutil.copyfileobj(packed, unpacked)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise DataError(f"{path}: not a complete {path.suffix} file: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    unpacked.seek(0)
    return unpacked
