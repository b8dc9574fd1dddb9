"""What an endpoint knows of the processes that serve together with it; by default it serves alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any


class Count:
    """How many there are of something, in this process and in all."""

    def __init__(self):
        self.own = 0

    def add(self, by: int) -> None:
        """More or, with a negative number, fewer in this process."""
        self.own += by

    @property
    def total(self) -> int:
        """In all processes."""
        return self.own


@dataclasses.dataclass(frozen=True)
class Peer:
    """One of the processes that answer the requests of one server.

    mark       stands in the ids and keys of its sessions, so that others know whose they are
    port       on which it alone listens; None where it serves alone
    requests   under way
    sessions   that have not ended
    snapshots  the metrics of all processes (`Metrics.snapshot`); None where it serves alone
    """

    mark: str = ""
    port: int | None = None
    requests: Count = dataclasses.field(default_factory=Count)
    sessions: Count = dataclasses.field(default_factory=Count)
    snapshots: Callable[[], Awaitable[list[list[dict[str, Any]]]]] | None = None
