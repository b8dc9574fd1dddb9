"""Comparison of several runs: means over seeds with intervals, as curves and tables.

Runs with the same values of the compared fields form a group. Its curves and figures are means over its runs with 95 %
t intervals (`intervals.student`), which assume that the values of runs are about normally distributed. A group of one
run has no interval.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from marl_jax.evaluation import intervals
from marl_jax.running.metric_help import EVALUATION
from marl_jax.web.charts import Series, chart, label, legend
from marl_jax.web.markup import chart_card, figure, interval, is_share, page, table, text, tiles
from marl_jax.web.report import ALONE, ordered

INTERVAL = "95 % t interval of the mean over runs"
IGNORED = ("seed", "name", "log.", "checkpoint.", "distributed.")
"""Fields in which the runs of a group may differ."""
TRAINING = ("success", "return", "loss")
"""Training metrics that the table shows next to the evaluations."""


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """A run in a comparison.

    Attributes:
        name: Name of its folder.
        config: Its config.
        metrics: Rows of `metrics.jsonl`.
        evals: Rows of `eval.jsonl`.
        error: Why the run failed, or "".
        finished: Whether it has trained all its steps or met `stop_when`.
        link: Relative address of its report, or "".
    """

    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping]
    evals: Sequence[Mapping]
    error: str = ""
    finished: bool = False
    link: str = ""

    @property
    def state(self) -> str:
        """State of the run in a few words."""
        step = self.metrics[-1]["step"] if self.metrics else 0
        if self.error:
            return f"failed at step {step}: {self.error}"
        return f"finished, {step} steps" if self.finished else f"step {step} of {self.config.get('steps', '?')}"


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs with the same values of the compared fields."""

    values: Mapping[str, Any]
    runs: Sequence[ComparedRun]

    @property
    def label(self) -> str:
        """Values of the group, or the names of its runs."""
        return ", ".join(f"{k}={_short(v)}" for k, v in self.values.items()) or ", ".join(r.name for r in self.runs)


def group(runs: Sequence[ComparedRun], fields: Sequence[str] | None = None) -> list[Group]:
    """Group runs by the fields in which they differ, or by the given fields."""
    flat = [dict(_flat(run.config)) for run in runs]
    if fields is None:
        names = dict.fromkeys(name for values in flat for name in values if not name.startswith(IGNORED))
        fields = [name for name in names if len({json.dumps(values.get(name)) for values in flat}) > 1]
    groups: dict[str, Group] = {}
    for run, values in zip(runs, flat, strict=True):
        own = {name: values.get(name) for name in fields if name != "seed"}
        key = json.dumps(own)
        groups[key] = Group(own, [*(groups[key].runs if key in groups else ()), run])
    return list(groups.values())


def results(groups: Sequence[Group]) -> dict[str, list[dict[str, Any] | None]]:
    """Return the newest values of the main metrics by name, for every group.

    Evaluations are named OPPONENT/METRIC. A value has its mean, interval, runs and the value of each run, and is None
    if no run of the group has it.
    """
    names = dict.fromkeys(name for g in groups for run in g.runs for name in _newest(run))
    return {name: [_summary([_newest(run).get(name) for run in g.runs], name) for g in groups] for name in names}


def build(title: str, groups: Sequence[Group]) -> str:
    """Return the comparison as one HTML page."""
    runs = [run for g in groups for run in g.runs]
    failed = [run for run in runs if run.error]
    shown = [("runs", str(len(runs))), ("groups", str(len(groups)))]
    shown += [("finished", f"{sum(run.finished and not run.error for run in runs)} of {len(runs)}")]
    shown += [("failed", str(len(failed)))] if failed else []
    head, rows = _cells(groups)
    return page(
        title,
        [
            tiles(shown),
            "<h2>Results</h2>",
            f'<p class="quiet">Newest values of each run: mean and {INTERVAL}.</p>',
            table([text(name) for name in head], rows),
            *_curves(groups),
            "<h2>Runs</h2>",
            table(["run", "state", "seed"], [_run_cells(run) for run in runs], kind="wide"),
        ],
    )


