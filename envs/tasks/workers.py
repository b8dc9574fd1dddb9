"""Functions called in other processes with a time limit, so that nothing they do can hold up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from envs.tasks.task import CallFailed, CallTimeout

LARGEST = 1 << 26  # bytes of one answer
START_LIMIT = 60.0  # seconds in which a process starts and imports a function


class Workers:
    """Up to `n` processes, started when they are needed; one that exceeds a time limit is killed and replaced.

    A pool belongs to the event loop it is first used in.
    """

    def __init__(self, n: int = 2):
        if n < 1:
            raise ValueError(f"workers is {n}; accepted: 1 or more")
        self.n = n
        self._free: list[asyncio.subprocess.Process] = []
        self._imported: dict[asyncio.subprocess.Process, set[str]] = {}
        self._ending: set[asyncio.Future] = set()
        self._places: asyncio.Semaphore | None = None

    async def call(self, function: Callable | str, *args: Any, limit: float) -> Any:
        """The result of a function of a module, or "module:function"; arguments and result are JSON values.

        The limit counts from when a process is free and running. Raises `CallTimeout` or `CallFailed`.
        """
        where = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
        if "<" in where or where.startswith("__main__:"):
            raise ValueError(f"{where} cannot be called in another process; expected a function of a module")
        request = {"function": where, "args": args}
        if self._places is None:
            self._places = asyncio.Semaphore(self.n)
        async with self._places:
            worker = self._free.pop() if self._free else await self._start()
            answer = None
            try:
                if where not in self._imported[worker]:  # which is not the function's time
                    async with asyncio.timeout(START_LIMIT):
                        await _exchange(worker, {**request, "import_only": True})
                    self._imported[worker].add(where)
                async with asyncio.timeout(limit):
                    answer = await _exchange(worker, request)
            except TimeoutError:
                raise CallTimeout(f"{where} took more than {limit:g} s") from None
            finally:
                if answer is None:
                    self._kill(worker)
                else:
                    self._free.append(worker)
        if "error" in answer:
            raise CallFailed(f"{where}: {answer['error']}")
        return answer["result"]

    async def close(self) -> None:
        """Ends the processes."""
        for worker in list(self._imported):
            self._kill(worker)
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._free.clear()

    async def _start(self) -> asyncio.subprocess.Process:
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "envs.tasks.worker", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=LARGEST, env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip
        self._imported[worker] = set()
        return worker

    def _kill(self, worker) -> None:
        self._imported.pop(worker, None)
        if worker.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.killpg(worker.pid, signal.SIGKILL)  # with whatever it has started
        ending = asyncio.ensure_future(worker.communicate())  # until its pipes are closed
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def _exchange(worker: asyncio.subprocess.Process, request: dict) -> dict:
    try:
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        await worker.stdin.drain()
        line = await worker.stdout.readline()
    except (ConnectionError, ValueError) as error:  # a process that is gone; an answer beyond LARGEST
        raise CallFailed(f"{type(error).__name__}: {error}") from error
    if not line:
        raise CallFailed("the process ended without an answer")
    return json.loads(line)
