"""Runs as Python objects: their config, metrics, games, checkpoints, curves and report."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from marl_jax.errors import RunError
from marl_jax.running import console, rows
from marl_jax.running.events import read_events
from marl_jax.running.metrics import read_json_lines, replace_text
from marl_jax.schema import saved

if TYPE_CHECKING:  # these import JAX or pandas
    import pandas  # pyright: ignore[reportMissingImports] (an optional dependency)

    from marl_jax.api.policies import Policy


SHOWN = ("success", "reward/team", "draws", "entropy", "kl", "loss")
"""Metrics that `Run.plot` shows by default."""


class Table(list[dict[str, Any]]):
    """Rows of a log: a list of dicts with two more methods."""

    def column(self, name: str) -> list[Any]:
        """Return the values of a column, without the rows that lack it."""
        return [row[name] for row in self if name in row]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame. pandas is an optional dependency."""
        import pandas  # pyright: ignore[reportMissingImports]

        return pandas.DataFrame(list(self))


class Chart(str):
    """A chart as an HTML document with SVG, which notebooks display."""

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self)}" width="100%" height="560" frameborder="0"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write the chart to an HTML file."""
        replace_text(Path(path), self)
        return Path(path)


class Run:
    """A run in its folder.

        run = marl_jax.Run("runs/tic_tac_toe_selfplay")
        run.metrics[-1]["draws"], run.checkpoints, run.plot("draws", "entropy")

    Everything is read from the folder when it is accessed, so a run that is still training shows its newest state.
    Functions that take a path also take a run.

    Args:
        workdir: Folder of the run.

    Raises:
        marl_jax.errors.ConfigError: If the folder has no run.
    """

    def __init__(self, workdir: str | Path):
        self.workdir = Path(workdir).expanduser().absolute()
        saved.load(self.workdir)

    def __fspath__(self) -> str:
        return str(self.workdir)

    def __repr__(self) -> str:
        return f"Run({str(self.workdir)!r}, step {self.step} of {saved.load(self.workdir)['steps']})"

    @property
    def config(self) -> ConfigDict:
        """Config of the run."""
        return saved.read(self.workdir)

    @property
    def metrics(self) -> Table:
        """Training metrics, one row per logged step."""
        return self._table("metrics.jsonl")

    @property
    def evaluations(self) -> Table:
        """Evaluations during training, one row per step and opponent."""
        return self._table("eval.jsonl")

    @property
    def games(self) -> Table:
        """Sampled games or episodes with their prompts and completions."""
        return self._table("games.jsonl")

    @property
    def events(self) -> Table:
        """Rejected updates, alarms and rollbacks."""
        return Table(read_events(self.workdir))

    @property
    def episodes(self) -> Table:
        """Every episode of the newest evaluation of a task, with verdicts and rewards."""
        files = sorted((self.workdir / "answers").glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
        return Table(row for row in read_json_lines(files[-1]) if rows.is_episode(row)) if files else Table()

    @property
    def step(self) -> int:
        """Last logged step; 0 before the first one."""
        return max((row["step"] for row in self.metrics), default=0)

    @property
    def checkpoints(self) -> list[int]:
        """Steps with a checkpoint, oldest first."""
        return self._checkpoints()[0]

    @property
    def best_checkpoint(self) -> int | None:
        """Step of the checkpoint with the best evaluation, or None."""
        return self._checkpoints()[1]

    def policy(self, role: str | None = None, step: int | str = "newest", **settings: Any) -> Policy:
        """Load a policy of the run; see `marl_jax.load`."""
        from marl_jax.api.policies import load

        return load(self, role=role, step=step, **settings)

    def report(self) -> Path:
        """Write the HTML report of the run and return its path."""
        from marl_jax.modes import report

        return report.main(self.workdir)

    def plot(self, *names: str) -> Chart:
        """Draw metrics over the steps.

        Args:
            *names: Metrics of `metrics`, or OPPONENT/METRIC of `evaluations`. By default a few important ones.

        Raises:
            RunError: If the run has no such metric. The message lists the metrics.
        """
        from marl_jax.web import charts

        series = self._series()
        names = names or tuple(name for name in SHOWN if name in series)
        if unknown := [name for name in names if name not in series]:
            raise RunError(f"there is no metric {unknown[0]!r}; metrics of {self.workdir}: {', '.join(series)}")
        figures = [
            f"<figure><figcaption>{html.escape(name)}</figcaption>"
            f"{charts.chart([charts.Series(name, *series[name], smooth=True)])}</figure>"
            for name in names
        ]
        style = Path(charts.__file__).with_name("report.css").read_text()
        return Chart(f"<!doctype html><meta charset=utf-8><style>{style}</style>{''.join(figures)}")

    def _series(self) -> dict[str, tuple[list[int], list[float]]]:
        """Return the steps and values of every metric."""
        series: dict[str, tuple[list[int], list[float]]] = {}
        evaluations: Iterable[Mapping] = (
            {"step": row["step"], **{f"{row['opponent']}/{k}": v for k, v in row.items() if k not in ("step", "time")}}
            for row in self.evaluations
        )
        for row in (*self.metrics, *evaluations):
            for name, value in row.items():
                if name not in ("step", "time") and rows.is_number(value):
                    steps, values = series.setdefault(name, ([], []))
                    steps.append(row["step"])
                    values.append(value)
        return series

    def _table(self, name: str) -> Table:
        return Table(read_json_lines(self.workdir / name))

    def _checkpoints(self) -> tuple[list[int], int | None]:
        from marl_jax.running.checkpoint import Checkpoints

        if not (self.workdir / "checkpoints").is_dir():
            return [], None
        with console.quiet(), contextlib.closing(Checkpoints(self.workdir, read_only=True)) as checkpoints:
            return checkpoints.steps, checkpoints.best
