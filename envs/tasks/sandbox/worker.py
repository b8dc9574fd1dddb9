"""The sandbox's handle of a worker process, which runs one program at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import tempfile
import time

from envs.tasks.sandbox import cgroups, launch
from envs.tasks.sandbox.inside import tree, wire
from envs.tasks.sandbox.results import Limits, SandboxResult

GRACE = 0.7  # seconds after the wall limit before a worker that does not answer is killed
START_LIMIT = 30.0
MAX_PROGRAMS = 200

SIGSYS, SIGXCPU, SIGXFSZ, SIGKILL = 31, 24, 25, 9
_LIMIT_IN_ERROR = (  # error messages of limits that the kernel enforces
    ("MemoryError", "memory"),
    ("BlockingIOError: [Errno 11]", "processes"),
    ("RuntimeError: can't start new thread", "processes"),
    ("OSError: [Errno 27]", "files"),
    ("OSError: [Errno 28]", "files"),
    ("OSError: [Errno 24]", "files"),
)


class WorkerFailed(RuntimeError):
    """The worker could not be started, or died while running a program."""


class WorkerLate(RuntimeError):
    """The worker did not answer in time."""


class SandboxWorker:
    """A worker process, which has finished starting when the constructor returns."""

    def __init__(self, plan: launch.Plan):
        self.plan = plan
        self.served = 0
        self._closed = False
        self._folder = None
        self._group = cgroups.WorkerGroup()
        self._connection, worker_end = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        with worker_end:
            try:
                spec = self._spec()
                self._process = subprocess.Popen(
                    launch.command(plan), stdin=worker_end.fileno(), stdout=subprocess.DEVNULL, stderr=self._errors,
                    env={"PYTHONHASHSEED": "0"}, cwd="/", start_new_session=True,
                )  # fmt: skip
            except OSError as failure:
                self._forget()
                raise WorkerFailed(str(failure)) from None
        try:
            self._connection.settimeout(START_LIMIT)
            group = () if self._group.folder is None else (self._group.folder,)
            wire.send(self._connection, spec, descriptors=group)
            answer, _ = wire.receive(self._connection)
        except (OSError, EOFError) as failure:
            reason = f"the worker did not start: {self._said() or failure}"
            self.close()
            raise WorkerFailed(reason) from None
        if "failed" in answer:
            self.close()
            raise WorkerFailed(answer["failed"])
        self.landlock, self.grouped = answer["landlock"], answer["cgroup"]

    def _spec(self) -> dict:
        files = launch.files(self.plan.python, self.plan.programs)
        root = launch.mount_point(files.readable) if self.plan.namespaces == "unshare" else None
        if self.plan.namespaces is None or (self.plan.namespaces == "unshare" and root is None):
            self._folder = root = tempfile.mkdtemp(prefix="sandbox-", dir=launch.scratch())
        return {
            "namespaces": self.plan.namespaces,
            "layers": self.plan.layers,
            "folder": "/tmp" if self.plan.namespaces else self._folder,
            "root": root,
            "uid": launch.own_user() if self.plan.layers else None,
            "readable": files.readable,
            "listable": files.listable,
            "hidden": files.hidden,
            "links": files.links,
            "devices": launch.DEVICES,
            "scratch_mb": launch.SCRATCH_MB,
        }

    def execute(
        self, program: str, stdin: str, limits: Limits, items: bytes | None = None, name: str = "__main__"
    ) -> tuple[SandboxResult, bytes, bool]:
        """Run a program.

        Returns:
            The result, the contents of the results pipe, and whether the worker can run another program.
        """
        request = {"limits": dataclasses.asdict(limits), "calls": items is not None, "name": name}
        descriptors = []
        try:
            for data in (_encoded(program), _encoded(stdin), items):
                if data is not None:
                    descriptors.append(_in_memory(data))
            answer, streams = self._ask(request, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        reusable = answer["clean"] and answer["exit_code"] != -SIGSYS and self.served < MAX_PROGRAMS
        return _result(answer, streams, limits), streams[2], reusable

    def _ask(self, request: dict, files: list[int]) -> tuple[dict, list[bytes]]:
        """Send a request and return the worker's answer and the three streams."""
        self.served += 1
        until = time.monotonic() + request["limits"]["wall"] + GRACE
        try:
            self._connection.settimeout(until - time.monotonic())
            wire.send(self._connection, request, descriptors=files)
            self._connection.settimeout(max(0.01, until - time.monotonic()))
            answer, _ = wire.receive(self._connection)
            return answer, [bytes(wire.exactly(self._connection, size)) for size in answer["sizes"]]
        except TimeoutError:
            raise WorkerLate("the worker did not answer in time") from None
        except (OSError, EOFError) as failure:
            raise WorkerFailed(self._said() or f"the worker died: {failure}") from None

    def close(self) -> None:
        """Stop the process and all its descendants, and release its resources."""
        if not self._closed:
            self._closed = True
            self.kill()
            self._process.wait()
            self._forget()

    def kill(self) -> None:
        """Kill the process and all its descendants; safe while another thread waits for an answer."""
        if self._process.poll() is not None:
            return
        if self.plan.namespaces is None:
            _kill_below(self._process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with process 1, the kernel kills its namespace

    def _said(self) -> str:
        """Return the end of the process's standard error."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 1000))
        return self._errors.read().decode("utf-8", "replace").strip()

    def _forget(self):
        self._connection.close()
        self._errors.close()
        self._group.close()
        if self._folder is not None:
            # The worker empties the folder after every program. If that failed, `rm` handles any nesting depth.
            subprocess.run(["rm", "-rf", "--", self._folder], check=False, stderr=subprocess.DEVNULL)


def _kill_below(root: int) -> None:
    """Kill all descendants of a worker that has no PID namespace.

    The worker is the subreaper, so all processes that its programs started are among its descendants.
    """
    until, clear = time.monotonic() + 2, 0
    while clear < 2 and time.monotonic() < until:  # check twice: a process may just have been forking
        below = tree.descendants(root)
        clear = 0 if below else clear + 1
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _in_memory(data: bytes) -> int:
    """Return a descriptor of an in-memory file with the given content, positioned at its start."""
    descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _result(answer: dict, streams: list[bytes], limits: Limits) -> SandboxResult:
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in streams[:2])
    code, limit, status = answer["exit_code"], answer["limit"], "error"
    if answer["setup"] != "ok" and limit is None:
        return SandboxResult("refused", "", answer["setup"] or "the program was not started", answer["seconds"], code)
    if limit is None and code != 0:
        limit = _limit_of(answer, limits, stderr)
    if code == -SIGSYS:
        status, stderr = "refused", stderr + "forbidden system call"
    elif limit is not None:
        status = "limit"
    elif code == 0:
        status = "ok"
    return SandboxResult(status, stdout, stderr, answer["seconds"], code, limit)


def _limit_of(answer: dict, limits: Limits, stderr: str) -> str | None:
    """Return the limit enforced by the kernel that explains a non-zero exit code, or None."""
    by_signal = {-SIGXCPU: "cpu", -SIGXFSZ: "files"}
    if answer["exit_code"] == -SIGKILL:
        if answer["cpu"] >= limits.cpu:
            return "cpu"
        return "memory" if answer["memory_mb"] > limits.memory_mb / 2 else None  # killed because memory ran out
    if answer["exit_code"] in by_signal:
        return by_signal[answer["exit_code"]]
    last = stderr.splitlines()[-20:]  # several, because processes write concurrently
    return next((limit for start, limit in _LIMIT_IN_ERROR if any(line.startswith(start) for line in last)), None)
