"""Events of a training run that explain its curves, written to `events.jsonl`.

rejected   an update was undone because completions lost too much probability
skipped    an update was skipped because it was not finite
alarm      training stopped making progress
rollback   the run returned to an earlier checkpoint
solved     the run reached its goal and stopped
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marl_jax.running.metrics import JsonLines, read_json_lines

FILE = "events.jsonl"
KINDS = ("rejected", "skipped", "alarm", "rollback", "solved")


class Events:
    """Writer of the events of a run.

    events = Events(workdir, start=step, main=jax.process_index() == 0)
    events.write(step, "rejected", "completions lost 4.1 nats, more than 3")
    """

    def __init__(self, workdir: Path, start: int = 0, main: bool = True):
        """Open the file and drop the events after the step that the run resumes from.

        Args:
            workdir: Folder of the run.
            start: Step that the run resumes from; 0 starts a new file.
            main: Whether this process writes (process 0).
        """
        self._rows = JsonLines(workdir / FILE, start) if main else None

    def write(self, step: int, kind: str, message: str) -> None:
        """Append one event; `kind` must be one of `KINDS`."""
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, but must be one of: {', '.join(KINDS)}")
        if self._rows is not None:
            self._rows.write({"step": step, "time": time.time(), "kind": kind, "message": message})

    def close(self) -> None:
        """Close the file."""
        if self._rows is not None:
            self._rows.close()


def read_events(workdir: Path) -> list[dict[str, Any]]:
    """Read the events of a run in the order in which they were written."""
    return read_json_lines(workdir / FILE)


@dataclasses.dataclass(frozen=True)
class Fold:
    """Events of one kind on consecutive steps, with the message of the last one."""

    kind: str
    first: int
    last: int
    message: str

    @property
    def steps(self) -> str:
        """First and last step as text."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def fold_events(events: Iterable[Mapping[str, Any]]) -> list[Fold]:
    """Fold events of the same kind on consecutive steps into one.

    The result is in the order of the first steps.
    """
    folds: list[Fold] = []
    newest: dict[str, int] = {}  # kind -> index in `folds` of its last entry
    for event in sorted(events, key=lambda event: event["step"]):
        kind, step, message = event["kind"], event["step"], event["message"]
        at = newest.get(kind)
        if at is not None and step <= folds[at].last + 1:
            folds[at] = dataclasses.replace(folds[at], last=step, message=message)
        else:
            newest[kind] = len(folds)
            folds.append(Fold(kind, step, step, message))
    return folds
