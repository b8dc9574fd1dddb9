"""Read the new rows of a growing file, a piece at a time.

A position is a number of bytes and a hash of the bytes before it. A resumed run rewrites its files without the rows
after its checkpoint. The hash then no longer matches, and the client gets the file from its beginning.
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
LONGEST = 1 << 26  # maximum size of a line, in bytes
SHORT = 1200  # maximum number of characters of a prompt in a list
MARKED = 512  # bytes before a position that its hash covers


def read(path: Path, after: int, mark: str, shorten: Callable[[dict], dict] | None = None) -> dict[str, Any]:
    """Return complete rows from a position: {rows, offset, mark, restarted, more}.

    `restarted` is true if the rows start at the beginning of the file instead of the client's position. `more` is true
    if there are further rows. Incomplete lines are left for the next call. Invalid lines are skipped.

    Args:
        path: Path of the file.
        after: Position of the client, in bytes.
        mark: Hash of the bytes before the position.
        shorten: Maps a row to a shorter one, which gets the field `at` for `read_one`.
    """
    try:
        file = path.open("rb")
    except OSError:  # it does not exist yet, or no longer
        return {"rows": [], "offset": 0, "mark": "", "restarted": after > 0, "more": False}
    with file:
        restarted = after > 0 and _mark(file, after) != mark
        start = 0 if restarted else after
        text, more = _whole_lines(file, start)
        end = start + len(text)
        new_rows, at = [], start
        for line in text.split(b"\n")[:-1]:
            row = parse(line, path)
            if row is not None:
                new_rows.append(row if shorten is None else {**shorten(row), "at": at})
            at += len(line) + 1
        return {"rows": new_rows, "offset": end, "mark": _mark(file, end), "restarted": restarted, "more": more}


def read_one(path: Path, at: int) -> dict[str, Any]:
    """Return the row that starts at a byte."""
    try:
        with path.open("rb") as file:
            file.seek(max(at - 1, 0))
            begins = at == 0 or file.read(1) == b"\n"
            line = file.readline(LONGEST)
    except OSError:
        line, begins = b"", False
    row = parse(line, path) if begins and line.endswith(b"\n") else None
    if row is None:
        raise ApiError(404, f"at is {at}, but no row starts there; the file may have been rewritten", param="at")
    return row


def parse(line: bytes, path: Path) -> dict[str, Any] | None:
    """Return the row of a line, or None if the line is not a row."""
    is_row = rows.KINDS.get(path.name, rows.is_episode)
    try:
        row = json.loads(line.decode("utf-8", errors="replace"), parse_constant=lambda _: None)
        return row if isinstance(row, dict) and is_row(row) else None
    except (ValueError, RecursionError):
        return None


def short_game(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a game in the list of games."""
    kept = {key: row.get(key) for key in ("step", "players", "result", "source", "solved", "scores")}
    return {**kept, "moves": len(row["moves"]), "errors": sum(bool(move["error"]) for move in row["moves"])}


def short_episode(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an episode in the list of an evaluation's episodes."""
    kept = {key: row.get(key) for key in ("step", "example", "sample", "success", "reward", "failed")}
    first = row["turns"][0]["prompt"] if row["turns"] else ""
    return {**kept, "turns": len(row["turns"]), "prompt": " ".join(first.split())[:SHORT]}


def _whole_lines(file: BinaryIO, start: int) -> tuple[bytes, bool]:
    """Return complete lines from a position, and whether there are more.

    At most one piece is returned, unless its first line is longer.
    """
    file.seek(start)
    text = b""
    while b"\n" not in text[-PIECE:] and len(text) < LONGEST:  # a line can be longer than a piece
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
