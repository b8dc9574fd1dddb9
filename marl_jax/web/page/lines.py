"""Rows of a file that grows, a piece at a time: a client says how far it has read and gets what is new.

A position is a number of bytes and a mark of the bytes before it. A resumed run rewrites its files without the rows
after its checkpoint; then the mark is no longer right, and the client is given the file from its beginning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from marl_jax.running import rows
from marl_jax.serving.http.errors import ApiError

PIECE = 1 << 21  # bytes of a file that are read at once
LONGEST = 1 << 26  # bytes of a line
SHORT = 1200  # characters of a prompt in a list
MARKED = 512  # bytes before a position from which its mark is computed


def read(path: Path, after: int, mark: str, shorten: Callable[[dict], dict] | None = None) -> dict[str, Any]:
    """Whole rows from a position on: {rows, offset, mark, restarted, more}.

    restarted  the rows begin with the first of the file, and not where the client was
    more       there are further rows already
    shorten    makes of every row what is sent; it then has `at`, where `read_one` finds all of it

    A line that is still being written waits for the next time; one that is damaged, or of another kind, is left out.
    """
    try:
        file = path.open("rb")
    except OSError:  # none yet, or no more
        return {"rows": [], "offset": 0, "mark": "", "restarted": after > 0, "more": False}
    with file:
        restarted = after > 0 and _mark(file, after) != mark
        start = 0 if restarted else after
        text, more = _whole_lines(file, start)
        end = start + len(text)
        found, at = [], start
        for line in text.split(b"\n")[:-1]:
            row = parse(line, path)
            if row is not None:
                found.append(row if shorten is None else {**shorten(row), "at": at})
            at += len(line) + 1
        return {"rows": found, "offset": end, "mark": _mark(file, end), "restarted": restarted, "more": more}


def read_one(path: Path, at: int) -> dict[str, Any]:
    """The row that begins at a byte."""
    try:
        with path.open("rb") as file:
            file.seek(max(at - 1, 0))
            begins = at == 0 or file.read(1) == b"\n"
            line = file.readline(LONGEST)
    except OSError:
        line, begins = b"", False
    row = parse(line, path) if begins and line.endswith(b"\n") else None
    if row is None:
        raise ApiError(404, f"no row begins at {at}; the file may have been written anew", param="at")
    return row


def parse(line: bytes, path: Path) -> dict[str, Any] | None:
    """A row of a file; None where the line is none."""
    is_row = rows.KINDS.get(path.name, rows.is_episode)
    try:
        row = json.loads(line.decode("utf-8", errors="replace"), parse_constant=lambda _: None)
        return row if isinstance(row, dict) and is_row(row) else None
    except (ValueError, RecursionError):
        return None


def short_game(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the list of games shows."""
    kept = {key: row.get(key) for key in ("step", "players", "result", "source", "solved", "scores")}
    return {**kept, "moves": len(row["moves"]), "errors": sum(bool(move["error"]) for move in row["moves"])}


def short_episode(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the list of an evaluation's episodes shows."""
    kept = {key: row.get(key) for key in ("step", "example", "sample", "success", "reward", "failed")}
    first = row["turns"][0]["prompt"] if row["turns"] else ""
    return {**kept, "turns": len(row["turns"]), "prompt": " ".join(first.split())[:SHORT]}


def _whole_lines(file: BinaryIO, start: int) -> tuple[bytes, bool]:
    """Bytes from a position to the end of the last whole line of a piece, and whether there are more lines."""
    file.seek(start)
    text = b""
    while b"\n" not in text[-PIECE:] and len(text) < LONGEST:  # one line can be longer than a piece
        piece = file.read(PIECE)
        if not piece:
            return b"", False
        text += piece
    cut = text.rfind(b"\n") + 1
    if not cut:
        raise ApiError(400, f"a line of the file has more than {LONGEST} bytes")
    return text[:cut], b"\n" in text[cut:] + file.read(PIECE)


def _mark(file: BinaryIO, end: int) -> str:
    file.seek(max(end - MARKED, 0))
    before = file.read(min(end, MARKED))
    return hashlib.sha256(before).hexdigest()[:16] if len(before) == min(end, MARKED) and end else ""
