"""The runs of a table, each a `launch.py` of its own in its folder: started when missing, read when there."""

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
"""By name: what follows `launch.py`, and whether it has been done."""


def run_all(rounds: Iterable[Runs], workdir: Path, jobs: int) -> list[str]:
    """Runs what is not finished, round after round, `jobs` at a time.

    Answers with the names of those that failed; after a failure no further round begins. A signal that ends the program
    is a KeyboardInterrupt, once all runs have saved.
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
    """One run in a process of its own; its output goes to its folder."""
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
    """The runs under way. While it is open, a signal that ends this program ends them: they save and stop."""

    def __init__(self):
        self.stopped = False
        self._processes: set[subprocess.Popen] = set()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Running:
        hangup = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN  # under nohup it is to be ignored
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
        """Runs a command to its end; its status, -1 when it was not begun because the program is to stop."""
        if self.stopped:
            return -1
        # A session of its own: Ctrl-C reaches it through `_stop` only, once.
        process = subprocess.Popen(command, start_new_session=True, **options)
        self._processes.add(process)
        if self.stopped:  # told so just now
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
    """Read the success rate of a run's first or newest evaluation, or of its only one if it was not trained.

    Returns:
        None if there is no such evaluation, or if every episode of it failed.
    """
    rows = evaluations(folder)
    if not rows and (folder / "evaluation.json").exists():
        rows = [{"step": 0, **row} for row in json.loads((folder / "evaluation.json").read_text())["rows"]]
    rows = [row for row in rows if row["opponent"] == opponent and (row["step"] == 0 or not first)]
    if not rows or "success" not in rows[-1]:
        return None
    return Rate(*(rows[-1][f"success{end}"] for end in ("", "_low", "_high")))


def episodes(folder: Path) -> list[dict]:
    """Read the episodes of the newest evaluation on the test split; none if there is none or all of them failed."""
    files = sorted((folder / "answers").glob("test_*.jsonl"))
    found = lines_of(files[-1]) if files else []
    return found if any(not episode["failed"] for episode in found) else []


def counted(folder: Path) -> int | None:
    """How many answers a run sampled in training, by its own count; None for one that kept none."""
    rows = lines_of(folder / "metrics.jsonl")
    return int(sum(row["completions"] for row in rows)) if rows and all("completions" in row for row in rows) else None


def is_done(folder: Path, steps: int) -> bool:
    """Whether a run has been evaluated after its last step and its checkpoint is there."""
    evaluated = any(row["step"] >= steps for row in evaluations(folder))
    return evaluated and any((folder / "checkpoints").glob(f"{steps}/seal.json"))


def evaluations(folder: Path) -> list[dict]:
    """The rows of a run's evaluations."""
    return lines_of(folder / "eval.jsonl")


def lines_of(path: Path) -> list[dict]:
    """The rows of a file of JSON lines, whole lines only; none where there is no file.

    `marl_jax.running.metrics` has the same for runs themselves; experiments import nothing but configs.
    """
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # cut short by a crash
    return rows
