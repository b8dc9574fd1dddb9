"""Runs of a table, each a separate `launch.py` in its own folder."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Runs = dict[str, tuple[list[str], bool]]
"""Arguments of `launch.py`, and whether the run is done, by name."""


def run_all(rounds: Iterable[Runs], workdir: Path, jobs: int) -> list[str]:
    """Run everything that is not finished, round after round, `jobs` at a time.

    Returns the names of the runs that failed; after a failure no further round begins. Raises KeyboardInterrupt after a
    signal that ends the program, once all runs have saved.
    """
    with Running() as running:
        for runs in rounds:
            missing = {name: command for name, (command, done) in runs.items() if not done}
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                launched = {
                    name: pool.submit(launch, workdir / name, name, command, jobs, running)
                    for name, command in missing.items()
                }
                statuses = {name: future.result() for name, future in launched.items()}
            if running.stopped:
                sys.stderr.write("stopped; the same command continues from there\n")
                raise KeyboardInterrupt
            failed = [name for name, status in statuses.items() if status]
            if failed:
                return failed
    return []


def launch(folder: Path, name: str, command: Sequence[str], jobs: int, running: Running) -> int:
    """Run `launch.py` in a new process with its output in the folder of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    if jobs > 1:
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / jobs:.2f}")
    began = time.monotonic()
    sys.stderr.write(f"{name}: python launch.py {' '.join(command)}\n")
    with (folder / "launch.log").open("a", encoding="utf-8") as log:
        whole = [sys.executable, "launch.py", *command, f"--workdir={folder.absolute()}", "--config.log.progress=false"]
        status = running.run(whole, cwd=ROOT, env=environment, stdout=log, stderr=log)
    word = "stopped" if running.stopped else f"ended with status {status}" if status else "done"
    sys.stderr.write(f"{name}: {word} after {time.monotonic() - began:.0f} s\n")
    return status


class Running:
    """The runs in progress.

    While it is open, a signal that ends this program also ends the runs, which save and stop.
    """

    def __init__(self):
        self.stopped = False
        self._processes: set[subprocess.Popen] = set()
        self._before: dict[int, object] = {}

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


@dataclasses.dataclass(frozen=True)
class Rate:
    """A success rate with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def evaluation(folder: Path, opponent: str, first: bool = False) -> Rate | None:
    """Read the success rate of a run's first or newest evaluation.

    A run without training has only one. Returns None if there is no such evaluation, or if all of its episodes failed.
    """
    rows = evaluations(folder)
    if not rows and (folder / "evaluation.json").exists():
        rows = [{"step": 0, **row} for row in json.loads((folder / "evaluation.json").read_text())["rows"]]
    rows = [row for row in rows if row["opponent"] == opponent and (row["step"] == 0 or not first)]
    if not rows or "success" not in rows[-1]:
        return None
    return Rate(*(rows[-1][f"success{end}"] for end in ("", "_low", "_high")))


def episodes(folder: Path) -> list[dict]:
    """Read the episodes of the newest evaluation on the test split.

    The list is empty if there is no evaluation, or if all episodes failed.
    """
    files = sorted((folder / "answers").glob("test_*.jsonl"))
    records = lines_of(files[-1]) if files else []
    return records if any(not episode["failed"] for episode in records) else []


def counted(folder: Path) -> int | None:
    """Return the number of completions in training, or None if it was not counted."""
    rows = lines_of(folder / "metrics.jsonl")
    return int(sum(row["completions"] for row in rows)) if rows and all("completions" in row for row in rows) else None


def is_done(folder: Path, steps: int) -> bool:
    """Return whether a run has its last checkpoint and was evaluated after it."""
    evaluated = any(row["step"] >= steps for row in evaluations(folder))
    return evaluated and any((folder / "checkpoints").glob(f"{steps}/seal.json"))


def evaluations(folder: Path) -> list[dict]:
    """Read the rows of a run's evaluations."""
    return lines_of(folder / "eval.jsonl")


def lines_of(path: Path) -> list[dict]:
    """Read the complete lines of a JSONL file; none if there is no file.

    `marl_jax.running.metrics` does the same for runs, but experiments only import configs.
    """
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # cut short by a crash
    return rows
