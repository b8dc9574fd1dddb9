"""Metrics of a run in `metrics.jsonl`, TensorBoard, Weights & Biases and the progress bar.

Only process 0 writes. A resumed run drops the rows after its checkpoint, so that a file always describes one run.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from marl_jax.errors import RunError
from marl_jax.running.console import Progress
from marl_jax.running.private_files import make_private
from marl_jax.running.rows import KINDS

log = logging.getLogger(__name__)

BAR = ("success", "return", "gain", "entropy", "kl", "approx_kl", "games_per_s", "episodes_per_s", "tokens_per_s")
"""Metrics that the progress bar shows, after the newest result against each opponent."""


class JsonLines:
    """A file with one JSON object per line, each with its step.

    A full disk loses rows, with a warning, but does not stop the run.

    Args:
        path: File to append to. Broken lines are removed.
        start: Step after which rows are removed, or None to keep all; 0 removes all rows.
        private: Whether only the owner can read the file.
    """

    def __init__(self, path: Path, start: int | None = None, private: bool = False):
        self._path = path
        self._warned = False
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_until(path, start)
        if private:
            make_private(path)
        self._file = path.open("a", encoding="utf-8", errors="replace")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        line = json.dumps(_plain(row), ensure_ascii=False, allow_nan=False)
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            if not self._warned:
                log.warning("%s: %s; rows are lost until there is space", self._path, error.strerror)
            self._warned = True

    def close(self) -> None:
        """Close the file; data that cannot be flushed is lost."""
        try:
            self._file.close()
        except OSError as error:
            log.warning("%s: %s; the last rows are lost", self._path, error.strerror)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read all valid rows of a file, or none if it does not exist.

    Lines that were truncated by a crash or have another format are skipped.
    """
    rows, is_row = [], KINDS.get(path.name, lambda row: True)
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and is_row(row):
                rows.append(row)
    return rows