def markdown(title: str, groups: Sequence[Group]) -> str:
    """Return the table of results in Markdown."""
    head, _ = _cells(groups)
    newest = results(groups)
    lines = [f"# {title}", "", f"Newest values of each run: mean and {INTERVAL}.", ""]
    lines += [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for i, g in enumerate(groups):
        cells = [_plain(newest[name][i], name) for name in newest]
        lines.append(f"| {' | '.join([*map(_short, _values(g)), _counted(g), *cells])} |")
    failed = [run for g in groups for run in g.runs if run.error]
    return "\n".join([*lines, *([""] if failed else []), *(f"- {run.name}: {run.state}" for run in failed), ""])


def _cells(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the HTML cells of the table of results."""
    newest = results(groups)
    head = [*(groups[0].values if groups and groups[0].values else ["runs"]), "finished", *map(_title, newest)]
    rows = []
    for i, g in enumerate(groups):
        cells = []
        for name, values in newest.items():
            value, metric = values[i], name.rpartition("/")[2]
            cells.append("–" if value is None else _with_interval(value, metric))
        rows.append([*(text(_short(value)) for value in _values(g)), _counted(g), *cells])
    return head, rows


def _values(g: Group) -> list[Any]:
    return list(g.values.values()) or [g.label]


def _counted(g: Group) -> str:
    return f"{sum(run.finished and not run.error for run in g.runs)} of {len(g.runs)}"


def _with_interval(value: Mapping, metric: str) -> str:
    if value["runs"] == 1:
        return figure(value["mean"], metric)
    return interval({metric: value["mean"], f"{metric}_low": value["low"], f"{metric}_high": value["high"]}, metric)


def _plain(value: Mapping | None, name: str) -> str:
    """Return a value with its interval as plain text."""
    metric = name.rpartition("/")[2]
    if value is None:
        return "–"
    if value["runs"] == 1:
        return figure(value["mean"], metric)
    return f"{figure(value['mean'], metric)} [{figure(value['low'], metric)}, {figure(value['high'], metric)}]"


def _curves(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the mean curves of the groups, first of evaluations, then of training."""
    evals = _columns((g, run, row, row["opponent"]) for g in groups for run in g.runs for row in run.evals)
    trained = _columns((g, run, row, None) for g in groups for run in g.runs for row in run.metrics)
    names = legend([g.label for g in groups])
    if evals:
        cards = (
            chart_card(metric, _lines(groups, columns, metric), EVALUATION, _title(f"{opponent}/{metric}"))
            for (opponent, metric), columns in evals.items()
        )
        yield f'<h2>Evaluation</h2>{names}<div class="grid">{"".join(cards)}</div>'
    first, rest = ordered([name for _, name in trained])
    if first or rest:
        cards = {name: chart_card(name, _lines(groups, trained[None, name], name)) for name in [*first, *rest]}
        yield f'<h2>Training</h2>{names}<div class="grid">{"".join(cards[name] for name in first)}</div>'
        if rest:
            more = "".join(cards[name] for name in rest)
            yield f'<details><summary>{len(rest)} more curves</summary><div class="grid">{more}</div></details>'


def _columns(rows: Iterable[tuple]) -> dict[tuple[str | None, str], dict[int, dict[int, list[float]]]]:
    """Collect the values of runs by opponent and metric, group and step."""
    columns: dict[tuple[str | None, str], dict[int, dict[int, list[float]]]] = {}
    for g, _, row, opponent in rows:
        for name, value in row.items():
            shown = f"{name}_low" in row if opponent is not None else name not in ("step", "time")
            if shown and isinstance(value, int | float) and math.isfinite(value):
                columns.setdefault((opponent, name), {}).setdefault(id(g), {}).setdefault(row["step"], []).append(value)
    return columns


def _lines(groups: Sequence[Group], columns: Mapping[int, Mapping[int, Sequence[float]]], name: str) -> str:
    lines = []
    for g in groups:
        steps = sorted(columns.get(id(g), {}).items())
        means = [_clipped(intervals.student(values), name) for _, values in steps]
        low, high = ([m[i] for m in means] for i in (1, 2))
        several = any(len(values) > 1 for _, values in steps)
        x, y = [step for step, _ in steps], [m.value for m in means]
        lines.append(Series(g.label, x, y, low if several else None, high if several else None, smooth=not several))
    return chart(lines)


def _newest(run: ComparedRun) -> dict[str, float]:
    """Return the newest values of a run: the main metrics of evaluations and training."""
    values: dict[str, float] = {}
    best = str((run.config.get("checkpoint") or {}).get("best_metric", ""))
    for row in {row["opponent"]: row for row in run.evals}.values():
        names = [name for name in row if f"{name}_low" in row and isinstance(row[name], int | float)]
        chosen = [name for name in names if name == names[0] or f"{row['opponent']}/{name}" == best]
        values |= {f"{row['opponent']}/{name}": float(row[name]) for name in chosen}
    last = run.metrics[-1] if run.metrics else {}
    return values | {name: float(last[name]) for name in TRAINING if isinstance(last.get(name), int | float)}


def _summary(values: Sequence[float | None], name: str) -> dict[str, Any] | None:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    mean = _clipped(intervals.student(numbers), name.rpartition("/")[2])
    return {"mean": mean.value, "low": mean.low, "high": mean.high, "runs": len(numbers), "values": list(values)}


def _clipped(mean: intervals.Interval, name: str) -> intervals.Interval:
    """Keep the interval of a share within 0 and 1."""
    return mean._replace(low=max(mean.low, 0.0), high=min(mean.high, 1.0)) if is_share(name) else mean


def _run_cells(run: ComparedRun) -> list[str]:
    name = f'<a href="{text(run.link)}">{text(run.name)}</a>' if run.link else text(run.name)
    state = f'<span class="bad">{text(run.state)}</span>' if run.error else text(run.state)
    return [name, state, text(run.config.get("seed", "?"))]


def _title(name: str) -> str:
    """Return the title of a metric: `random/win_rate` is "win rate, random"."""
    opponent, _, metric = name.rpartition("/")
    words = metric.replace("_", " ")
    return words if opponent in ("", ALONE) else f"{words}, {opponent}"


def _short(value: Any) -> str:
    return label(value) if isinstance(value, float) else str(value)


def _flat(tree: Mapping, name: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}{key}.")
        else:
            yield f"{name}{key}", value
