"""What a program may use, and what came of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from envs.tasks.sandbox.inside import values

LIMITS = ("wall", "cpu", "memory", "processes", "output", "files")


class SandboxUnavailable(RuntimeError):
    """This machine does not allow real isolation; the text names what failed and how to do without."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a program and of everything it starts.

    `wall` and `cpu` are seconds. `memory_mb` holds for each process and for their sum. `processes` counts threads too.
    `output_kb` holds for standard output and standard error each, `file_mb` for each file and for the private folder.
    """

    wall: float = 5.0
    cpu: float = 4.0
    memory_mb: int = 512
    processes: int = 16
    output_kb: int = 64
    file_mb: int = 16

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1 << 31:
                raise ValueError(f"Limits.{field.name} is {value!r}, expected a positive number")
            if field.type == "int" and not isinstance(value, int):
                raise ValueError(f"Limits.{field.name} is {value!r}, expected an integer")


@dataclasses.dataclass(frozen=True)
class SandboxResult:
    """How a program ended.

    status: "ok" (exit code 0), "error" (any other ending of its own), "limit" (killed at, or failed because of, the
    limit named in `limit`), "refused" (it made a forbidden system call, or could not be run: `stderr` has the reason).
    `exit_code` is minus the signal for a program that was killed by one, None if it never ran to an end.
    """

    status: str
    stdout: str
    stderr: str
    seconds: float
    exit_code: int | None = None
    limit: str | None = None

    def to_json(self) -> dict:
        """The fields, as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class CallResult:
    """What became of one call of `run_calls`.

    status: as in `SandboxResult`, where "ok" means that the call returned. `value` is then its tree
    (see `inside/values.py`);
    `error` says in a line what went wrong.
    """

    status: str
    value: Any = None
    error: str = ""

    def equals(self, expected) -> bool:
        """Whether the call returned this value, by Python's rules for numbers, strings and containers."""
        if self.status != "ok":
            return False
        try:
            values.check(self.value)
        except values.NotAValue:
            return False
        wanted = values.canonical(values.encode(expected))
        return wanted is not None and values.canonical(self.value) == wanted

    def show(self) -> str:
        """The value as Python source, or the error: what to report to a model. May be long."""
        if self.status != "ok":
            return self.error or self.status
        try:
            values.check(self.value)
            return values.source(self.value)
        except values.NotAValue as why:
            return str(why)

    def to_json(self) -> dict:
        """The fields, as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class TestResult:
    """What became of one test of `run_asserts`.

    `protected` says that the verdict was made where the program could not reach it. Where it is False the test ran in
    the program's own process, and a program that looks for it can fake it.
    """

    __test__ = False  # not a test of pytest's

    passed: bool
    reason: str = ""
    protected: bool = True

    def to_json(self) -> dict:
        """The fields, as JSON values."""
        return dataclasses.asdict(self)
