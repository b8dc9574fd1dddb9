"""Runs of a user's program in a process group that never outlives them.

The programs are trusted: they are the user's agents and run with the user's permissions. Text written by a model is not
trusted, and a program that executes such text must do so in `envs.tasks.sandbox`.
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

TAIL = 1 << 16  # number of bytes kept from the end of an output
PIPE_SECONDS = 1.0  # wait for the pipes after the end; a process that left the group may keep them open


@dataclasses.dataclass(frozen=True)
class Ended:
    """The result of a program.

    Attributes:
        code: Exit code; negative if a signal ended the program.
        output: End of stdout.
        errors: End of stderr.
    """

    code: int
    output: str
    errors: str


def command_of(program: str) -> list[str]:
    """Split a command into words, with this interpreter for a Python file.

    Raises a ValueError if the program does not exist.
    """
    try:
        words = shlex.split(program)
    except ValueError as error:
        raise ValueError(f"program is {program!r}: {error}") from None
    if not words:
        raise ValueError("program is '', but must be a Python file or a command")
    if words[0].endswith(".py"):
        if not Path(words[0]).is_file():
            raise ValueError(f"program is {program!r}, but there is no file {Path(words[0]).absolute()}")
        return [sys.executable, *words]
    if shutil.which(words[0]) is None:
        raise ValueError(f"program is {program!r}, but there is no command {words[0]!r}")
    return words


async def run(command: Sequence[str], given: bytes, environment: Mapping[str, str]) -> Ended:
    """Run a command to its end with `given` on stdin.

    If this is cancelled, all processes of the run are killed.
    """
    # If the start were cancelled halfway, asyncio would wait for processes that the program has already started.
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
        stdin.close()  # after everything is written
        await watch.exited.wait()
    finally:
        await _end(transport, watch)
    code = transport.get_returncode()
    assert code is not None  # the process has exited
    return Ended(code, watch.text(1), watch.text(2))


async def _end(transport: asyncio.SubprocessTransport, watch: _Watch) -> None:
    """Kill the process group, including processes that the program started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(watch.closed.wait(), PIPE_SECONDS)
    transport.close()


class _Watch(asyncio.SubprocessProtocol):
    """A protocol that keeps the end of a process's outputs and tracks its exit."""

    def __init__(self):
        self.exited, self.closed = asyncio.Event(), asyncio.Event()
        self._tails = {1: b"", 2: b""}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the last bytes of an output."""
        self._tails[fd] = (self._tails[fd] + data)[-TAIL:]

    def process_exited(self) -> None:
        """Set `exited`."""
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Set `closed`, because all pipes are closed."""
        self.closed.set()

    def text(self, fd: int) -> str:
        """Return the end of stdout (1) or stderr (2)."""
        return self._tails[fd].decode("utf-8", "replace")
