"""The sandbox: a pool of workers, and what is asked of them."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence

from envs.tasks.sandbox import asserts as split_asserts
from envs.tasks.sandbox import calls as program_calls
from envs.tasks.sandbox import launch, probe
from envs.tasks.sandbox.results import CallResult, Limits, SandboxResult, TestResult
from envs.tasks.sandbox.worker import SandboxWorker, WorkerFailed, WorkerLate

log = logging.getLogger(__name__)


class Sandbox:
    """Runs untrusted Python programs, `workers` at a time (default: one per CPU).

    With mode "auto" it probes by real attacks what this machine allows, takes the strongest way in which all of them
    are contained, and raises SandboxUnavailable if there is none. `layers` says what holds. Mode "process" has limits
    only: a program can read and write what this process can, and use the network.

    `run` and its like are for coroutines of any event loop, `run_sync` for everything else. More programs than workers
    wait for their turn. `plan` picks one way without looking at others, for tests; with `layers`, those that another
    process of this machine and user has found to hold under it, it is not probed again.
    """

    def __init__(
        self, workers: int | None = None, mode: str = "auto", *, plan: launch.Plan | None = None,
        layers: Sequence[str] | None = None,
    ):  # fmt: skip
        if mode not in ("auto", "process"):
            raise ValueError(f"mode is {mode!r}, expected 'auto' or 'process'")
        self.workers = workers or len(os.sched_getaffinity(0))
        self.mode = mode
        if mode == "process":
            plan = launch.Plan(None, layers=False)
            self.layers: tuple[str, ...] = ("rlimits",)
            log.warning("sandbox=process: programs are limited but not isolated; they can reach files and the network")
        elif plan is not None and layers is not None:
            self.layers = tuple(layers)
        else:
            plan, self.layers = probe.choose(None if plan is None else (plan,))
            log.info("sandbox: %s", ", ".join(self.layers))
        self.plan = plan
        self._idle: queue.LifoQueue[SandboxWorker | None] = queue.LifoQueue()
        for _ in range(self.workers):
            self._idle.put(None)  # started when first needed
        self._threads = concurrent.futures.ThreadPoolExecutor(self.workers, "sandbox")
        self._lock = threading.Lock()
        self._running: set[SandboxWorker] = set()
        self._closed = False

    @functools.cached_property
    def settings(self) -> dict:
        """How it isolates, a JSON value: `same_sandbox` makes one of these in another process, without probing."""
        return {"mode": self.mode, "plan": dataclasses.asdict(self.plan), "layers": list(self.layers)}

    # Programs

    async def run(self, program: str, *, stdin: str = "", limits: Limits | None = None) -> SandboxResult:
        """Run a program to its end or its limits."""
        return await self._in_thread(self.run_sync, program, stdin=stdin, limits=limits)

    def run_sync(self, program: str, *, stdin: str = "", limits: Limits | None = None) -> SandboxResult:
        """`run` for callers without an event loop."""
        return self._submit(program, stdin, limits or Limits())[0]

    async def run_cases(self, program: str, stdins: list[str], *, limits: Limits | None = None) -> list[SandboxResult]:
        """Run a program on several inputs, each with its own limits. Compare `stdout` with what is expected."""
        return list(await asyncio.gather(*(self.run(program, stdin=stdin, limits=limits) for stdin in stdins)))

    # Calls

    async def run_calls(self, program: str, calls: list[str], *, limits: Limits | None = None) -> list[CallResult]:
        """Load a program and evaluate expressions in it, each as if in a fork of the loaded program.

        The limits hold for loading and all calls together. Calls after the one that hit a limit have that limit too.
        """
        return await self._in_thread(self.run_calls_sync, program, calls, limits=limits)

    def run_calls_sync(self, program: str, calls: list[str], *, limits: Limits | None = None) -> list[CallResult]:
        """`run_calls` for callers without an event loop."""
        items = [{"kind": "value", "source": call} for call in calls]
        return self.evaluate(program, items, limits or Limits())

    def evaluate(self, program: str, items: list[dict], limits: Limits, name: str = "__main__") -> list[CallResult]:
        """Calls (`kind` "value"), tests inside the program's process ("test") and whether a text is Python ("builds",
        whose value may be missing where all calls returned), in order. `name` is the program's `__name__`."""
        return program_calls.evaluate(self._submit_calls, program, items, limits, name)

    def evaluate_groups(
        self, program: str, groups: list[list[dict]], limits: Limits, name: str = "__main__"
    ) -> list[list[CallResult]]:
        """`evaluate` for several lists of items, each with limits of its own."""
        return program_calls.evaluate_groups(self._submit_calls, program, groups, limits, name)

    async def run_asserts(
        self, program: str, asserts: list[str], *, setup: str = "", limits: Limits | None = None
    ) -> list[TestResult]:
        """Test a program by statements like `assert f(1) == 2`, each in a fork of the loaded program; see `asserts.py`.

        `setup` runs after the program and before the tests, and may use both. The limits hold for loading the program
        and all calls of it together, and again for each later step: deciding in a clean process, tests run inside.
        """
        return await self._in_thread(self.run_asserts_sync, program, asserts, setup=setup, limits=limits)

    def run_asserts_sync(
        self, program: str, asserts: list[str], *, setup: str = "", limits: Limits | None = None
    ) -> list[TestResult]:
        """`run_asserts` for callers without an event loop."""
        return split_asserts.run(self.evaluate, program, asserts, setup, limits or Limits())

    # Workers

    def close(self) -> None:
        """End all workers, with what they run."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for worker in running:
            worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker is not None:
                    worker.close()
        self._idle.put(None)  # whoever still waits for a worker wakes up, and passes it on

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    async def _in_thread(self, function, *args, **kwargs):
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _submit_calls(self, program: str, limits: Limits, items: bytes, name: str) -> tuple[SandboxResult, bytes]:
        return self._submit(program, "", limits, items, name)

    def _submit(
        self, program: str, stdin: str, limits: Limits, items: bytes | None = None, name: str = "__main__"
    ) -> tuple[SandboxResult, bytes]:
        """The result of a program, and what it wrote on its pipe of results."""
        reason = ""
        for _ in range(2):  # a worker that died without a word is replaced, and the program tried once more
            started = time.monotonic()
            try:
                with self._worker() as lease:
                    started = time.monotonic()
                    assert lease.worker is not None
                    result, records, lease.reusable = lease.worker.execute(program, stdin, limits, items, name)
                    return result, records
            except WorkerLate as late:
                return SandboxResult("limit", "", str(late), time.monotonic() - started, None, "wall"), b""
            except WorkerFailed as failure:
                if self._closed:
                    raise RuntimeError("the sandbox was closed") from None
                reason = str(failure)
                log.warning("sandbox: a worker failed: %s", reason)
        return SandboxResult("refused", "", f"two workers failed: {reason}", 0.0), b""

    @contextlib.contextmanager
    def _worker(self):
        """A worker of its own for the caller; it goes back only if `reusable` was set, whatever happened."""
        lease = _Lease(self._idle.get())
        try:
            if lease.worker is None and not self._closed:
                lease.worker = SandboxWorker(self.plan)
            with self._lock:  # closed before this: it ends here; closed after it: it is killed
                if self._closed:
                    raise RuntimeError("the sandbox was closed")
                assert lease.worker is not None
                self._running.add(lease.worker)
            yield lease
        finally:
            with self._lock:
                self._running.discard(lease.worker)
                keep = lease.reusable and not self._closed
            if lease.worker is not None and not keep:
                lease.worker.close()
            self._idle.put(lease.worker if keep else None)


@dataclasses.dataclass
class _Lease:
    worker: SandboxWorker | None
    reusable: bool = False


_making = threading.Lock()


@functools.cache
def _shared(pid: int, mode: str) -> Sandbox:
    sandbox = Sandbox(mode=mode)
    atexit.register(sandbox.close)
    return sandbox


def shared_sandbox(mode: str = "auto") -> Sandbox:
    """The sandbox of this process, made when first used and closed at its end."""
    with _making:
        return _shared(os.getpid(), mode)


SIDE_BY_SIDE = 4
"""Programs that one process of a pool runs at once; the pool has a process for each CPU."""


@functools.cache
def _same(pid: int, settings: str) -> Sandbox:
    found = json.loads(settings)
    sandbox = Sandbox(SIDE_BY_SIDE, found["mode"], plan=launch.Plan(**found["plan"]), layers=found["layers"])
    atexit.register(sandbox.close)
    return sandbox


def same_sandbox(settings: Mapping) -> Sandbox:
    """A sandbox of this process that isolates as another process's does, of which these are the settings."""
    with _making:
        return _same(os.getpid(), json.dumps(settings))
