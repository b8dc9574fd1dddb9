"""Functions called in other processes with a time limit, so that nothing they do can hold up the event loop.

The loop's own part of a call is small, because hundreds of episodes share it with the sampler's thread. Calls that
come in one turn of the loop are sent together, and where more of them wait than there are processes, a process is given
two: it finds the next one without waiting for the loop. No more than two, because the next one waits for a call that
takes long, and is not taken back from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from envs.tasks.replies import CallFailed, CallTimeout

LARGEST = 1 << 26  # bytes of one answer
START_LIMIT = 60.0  # seconds in which a process starts and imports a function
AHEAD = 2  # calls that a process has at once, at most


class Workers:
    """Up to `n` processes, started when they are needed; one that exceeds a time limit is killed and replaced.

    A pool belongs to the event loop it is first used in.
    """

    def __init__(self, n: int = 2):
        if n < 1:
            raise ValueError(f"workers is {n}, but must be >= 1")
        self.n = n
        self._queue: deque[_Call] = deque()
        self._free: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._starting: set[asyncio.Future] = set()
        self._ending: set[asyncio.Future] = set()
        self._scheduled = False

    async def call(self, function: Callable | str, *args: Any, limit: float) -> Any:
        """The result of a function of a module, or "module:function"; arguments and result are JSON values.

        The limit counts from when a process has begun with the call. Raises `CallTimeout` or `CallFailed`.
        """
        where = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
        if "<" in where or where.startswith("__main__:"):
            raise ValueError(f"{where} cannot be called in another process; expected a function of a module")
        call = _Call(where, _line({"function": where, "args": args}), limit)
        self._queue.append(call)
        self._schedule()
        try:
            answer = await call.answer
        except asyncio.CancelledError:
            self._drop(call)
            raise
        if "error" in answer:
            raise CallFailed(f"{where}: {answer['error']}")
        return answer["result"]

    async def close(self) -> None:
        """Ends the processes."""
        await asyncio.gather(*self._starting)
        for worker in list(self._workers):
            self._kill(worker)
        for call in self._queue:
            call.fail(CallFailed("the processes were ended"))
        self._queue.clear()
        await asyncio.gather(*self._ending)

    # ------------------------------------------------------------------------------------------------ who gets what

    def _schedule(self) -> None:
        """Hands calls out at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        self._scheduled = False
        for _ in range(min(len(self._queue) - len(self._free), self.n - len(self._workers)) - len(self._starting)):
            _remember(self._starting, asyncio.ensure_future(self._start()))
        while self._queue and self._free:
            worker, share = self._free.pop(), AHEAD if len(self._queue) > self.n else 1
            worker.take([self._queue.popleft() for _ in range(share)])

    async def _start(self) -> None:
        try:
            worker = _Worker(self)
            await worker.connect()
        except OSError as error:
            for call in self._queue:
                call.fail(CallFailed(f"a process could not be started: {error}"))
            self._queue.clear()
            return
        self._workers.add(worker)
        self._free.append(worker)
        self._schedule()

    def _answered(self, worker: _Worker) -> None:
        """A process has answered something, and may have nothing left."""
        if not worker.calls:
            self._free.append(worker)
            self._hand_out()
        elif self._queue and len(worker.calls) < AHEAD:
            worker.take([self._queue.popleft()])

    def _drop(self, call: _Call) -> None:
        """Nobody waits for this call any more; a process that is at it is ended."""
        if call in self._queue:
            self._queue.remove(call)
        for worker in [worker for worker in self._workers if call in worker.calls]:
            if worker.calls[0] is call:
                self._kill(worker)

    def _kill(self, worker: _Worker) -> None:
        """Ends a process. Calls that it had not begun with go to others."""
        self._workers.discard(worker)
        if worker in self._free:
            self._free.remove(worker)
        left = [call for call in worker.calls if not call.imports and not call.answer.done()]
        worker.calls.clear()
        worker.close()
        self._queue.extendleft(reversed(left))
        _remember(self._ending, asyncio.get_running_loop().run_in_executor(None, worker.process.wait))
        if self._queue:
            self._schedule()


class _Call:
    """A call that waits or is under way.

    line     what is sent
    imports  it only imports what the next call needs, and nobody waits for it
    answer   what the process says
    """

    __slots__ = ("where", "line", "limit", "imports", "answer")

    def __init__(self, where: str, line: bytes, limit: float, imports: bool = False):
        self.where, self.line, self.limit, self.imports = where, line, limit, imports
        self.answer: asyncio.Future[dict] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Worker(asyncio.Protocol):
    """One process.

    calls  those it was given and has not answered; it is at the first
    """

    def __init__(self, pool: Workers):
        self._pool = pool
        self.calls: deque[_Call] = deque()
        self._imported: set[str] = set()
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._loop = asyncio.get_running_loop()
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        self._ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "envs.tasks.worker"], stdin=theirs.fileno(), stdout=theirs.fileno(),
                env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
            )  # fmt: skip

    async def connect(self) -> None:
        """The process is spoken to from now on."""
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=self._ours)

    def take(self, calls: list[_Call]) -> None:
        """Sends calls, each function's module before its first one: to import it is not the function's time."""
        idle, lines = not self.calls, []
        for call in calls:
            if call.where not in self._imported:
                self._imported.add(call.where)
                line = _line({"function": call.where, "args": (), "import_only": True})
                first = _Call(call.where, line, START_LIMIT, imports=True)
                self.calls.append(first)
                lines.append(first.line)
            self.calls.append(call)
            lines.append(call.line)
        assert self._transport is not None  # `connect` comes first
        self._transport.write(b"".join(lines))
        if idle:
            self._begin()

    def data_received(self, data: bytes) -> None:
        """Answers, one a line."""
        self._data += data
        *lines, rest = self._data.split(b"\n") if b"\n" in data else [self._data]
        self._data = rest
        for line in lines:
            if not self.calls:
                return
            call, answer = self.calls.popleft(), json.loads(line)
            if call.imports and "error" in answer:  # its first call will say so too
                self._imported.discard(call.where)
            elif not call.answer.done():  # it was not cancelled
                call.answer.set_result(answer)
            self._begin()
        if len(self._data) > LARGEST:
            self._fail(CallFailed(f"an answer of more than {LARGEST} bytes"))
        elif lines:
            self._pool._answered(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is gone, with what it was at."""
        if self in self._pool._workers:
            self._fail(CallFailed("the process ended without an answer"))

    def close(self) -> None:
        """Kills the process, with whatever it has started."""
        if self._timer is not None:
            self._timer.cancel()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.killpg(self.process.pid, signal.SIGKILL)
        if self._transport is None:
            self._ours.close()
        else:
            self._transport.abort()

    def _begin(self) -> None:
        """The time of the first call runs from now on. One timer serves all calls: it looks again when it is early."""
        if self.calls:
            self._deadline = self._loop.time() + self.calls[0].limit
            if self._timer is None or self._deadline < self._timer.when():
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.calls:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        else:
            call = self.calls[0]
            self._fail(CallTimeout(f"{call.where} took more than {call.limit:g} s"))

    def _fail(self, error: Exception) -> None:
        """The first call has failed, and the process with it."""
        if self.calls:
            call = self.calls.popleft()
            if call.imports:  # what the next call needs
                call = self.calls.popleft()
            call.fail(error)
        self._pool._kill(self)


def _remember(futures: set[asyncio.Future], future: asyncio.Future) -> None:
    """Keeps a future until it is done."""
    futures.add(future)
    future.add_done_callback(futures.discard)


def _line(request: dict) -> bytes:
    return json.dumps(request).encode() + b"\n"
