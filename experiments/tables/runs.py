"""Runs of a table, each a separate `launch.py` in its own folder."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Run:
    """A `launch.py` of a table.

    Attributes:
        name: Unique name, and the folder below --workdir unless `folder` is given.
        command: Arguments of `launch.py` without --workdir.
        done: Whether a folder has the results; `records.trained` and `records.evaluated` return such functions.
        after: Names of runs that must be done before.
        tokens: Maximum number of tokens that it generates, for estimates.
        folder: Folder below --workdir.
        around: Returns a context that is entered while it runs, such as a server, and that returns further arguments.
    """

    name: str
    command: Sequence[str]
    done: Callable[[Path], bool]
    after: tuple[str, ...] = ()
    tokens: float = 0
    folder: str = ""
    around: Callable[[], AbstractContextManager[Sequence[str]]] = lambda: contextlib.nullcontext(())

    def place(self, workdir: Path) -> Path:
        """Return the folder of the run."""
        return workdir / (self.folder or self.name)


def run_all(
    plan: Callable[[], Sequence[Run]], done: Callable[[Run], bool], workdir: Path, jobs: int
) -> tuple[dict[str, str], bool]:
    """Run everything that is missing.

    Args:
        plan: Returns the runs; it is called again after every run.
        done: Whether a run has its results.
        workdir: Folder of the table.
        jobs: Number of concurrent runs.

    Returns:
        The reason of every run that failed or was skipped, and whether a signal has stopped the command.
    """
    failed: dict[str, str] = {}
    begun: dict[str, tuple[Run, concurrent.futures.Future]] = {}
    with Running() as running, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while not running.stopped:
            active = [future for _, future in begun.values() if not future.done()]
            settled = len(begun) + len(failed)
            runs = plan()
            missing = [run for run in runs if run.name not in failed and not done(run)]
            for run in sorted(missing, key=lambda run: -run.tokens):  # the longest first
                if broken := next((name for name in run.after if name in failed), None):
                    failed[run.name] = f"was skipped, because it needs {broken}"
                elif run.name not in begun and not set(run.after) & {other.name for other in missing}:
                    count = f"[{len(begun) + 1} begun, {len(missing)} of {len(runs)} missing]"
                    begun[run.name] = run, pool.submit(_launch, run, workdir, jobs, running, count)
            if not active and settled == len(begun) + len(failed):
                break
            concurrent.futures.wait([future for _, future in begun.values() if not future.done()] or active,
                                    return_when=concurrent.futures.FIRST_COMPLETED)  # fmt: skip
            for run, future in begun.values():
                if future.done() and future.result() and not running.stopped:
                    failed.setdefault(run.name, _reason(run.place(workdir) / "launch.log"))
    if running.stopped:
        sys.stderr.write("stopped; the same command continues from there\n")
    return failed, running.stopped


def _reason(log: Path) -> str:
    """Return the last line of a log as the reason of a failure."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return f"failed: {lines[-1][:200] if lines else 'no output'} (see {log})"


def _launch(run: Run, workdir: Path, jobs: int, running: Running, count: str) -> int:
    """Run `launch.py` in a new process and return its status."""
    folder = run.place(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    sys.stderr.write(f"{count} {run.name}: python launch.py {' '.join(run.command)}\n")
    with (folder / "launch.log").open("a", encoding="utf-8") as log:
        try:
            with run.around() as more:
                environment = dict(os.environ)
                if jobs > 1:
                    environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / jobs:.2f}")
                last = [f"--workdir={folder}", "--config.log.progress=false"]
                whole = [sys.executable, "launch.py", *run.command, *more, *last]
                status = running.run(whole, cwd=ROOT, env=environment, stdout=log, stderr=log)
        except RuntimeError as error:  # the context could not be entered
            log.write(f"{error}\n")
            status = 1
    if not status and not running.stopped and not run.done(folder):
        status = 1  # it ended without its results
    word = "stopped" if running.stopped else f"ended with status {status}" if status else "done"
    sys.stderr.write(f"{count} {run.name}: {word} after {time.monotonic() - began:.0f} s\n")
    return status


class Running:
    """The runs in progress.

    While it is open, a signal that ends this program also ends the runs, which save and stop.
    """

    def __init__(self):
        self.stopped = False
        self._processes: set[subprocess.Popen] = set()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Running:
        hangup = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN  # nohup ignores it
        for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hangup else [])):
            self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        self.stopped = True
        for process in tuple(self._processes):
            process.terminate()

    def run(self, command: Sequence[str], **options) -> int:
        """Run a command and return its exit status, or -1 if the program is stopping."""
        if self.stopped:
            return -1
        # In a new session, Ctrl-C reaches the process only once, through `_stop`.
        process = subprocess.Popen(command, start_new_session=True, **options)
        self._processes.add(process)
        if self.stopped:  # since the check above
            process.terminate()
        try:
            return process.wait()
        finally:
            self._processes.discard(process)
