"""The sandbox: a pool of workers that run untrusted programs."""

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
from envs.tasks.sandbox import launch, native, probe
from envs.tasks.sandbox.results import CallResult, Limits, SandboxResult, TestResult
from envs.tasks.sandbox.worker import SandboxWorker, WorkerFailed, WorkerLate

log = logging.getLogger(__name__)


class Sandbox:
    """A pool of workers that run untrusted Python programs.

    With mode "auto", it tests with real attacks what this machine allows and uses the strongest plan that contains all
    of them. It raises SandboxUnavailable if there is none. The attribute `layers` names the active isolation layers.
    With mode "process", only resource limits apply: a program has this process's access to files and the network.

    `run` and the other coroutines work with any event loop; `run_sync` and the like are for other callers. Programs
    wait if all workers are busy.

    Args:
        workers: Number of programs that run at a time; None for one per CPU.
        mode: "auto" or "process".
        plan: Plan to use instead of choosing one.
        layers: Layers known to be active under `plan`, from another process of this machine and user. The attacks are
            then skipped.
        programs: Absolute paths of native programs for `run_native`, and of folders that they read. They are readable
            and executable, and the plan is tested with them.
    """

    def __init__(
        self, workers: int | None = None, mode: str = "auto", *, plan: launch.Plan | None = None,
        layers: Sequence[str] | None = None, programs: Sequence[str] = (),
    ):  # fmt: skip
        if mode not in ("auto", "process"):
            raise ValueError(f"mode is {mode!r}, but must be one of: auto, process")
        self.workers = workers or len(os.sched_getaffinity(0))
        self.mode = mode
        if mode == "process":
            plan = launch.Plan(None, layers=False, programs=tuple(programs))
            self.layers: tuple[str, ...] = ("rlimits",)
            log.warning("sandbox=process: programs are limited but not isolated; they can reach files and the network")
        elif plan is not None and layers is not None:
            self.layers = tuple(layers)
        else:
            plans = None if plan is None else (plan,)
            if programs:
                allowed = tuple(programs)
                plans = tuple(dataclasses.replace(one, programs=allowed) for one in plans or probe.ways())
            plan, self.layers = probe.choose(plans)
            log.info("sandbox: %s", ", ".join(self.layers))
        self.plan = plan
        self._idle: queue.LifoQueue[SandboxWorker | None] = queue.LifoQueue()
        for _ in range(self.workers):
            self._idle.put(None)  # started on first use
        self._threads = concurrent.futures.ThreadPoolExecutor(self.workers, "sandbox")
        self._lock = threading.Lock()
        self._running: set[SandboxWorker] = set()
        self._closed = False

    @functools.cached_property
    def settings(self) -> dict:
        """The isolation settings as a JSON value.

        `same_sandbox` builds an equal sandbox from them in another process without repeating the attacks.
        """
        return {"mode": self.mode, "plan": dataclasses.asdict(self.plan), "layers": list(self.layers)}

    # Programs

    async def run(self, program: str, *, stdin: str = "", limits: Limits | None = None) -> SandboxResult:
        """Run a program until it ends or hits a limit."""
        return await self._in_thread(self.run_sync, program, stdin=stdin, limits=limits)

    def run_sync(self, program: str, *, stdin: str = "", limits: Limits | None = None) -> SandboxResult:
        """Run a program without an event loop; see `run`."""
        return self._submit(program, stdin, limits or Limits())[0]

    async def run_cases(self, program: str, stdins: list[str], *, limits: Limits | None = None) -> list[SandboxResult]:
        """Run a program on several inputs, each with its own limits.

        Returns:
            The results. Compare each `stdout` with the expected output.
        """
        return list(await asyncio.gather(*(self.run(program, stdin=stdin, limits=limits) for stdin in stdins)))

    # Native programs

    async def run_native(
        self, commands: list[list[str]], *, files: Mapping[str, str], limits: Limits | None = None
    ) -> list[SandboxResult]:
        """Run native programs one after the other, until one fails.

        They have the isolation and the limits of a Python program, which apply to all of them together, an empty
        environment and no shell.

        Args:
            commands: Absolute path and arguments of each program. The paths must be among `programs` of the sandbox.
            files: Files to write into the private folder, the working folder of the programs, by name.
            limits: Limits of all commands together.

        Returns:
            The results of the commands that ran, of which only the last one can have failed. The output of a command is
            cut in the middle to an eighth of `Limits.output_kb` per stream.
        """
        return await self._in_thread(self.run_native_sync, commands, files=files, limits=limits)

    def run_native_sync(
        self, commands: list[list[str]], *, files: Mapping[str, str], limits: Limits | None = None
    ) -> list[SandboxResult]:
        """Run native programs without an event loop; see `run_native`."""
        limits = limits or Limits()
        program, stdin = native.program(commands, files, limits, self.plan.programs)
        return native.results(self._submit(program, stdin, limits)[0])

    # Calls

    async def run_calls(self, program: str, calls: list[str], *, limits: Limits | None = None) -> list[CallResult]:
        """Load a program and evaluate expressions in it.

        Each expression is evaluated as if in a fork of the loaded program.

        The limits apply to loading and all calls together. After a call hits a limit, all later calls report this
        limit.
        """
        return await self._in_thread(self.run_calls_sync, program, calls, limits=limits)

    def run_calls_sync(self, program: str, calls: list[str], *, limits: Limits | None = None) -> list[CallResult]:
        """Evaluate expressions without an event loop; see `run_calls`."""
        items = [{"kind": "value", "source": call} for call in calls]
        return self.evaluate(program, items, limits or Limits())

    def evaluate(self, program: str, items: list[dict], limits: Limits, name: str = "__main__") -> list[CallResult]:
        """Evaluate items in order.

        Args:
            program: Source of the program.
            items: Dicts with `source` and `kind`: "value" for an expression, "test" for statements that run in the
                program's process, "builds" to check whether the source is valid Python. The value of "builds" may be
                missing if all calls returned.
            limits: Limits for loading and all items together.
            name: Value of `__name__` in the program.
        """
        return program_calls.evaluate(self._submit_calls, program, items, limits, name)

    def evaluate_groups(
        self, program: str, groups: list[list[dict]], limits: Limits, name: str = "__main__"
    ) -> list[list[CallResult]]:
        """Evaluate several lists of items, each with its own limits; see `evaluate`."""
        return program_calls.evaluate_groups(self._submit_calls, program, groups, limits, name)

    async def run_asserts(
        self, program: str, asserts: list[str], *, setup: str = "", limits: Limits | None = None
    ) -> list[TestResult]:
        """Test a program with statements like `assert f(1) == 2`; see `asserts.py`.

        Each test runs as if in a fork of the loaded program. The limits apply to loading the program and all its calls
        together, and again to each later step: evaluating in a clean process, and tests that run in the program's
        process.

        Args:
            program: Source of the program.
            asserts: Assertions.
            setup: Code that runs after the program and before the tests, and may use the program.
            limits: Limits of each step.
        """
        return await self._in_thread(self.run_asserts_sync, program, asserts, setup=setup, limits=limits)

    def run_asserts_sync(
        self, program: str, asserts: list[str], *, setup: str = "", limits: Limits | None = None
    ) -> list[TestResult]:
        """Test a program without an event loop; see `run_asserts`."""
        return split_asserts.run(self.evaluate, program, asserts, setup, limits or Limits())

    # Workers

    def close(self) -> None:
        """Stop all workers and the programs they run."""
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
        self._idle.put(None)  # wakes up a waiting thread, which puts it back

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
        """Run a program and return its result and the contents of its results pipe."""
        reason = ""
        for _ in range(2):  # a worker that died is replaced, and the program is tried once more
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
        """Reserve a worker for the caller.

        The worker is reused only if the caller sets `reusable`.
        """
        lease = _Lease(self._idle.get())
        try:
            if lease.worker is None and not self._closed:
                lease.worker = SandboxWorker(self.plan)
            with self._lock:  # `close` is either noticed here or kills the worker
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
def _shared(pid: int, mode: str, programs: tuple[str, ...]) -> Sandbox:
    sandbox = Sandbox(mode=mode, programs=programs) if programs else Sandbox(mode=mode)
    atexit.register(sandbox.close)
    return sandbox


def shared_sandbox(mode: str = "auto", programs: Sequence[str] = ()) -> Sandbox:
    """Return the sandbox of this process, created on first use and closed at exit.

    There is one for each mode and each choice of native programs.
    """
    with _making:
        return _shared(os.getpid(), mode, tuple(programs))


SIDE_BY_SIDE = 4
"""Number of programs that one process of a pool runs at a time; the pool has a process per CPU."""


@functools.cache
def _same(pid: int, settings: str) -> Sandbox:
    parsed = json.loads(settings)
    sandbox = Sandbox(SIDE_BY_SIDE, parsed["mode"], plan=launch.Plan(**parsed["plan"]), layers=parsed["layers"])
    atexit.register(sandbox.close)
    return sandbox


def same_sandbox(settings: Mapping) -> Sandbox:
    """Return this process's sandbox with the settings of another process's sandbox."""
    with _making:
        return _same(os.getpid(), json.dumps(settings))
