"""A Python program that is loaded once and forked for every run.

Imports that take a second or more are executed only once.

    loaded = Preloaded(["ENVIRONMENT/bin/python", "agent.py"])
    ended = await loaded.run(given, variables)                    # like `process.run`
    loaded.close()
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from envs.tasks.program.process import PIPE_SECONDS, TAIL, Ended

SERVER = Path(__file__).with_name("fork_server.py")


class Preloaded:
    """A program loaded by a `fork_server.py`.

    The server is started on the first run, and again if it has ended.

    Args:
        command: An interpreter, a file and arguments.
    """

    def __init__(self, command: Sequence[str]):
        self._command = list(command)
        self._server: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._errors: IO[bytes] | None = None
        self._stop = lambda: None

    async def run(self, given: bytes, environment: Mapping[str, str]) -> Ended:
        """Run the program with `given` on stdin.

        If this is cancelled, all processes of the run are killed.
        """
        own, outputs = self._fork(given)
        tails = [_Tail(), _Tail()]
        reader, writer = await asyncio.open_connection(sock=own)
        transports, pid = [], 0
        try:
            loop = asyncio.get_running_loop()
            for tail, file in zip(tails, outputs, strict=True):
                transport, _ = await loop.connect_read_pipe(lambda tail=tail: tail, file)
                transports.append(transport)
            pid = int(await reader.readline() or 0)
            if pid:
                writer.write(json.dumps(dict(environment)).encode() + b"\n")
            # Empty if the server has ended, because the program could not be loaded or the server was killed.
            code = await reader.readline()
        finally:
            if pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # including processes that it started
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(tail.closed.wait() for tail in tails)), PIPE_SECONDS)
            for transport in (*transports, writer):
                transport.close()
        if not code:
            return Ended(1, "", f"{' '.join(self._command)} could not be loaded: {self._last_errors()}")
        return Ended(int(code), *(tail.data.decode("utf-8", "replace") for tail in tails))

    def close(self) -> None:
        """Stop the server without affecting running programs. May be called repeatedly."""
        self._stop()

    def _fork(self, given: bytes) -> tuple[socket.socket, list[IO[bytes]]]:
        """Request a run; return its socket, its stdout and its stderr."""
        if self._server is None or self._server.poll() is not None:
            self._start()
        assert self._control is not None  # set by `_start`
        own, remote = socket.socketpair()
        pipes = [os.pipe() for _ in range(2)]
        with remote, tempfile.TemporaryFile() as stdin:
            stdin.write(given)
            stdin.seek(0)
            try:
                with contextlib.suppress(BrokenPipeError):  # the server has just ended
                    files = [remote.fileno(), stdin.fileno(), *(write for _, write in pipes)]
                    socket.send_fds(self._control, [b"x"], files)
            finally:
                for _, write in pipes:
                    os.close(write)
        return own, [os.fdopen(read, "rb", 0) for read, _ in pipes]

    def _start(self) -> None:
        self._stop()
        self._control, remote = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_stop`)
        python, *program = self._command
        with remote:
            self._server = subprocess.Popen(
                [python, str(SERVER), str(remote.fileno()), *program], pass_fds=[remote.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True,
            )  # fmt: skip
        self._stop = weakref.finalize(self, _stop, self._server, self._control, self._errors)

    def _last_errors(self) -> str:
        assert self._errors is not None  # set by `_start`
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - TAIL))
        return self._errors.read().decode("utf-8", "replace")


def _stop(server: subprocess.Popen, control: socket.socket, errors: IO[bytes]) -> None:
    control.close()
    server.kill()
    server.wait()
    errors.close()


class _Tail(asyncio.Protocol):
    """A protocol that keeps the end of the data from a pipe."""

    def __init__(self):
        self.data, self.closed = b"", asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Keep the last bytes."""
        self.data = (self.data + data)[-TAIL:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Set `closed`."""
        self.closed.set()
