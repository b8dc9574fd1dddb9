"""Answers of judges on disk, by texts, judge and version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class VerdictCache:
    """A JSONL file of answers, one per line: {"key": SHA-256, "value": 0.93}.

    Lines are appended and never changed, so that an interrupted run loses at most the answer that it was writing.
    Answers that are not verdicts are not stored, and are asked for again.

    Args:
        path: The file, which is created with the first answer.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).expanduser()
        self._known: dict[str, Any] = {}
        self.hits = self.misses = 0
        data = self.path.read_bytes() if self.path.exists() else b""
        for line in data.splitlines():
            try:
                value = json.loads(line)
                self._known[value["key"]] = value["value"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # a line that was cut off
        self._start = b"" if data.endswith(b"\n") or not data else b"\n"

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Sequence[str]) -> Any:
        """Return a known answer, or None."""
        known = self._known.get(_digest(key))
        self.hits, self.misses = self.hits + (known is not None), self.misses + (known is None)
        return known

    def put(self, key: Sequence[str], value: Any) -> None:
        """Store an answer, a JSON value."""
        digest = _digest(key)
        self._known[digest] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(self._start + json.dumps({"key": digest, "value": value}).encode() + b"\n")
        self._start = b""


def _digest(key: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()
