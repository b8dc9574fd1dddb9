"""Resource limits of programs, and the results of running them."""

from __future__ import annotations

import dataclasses
from typing import Any

from envs.tasks.sandbox.inside import values

LIMITS = ("wall", "cpu", "memory", "processes", "output", "files")


class SandboxUnavailable(RuntimeError):
    """An error for machines that do not allow isolation.

    The message names the causes and how to run without isolation.
    """


@dataclasses.dataclass(frozen=True)
class Limits:
    """Resource limits of a program and all processes it starts.

    Attributes:
        wall: Wall-clock time in seconds.
        cpu: CPU time in seconds.
        memory_mb: Memory of each process and of all processes together.
        processes: Number of processes and threads.
        output_kb: Size of standard output and of standard error.
        file_mb: Size of each file and of the private folder.
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
                raise ValueError(f"Limits.{field.name} is {value!r}, but must be a positive number < 2**31")
            if field.type == "int" and not isinstance(value, int):
                raise ValueError(f"Limits.{field.name} is {value!r}, but must be an integer")


@dataclasses.dataclass(frozen=True)
class SandboxResult:
    """The result of a program.

    Attributes:
        status: "ok" (exit code 0), "error" (the program ended in any other way), "limit" (it was killed at, or failed
            because of, the limit named in `limit`) or "refused" (it made a forbidden system call or could not be run).
        stdout: Standard output.
        stderr: Standard error; the reason if `status` is "refused".
        seconds: Wall-clock time.
        exit_code: Exit code, or minus the signal number if a signal killed the program; None if it did not run to an
            end.
        limit: Name of the limit that was hit.
    """

    status: str
    stdout: str
    stderr: str
    seconds: float
    exit_code: int | None = None
    limit: str | None = None

    def to_json(self) -> dict:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class CallResult:
    """The result of one call of `run_calls`.

    Attributes:
        status: See `SandboxResult`; "ok" means that the call returned.
        value: Tree of the returned value (`inside/values.py`) if `status` is "ok". It comes from an untrusted process,
            so `values.check` must accept it before use.
        error: Description of the error in one line.
    """

    status: str
    value: Any = None
    error: str = ""

    def equals(self, expected) -> bool:
        """Check whether the call returned a value, by Python's rules for equality."""
        if self.status != "ok":
            return False
        try:
            values.check(self.value)
        except values.NotAValue:
            return False
        wanted = values.canonical(values.encode(expected))
        return wanted is not None and values.canonical(self.value) == wanted

    def show(self) -> str:
        """Return the value as Python source, or the error; the text may be long."""
        if self.status != "ok":
            return self.error or self.status
        try:
            values.check(self.value)
            return values.source(self.value)
        except values.NotAValue as why:
            return str(why)

    def to_json(self) -> dict:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class TestResult:
    """The verdict on one test of `run_asserts`.

    Attributes:
        passed: Whether the test passed.
        reason: Why it failed.
        protected: Whether the verdict was reached where the program could not change it. If False, the test ran in the
            program's process, and a program that looks for the test can fake it.
    """

    __test__ = False  # not a pytest class

    passed: bool
    reason: str = ""
    protected: bool = True

    def to_json(self) -> dict:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)
