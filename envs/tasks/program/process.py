"""A program of the user's in a process group of its own, which is gone when `run` returns, whatever happens.

The programs are trusted: they are the user's agents and run with the user's rights. What a model writes is not, and a
program that executes such text does so in `envs.tasks.sandbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL = 1 << 16  # bytes at the end of an output that are kept
PIPE_SECONDS = 1.0  # for the pipes to be closed after the end; a process that has left the group may hold them open


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a program ended.

    code    0, or what it exited with; negative: the signal that ended it
    output  the end of what it wrote to stdout
    errors  the same of stderr
    """

    code: int
    output: str
    errors: str


def command_of(program: str) -> list[str]:
    """The words of a command; a Python file runs with this interpreter. A program that is not there is a ValueError."""
    try:
        words = shlex.split(program)
    except ValueError as error:
        raise ValueError(f"program is {program!r}: {error}") from None
    if not words:
        raise ValueError("program is ''; expected a Python file or a command")
    if words[0].endswith(".py"):
        if not Path(words[0]).is_file():
            raise ValueError(f"program is {program!r}: there is no file {Path(words[0]).absolute()}")
        return [sys.executable, *words]
    if shutil.which(words[0]) is None:
        raise ValueError(f"program is {program!r}: there is no command {words[0]!r}")
    return words


async def run(command: Sequence[str], given: bytes, environment: Mapping[str, str]) -> Ended:
    """Runs a command to its end with `given` on stdin; where this is cancelled, all its processes are killed."""
    # A start that is cancelled halfway would leave asyncio waiting for what the program has started by then.
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            _Watch, *command, env=dict(os.environ) | dict(environment), start_new_session=True
        )
    )
    try:
        transport, watch = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _end(*await starting)
        raise
    try:
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        stdin.write(given)
        stdin.close()  # when everything is written
        await watch.exited.wait()
    finally:
        await _end(transport, watch)
    code = transport.get_returncode()
    assert code is not None  # the process has exited
    return Ended(code, watch.text(1), watch.text(2))


async def _end(transport: asyncio.SubprocessTransport, watch: _Watch) -> None:
    """Kills the group of a process: also what it has started and left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(watch.closed.wait(), PIPE_SECONDS)
    transport.close()


class _Watch(asyncio.SubprocessProtocol):
    """Keeps the ends of what a process writes, and knows when it has ended and when all its pipes are closed."""

    def __init__(self):
        self.exited, self.closed = asyncio.Event(), asyncio.Event()
        self._tails = {1: b"", 2: b""}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Called by asyncio."""
        self._tails[fd] = (self._tails[fd] + data)[-TAIL:]

    def process_exited(self) -> None:
        """Called by asyncio."""
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.closed.set()

    def text(self, fd: int) -> str:
        """The end of stdout (1) or stderr (2)."""
        return self._tails[fd].decode("utf-8", "replace")
