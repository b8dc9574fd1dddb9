"""Checksums of the files of a folder, to detect damage before the files are read."""

from __future__ import annotations

import concurrent.futures
import json
import zlib
from pathlib import Path

NAME = "seal.json"


def write(folder: Path) -> None:
    """Write the seal of all files in the subfolders of `folder`.

    Files directly in `folder` are not covered.
    """
    names = _names(folder)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        seal = dict(zip(names, pool.map(lambda name: fingerprint(folder / name), names), strict=True))
    (folder / NAME).write_text(json.dumps(seal, indent=1))


def damage(folder: Path, part: int = 0, parts: int = 1, leave_out: str | None = None) -> str | None:
    """Return a description of the first damaged file, or None.

    Args:
        folder: Sealed folder.
        part: Index of the share of files to check.
        parts: Number of shares.
        leave_out: Name of a subfolder whose files must be in the seal but are not read.
    """
    try:
        seal = json.loads((folder / NAME).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return f"{NAME} is missing"
    except OSError as error:
        return f"{NAME} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return f"{NAME} is not JSON"
    if not isinstance(seal, dict) or not seal:
        return f"{NAME} names no files"
    unsealed = next((name for name in _names(folder) if name not in seal), None)
    if unsealed is not None:
        return f"{NAME} does not name {unsealed[:200]!r}"
    names = [name for name in seal if name.split("/")[0] != leave_out][part::parts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        current = pool.map(lambda name: _readable(folder / name), names)
        for name, now in zip(names, current, strict=True):
            if now is None:
                return f"{name[:200]!r} is missing or cannot be read"
            if now != seal[name]:
                return f"{name} has changed: size and checksum are {now}, but were {seal[name]}"
    return None


def _names(folder: Path) -> list[str]:
    """Return the files that a seal covers, relative to `folder`."""
    files = (file for file in sorted(folder.glob("*/**/*")) if file.is_file() and file.name != "commit_success.txt")
    return [str(file.relative_to(folder)) for file in files]


def fingerprint(path: Path) -> list[int]:
    """Return the size and CRC-32 of a file."""
    checksum, size = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
    return [size, checksum]


def _readable(path: Path) -> list[int] | None:
    """Return the fingerprint of a file, or None if it cannot be read."""
    try:
        return fingerprint(path)
    except (OSError, ValueError):
        return None
