"""Pool of processes that call functions with a time limit, without blocking the event loop.

The work per call in the event loop is small, because hundreds of episodes share it with the sampler's thread. Calls
from one iteration of the loop are sent together. If more calls wait than there are processes, a process gets two, so
that it can start the second without waiting for the loop. It never gets more, because a call that waits for a slow one
is not moved to another process.
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

LARGEST = 1 << 26  # maximum size of a response in bytes
START_LIMIT = 60.0  # time limit in seconds for starting a process and importing a function
AHEAD = 2  # maximum number of calls assigned to a process


class Workers:
    """A pool of up to `n` processes, which are started on demand.

    A process that exceeds a time limit is killed and replaced. A pool belongs to the event loop of its first call.
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
        """Call a module-level function, or "module:function", in another process.

        Arguments and result are JSON values. The time limit starts when a process begins with the call.

        Raises:
            CallTimeout: The call exceeded `limit` seconds.
            CallFailed: The function raised, or its process ended.
        """
        where = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
        if "<" in where or where.startswith("__main__:"):
            raise ValueError(f"{where} cannot be called in another process; use a module-level function")
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
        """End the processes."""
        await asyncio.gather(*self._starting)
        for worker in list(self._workers):
            self._kill(worker)
        for call in self._queue:
            call.fail(CallFailed("the worker processes were stopped"))
        self._queue.clear()
        await asyncio.gather(*self._ending)

    # ---------------------------------------------------------------------------------------------------- scheduling

    def _schedule(self) -> None:
        """Assign calls to processes at the end of this iteration of the event loop."""
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
                call.fail(CallFailed(f"a worker process could not be started: {error}"))
            self._queue.clear()
            return
        self._workers.add(worker)
        self._free.append(worker)
        self._schedule()

    def _answered(self, worker: _Worker) -> None:
        """Assign more calls to a process that has responded."""
        if not worker.calls:
            self._free.append(worker)
            self._hand_out()
        elif self._queue and len(worker.calls) < AHEAD:
            worker.take([self._queue.popleft()])

    def _drop(self, call: _Call) -> None:
        """Cancel a call, and kill the process that is executing it."""
        if call in self._queue:
            self._queue.remove(call)
        for worker in [worker for worker in self._workers if call in worker.calls]:
            if worker.calls[0] is call:
                self._kill(worker)

    def _kill(self, worker: _Worker) -> None:
        """Kill a process and requeue the calls that it has not started."""
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
    """A call that is waiting or being executed.

    Attributes:
        where: "module:function".
        line: The encoded request.
        limit: Time limit in seconds.
        imports: Whether the request only imports the module of the next call.
        answer: Future of the response.
    """

    __slots__ = ("where", "line", "limit", "imports", "answer")

    def __init__(self, where: str, line: bytes, limit: float, imports: bool = False):
        self.where, self.line, self.limit, self.imports = where, line, limit, imports
        self.answer: asyncio.Future[dict] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Worker(asyncio.Protocol):
    """One worker process.

    Attributes:
        calls: Assigned calls without a response; the first one is being executed.
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
        self._ours, remote = socket.socketpair()
        with remote:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "envs.tasks.worker"], stdin=remote.fileno(), stdout=remote.fileno(),
                env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
            )  # fmt: skip

    async def connect(self) -> None:
        """Connect to the process."""
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=self._ours)

    def take(self, calls: list[_Call]) -> None:
        """Send calls to the process.

        The module of a function is imported before its first call, so that the import does not count as time of the
        call.
        """
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
        """Process responses, one per line."""
        self._data += data
        *lines, rest = self._data.split(b"\n") if b"\n" in data else [self._data]
        self._data = rest
        for line in lines:
            if not self.calls:
                return
            call, answer = self.calls.popleft(), json.loads(line)
            if call.imports and "error" in answer:  # the next call will fail in the same way
                self._imported.discard(call.where)
            elif not call.answer.done():  # not cancelled
                call.answer.set_result(answer)
            self._begin()
        if len(self._data) > LARGEST:
            self._fail(CallFailed(f"the response has more than {LARGEST} bytes"))
        elif lines:
            self._pool._answered(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the current call if the process ended by itself."""
        if self in self._pool._workers:
            self._fail(CallFailed("the worker process ended without a response"))

    def close(self) -> None:
        """Kill the process and all processes that it started."""
        if self._timer is not None:
            self._timer.cancel()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.process.pid, signal.SIGKILL)
        if self._transport is None:
            self._ours.close()
        else:
            self._transport.abort()

    def _begin(self) -> None:
        """Start the time limit of the first call.

        One timer serves all calls; if it fires early, it is set again.
        """
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
        """Fail the first call and kill the process."""
        if self.calls:
            call = self.calls.popleft()
            if call.imports:  # the import for the next call
                call = self.calls.popleft()
            call.fail(error)
        self._pool._kill(self)


def _remember(futures: set[asyncio.Future], future: asyncio.Future) -> None:
    """Keep a reference to a future until it is done."""
    futures.add(future)
    future.add_done_callback(futures.discard)


def _line(request: dict) -> bytes:
    return json.dumps(request).encode() + b"\n"
