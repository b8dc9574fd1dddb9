"""A seal on a folder: size and checksum of every file below it, so that later damage is found before it is read."""

from __future__ import annotations

import concurrent.futures
import json
import zlib
from pathlib import Path

NAME = "seal.json"


def write(folder: Path) -> None:
    """Seals the files in the folders of `folder`; what lies beside them is left to who commits the folder."""
    names = _names(folder)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        seal = dict(zip(names, pool.map(lambda name: fingerprint(folder / name), names), strict=True))
    (folder / NAME).write_text(json.dumps(seal, indent=1))


def damage(folder: Path, part: int = 0, parts: int = 1, leave_out: str | None = None) -> str | None:
    """What is wrong with the files, or with every `parts`-th of them; None if they are as they were sealed.

    leave_out: the name of a folder in `folder` whose files are not read, only looked for in the seal.
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
        found = pool.map(lambda name: _readable(folder / name), names)
        for name, now in zip(names, found, strict=True):
            if now is None:
                return f"{name[:200]!r} is missing or cannot be read"
            if now != seal[name]:
                return f"{name} has changed: size and checksum are {now}, expected {seal[name]}"
    return None


def _names(folder: Path) -> list[str]:
    """The files that a seal covers, by their paths in `folder`."""
    files = (file for file in sorted(folder.glob("*/**/*")) if file.is_file() and file.name != "commit_success.txt")
    return [str(file.relative_to(folder)) for file in files]


def fingerprint(path: Path) -> list[int]:
    """Size and CRC-32 of a file."""
    checksum, size = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
    return [size, checksum]


def _readable(path: Path) -> list[int] | None:
    """The fingerprint, None of a file that is absent, cannot be read, or has a name that no file can have."""
    try:
        return fingerprint(path)
    except (OSError, ValueError):
        return None