class MetricsWriter:
    """Writer of the metrics of the training loop.

        metrics = MetricsWriter(config, workdir, start=step)
        metrics.write(step, {"reward": 0.3, "kl": 0.01})     # arrays of one element are accepted
        metrics.write_eval(step, [{"opponent": "random", "win_rate": 0.9, ...}])

    Args:
        config: Config of the run.
        workdir: Folder of the run.
        start: Step that the run resumes from.
        main: Whether this process writes (process 0).
    """

    def __init__(self, config: ConfigDict, workdir: Path, start: int = 0, main: bool = True):
        self._every, self._steps, self._is_task = config.log.every, config.steps, bool(config.task.name)
        self._sinks: list = []
        self._main = main
        self._results: dict[str, dict[str, float]] = {}  # by opponent
        self._progress = Progress(config.steps, start, enabled=main and config.log.progress)
        if not main:
            return
        self._rows = JsonLines(workdir / "metrics.jsonl", start)
        self._evals = JsonLines(workdir / "eval.jsonl", start)
        if config.log.tensorboard:
            self._sinks.append(_TensorBoard(workdir / "tensorboard", start))
        if config.log.wandb:
            self._sinks.append(_WeightsAndBiases(config, workdir))

    def write(self, step: int, metrics: Mapping[str, Any], last: bool = False) -> None:
        """Update the progress bar and write the metrics of one step.

        Only every `log.every`-th step and the `last` one are written.
        """
        if not self._main:
            return
        metrics = {name: float(value) for name, value in metrics.items()}
        results = {name: value for own in self._results.values() for name, value in own.items()}
        self._progress.update(step, {**results, **{name: metrics[name] for name in BAR if name in metrics}})
        if step % self._every == 0 or step == self._steps or last:
            self._rows.write({"step": step, "time": time.time(), **metrics})
            self._pass_on(step, metrics)

    def write_eval(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the result against each opponent.

        Args:
            step: Step of the evaluation.
            rows: One row per opponent with `opponent`, `games` and metrics, each with its interval as `<metric>_low`
                and `<metric>_high`. Rows of tasks also have the number of episodes that `failed`. The progress bar
                shows the first metric and the failures.
        """
        if not self._main:
            return
        for row in rows:
            self._evals.write({"step": step, "time": time.time(), **row})
            first = next((name for name in row if f"{name}_low" in row), None)
            shown = ([] if first is None else [first]) + ["failed"] * bool(row.get("failed"))
            alone = self._is_task and row["opponent"] == "self"  # a task has no opponent
            prefix, tag = ("eval", "eval") if alone else (row["opponent"], f"eval/{row['opponent']}")
            self._results[row["opponent"]] = {f"{prefix}/{name}": float(row[name]) for name in shown}
            numbers = {f"{tag}/{k}": float(v) for k, v in row.items() if isinstance(v, int | float)}
            self._pass_on(step, numbers)

    def close(self) -> None:
        """Close all files."""
        self._progress.close()
        if self._main:
            self._rows.close()
            self._evals.close()
            for sink in self._sinks:
                self._close(sink)

    def _pass_on(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write to every sink; a sink that fails is closed with a warning."""
        for sink in list(self._sinks):
            try:
                sink.write(step, metrics)
            except OSError as error:
                reason = error.strerror or error
                log.warning("%s: %s; metrics from step %d on are missing from it", sink.name, reason, step)
                self._sinks.remove(sink)
                self._close(sink, warn=False)

    def _close(self, sink, warn: bool = True) -> None:
        try:
            sink.close()
        except OSError as error:
            if warn:
                log.warning("%s: %s; its last metrics are lost", sink.name, error.strerror or error)


def write_config(config: ConfigDict, workdir: Path, done: bool = False) -> None:
    """Write the config to `config.json` and log changes since the last start.

    The file is replaced atomically. A finished run keeps its config.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    path, now = workdir / "config.json", json.loads(json.dumps(config.to_dict()))
    if done and path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        before = now
    if not isinstance(before, dict) or not {"env", "model", "algo"} <= before.keys():
        raise RunError(f"{path} is not the config of a run; choose another --workdir")
    then = dict(_flat(before))
    for name, value in _flat(now):
        if name in then and then[name] != value:
            log.info("config.%s is %r, but was %r before", name, value, then[name])
    replace_text(path, json.dumps(now, indent=2) + "\n")


def _flat(tree: Mapping, name: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        yield from _flat(value, f"{name}{key}.") if isinstance(value, Mapping) else [(f"{name}{key}", value)]


class _TensorBoard:
    """A sink for TensorBoard.

    It writes synchronously, because the thread of TensorBoard reports a full disk late and with a traceback.
    """

    def __init__(self, folder: Path, start: int):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        # Generated protobuf modules have no type stubs.
        self._event = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
        self._summary = summary_pb2.Summary  # pyright: ignore[reportAttributeAccessIssue]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        self.name, self._file = str(path), path.open("wb")
        self._writer = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        if start:  # makes TensorBoard drop the steps that an interrupted run wrote after this one
            session = event_pb2.SessionLog  # pyright: ignore[reportAttributeAccessIssue]
            self._add(step=start + 1, session_log=session(status=session.START))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        self._file.close()

    def _add(self, **fields) -> None:
        self._writer.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()


class _WeightsAndBiases:
    """A sink for Weights & Biases."""

    name = "Weights & Biases"

    def __init__(self, config: ConfigDict, workdir: Path):
        import wandb  # pyright: ignore[reportMissingImports] (an optional dependency)

        # The id contains the folder of the run, so that a resumed run continues the same W&B run.
        identity = "".join(c if c.isalnum() or c in "-_" else "-" for c in f"{config.name}-{workdir.name}")
        self._run = wandb.init(
            project="marl_jax", name=config.name, id=identity, dir=str(workdir), config=config.to_dict(), resume="allow"
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def _keep_until(path: Path, start: int | None) -> None:
    """Remove broken lines and rows after `start`; a clean file is not rewritten.

    A run that starts at 0 removes all rows.
    """
    if not path.exists():
        return
    rows = read_json_lines(path)
    kept = [row for row in rows if start is None or 0 <= row.get("step", -1) <= start] if start != 0 else []
    text = path.read_text(encoding="utf-8", errors="replace")
    if len(kept) < len(text.rstrip("\n").split("\n")) or (text and not text.endswith("\n")):
        replace_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))


def replace_text(path: Path, text: str, private: bool = False) -> None:
    """Replace a file atomically, for its owner only if it is private."""
    part = path.with_name(path.name + ".part")
    try:
        if private:
            make_private(part)
        part.write_text(text, encoding="utf-8", errors="replace")  # lone surrogates cannot be encoded
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # failed writes do not name the file
        raise


def _plain(value: Any) -> Any:
    """Convert a value to JSON: NaN becomes None, arrays of one element become numbers."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    if getattr(value, "ndim", 0):
        return [_plain(v) for v in value.tolist()]
    number = float(value)
    return number if math.isfinite(number) else None
