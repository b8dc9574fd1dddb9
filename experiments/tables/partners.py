"""Measures of training with changing context agents: payoffs, drop, recovery, KL, spread.

    python -m experiments.tables.partners runs/switch-0 runs/switch-1 runs/switch-2
    python -m experiments.tables.partners --metric=own --window=3 runs/*

The folders are runs of one form with different seeds. The page has

- the payoff matrix: evaluated checkpoint x partner, mean and standard deviation over runs (`success_vs_PARTNER`);
- for every switch (`task.params.switch_at`), the drop of a training metric, which is the mean of the last updates
  before the switch minus that of the first ones after it, and the number of updates until its moving mean is back;
- the KL of an update (`approx_kl`) before and after each switch, and the KL to the initial policy (`kl`);
- the standard deviation over runs of the last evaluation.

The metric is `best` if the runs have it: the share of the exact best response to the partner of the moment. Unlike
points, it does not drop because a new partner concedes less.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.tables.records import Damaged, evaluations, lines_of, read_json
from experiments.tables.runner import markdown_table

VERSUS = "success_vs_"
WINDOW = 5


@dataclasses.dataclass(frozen=True)
class Switch:
    """The effect of a switch on a training metric.

    Attributes:
        update: Number of updates before the switch.
        before: Mean of the last updates before it.
        after: Mean of the first updates after it.
        recovery: Updates after the switch until the moving mean is back at `before`; None if it never was.
    """

    update: int
    before: float
    after: float
    recovery: int | None

    @property
    def drop(self) -> float:
        """Loss by the switch."""
        return self.before - self.after


def switches(values: Mapping[int, float], at: Iterable[int], window: int = WINDOW) -> list[Switch]:
    """Measure every switch that has a full window of updates on both sides.

    Args:
        values: Metric by number of updates, counted from 1; the n-th update is made with the partner of step n - 1.
        at: Numbers of updates before each switch, ascending.
        window: Number of updates to average.
    """
    measured = []
    for update, end in itertools.pairwise([*at, max(values, default=0)]):
        before = [values[n] for n in range(update - window + 1, update + 1) if n in values]
        later = [values[n] for n in range(update + 1, end + 1) if n in values]
        if len(before) < window or len(later) < window:
            continue
        level, means = statistics.fmean(before), _moving(later, window)
        recovery = next((window + i for i, mean in enumerate(means) if mean >= level), None)
        measured.append(Switch(update, level, means[0], recovery))
    return measured


def _moving(values: Sequence[float], window: int) -> list[float]:
    return [statistics.fmean(values[i : i + window]) for i in range(len(values) - window + 1)]


def payoffs(runs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[int, dict[str, list[float]]]:
    """Return the success of all runs by evaluated step and partner."""
    matrix: dict[int, dict[str, list[float]]] = {}
    for row in itertools.chain(*runs):
        for name, value in row.items():
            if name.startswith(VERSUS) and row["opponent"] == "self":
                partner = name.removeprefix(VERSUS)
                matrix.setdefault(row["step"], {}).setdefault(partner, []).append(value)
    return dict(sorted(matrix.items()))


def page(folders: Sequence[Path], metric: str | None, window: int) -> str:
    """Return the measures of some runs as Markdown."""
    training = [{row["step"]: row for row in lines_of(folder / "metrics.jsonl", ("step",))} for folder in folders]
    evaluated = [evaluations(folder) for folder in folders]
    at = [
        read_json(folder / "config.json").get("task", {}).get("params", {}).get("switch_at", ()) for folder in folders
    ]
    if len(set(map(tuple, at))) > 1:
        raise Damaged("the runs switch at different updates; name only runs of one form")
    metric = metric or ("best" if any("task/best" in row for run in training for row in run.values()) else "success")
    name = metric if metric == "success" else f"task/{metric}"
    lines = [*_payoff_lines(payoffs(evaluated))]
    lines += _switch_lines(training, at[0], name, window)
    last = [run[-1]["success"] for run in evaluated if run and "success" in run[-1]]
    lines.append(f"Success of the last evaluation over {len(last)} runs: {_spread(last)}.")
    return "\n".join(lines) + "\n"


def _payoff_lines(matrix: Mapping[int, Mapping[str, Sequence[float]]]) -> list[str]:
    partners = sorted({partner for row in matrix.values() for partner in row})
    if not partners:
        return []
    rows = [[step, *(_spread(row.get(partner, ())) for partner in partners)] for step, row in matrix.items()]
    return ["Payoff by checkpoint and partner (mean ± standard deviation over runs)", "",
            *markdown_table(["updates", *partners], rows)]  # fmt: skip


def _switch_lines(training: Sequence[Mapping[int, Any]], at: Sequence[int], name: str, window: int) -> list[str]:
    rows = []
    for run, steps in enumerate(training):
        values = {step: row[name] for step, row in steps.items() if name in row}
        for switch in switches(values, at, window):
            near = range(switch.update - window + 1, switch.update + window + 1)
            kl = [steps[n].get("approx_kl", 0.0) if n in steps else 0.0 for n in near]
            back = "not reached" if switch.recovery is None else switch.recovery
            rows.append([run, switch.update, f"{switch.before:.3f}", f"{switch.after:.3f}", f"{switch.drop:+.3f}", back,
                         f"{statistics.fmean(kl[:window]):.2g}", f"{statistics.fmean(kl[window:]):.2g}"])  # fmt: skip
    heads = ["run", "switch after", "before", "after", "drop", "updates to recover", "KL before", "KL after"]
    lines = [f"Switches: {name}, means of {window} updates", "", *markdown_table(heads, rows)] if rows else []
    kl = [row["approx_kl"] for steps in training for row in steps.values() if "approx_kl" in row]
    far = [steps[max(steps)]["kl"] for steps in training if steps and "kl" in steps[max(steps)]]
    if kl:
        lines.append(f"KL of an update: mean {statistics.fmean(kl):.2g}, highest {max(kl):.2g}.")
    if far:
        lines.append(f"KL to the initial policy at the end: {_spread(far)}.")
    return lines


def _spread(values: Sequence[float]) -> str | None:
    if not values:
        return None
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the measures of the runs on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of runs of one form")
    parser.add_argument("--metric", help="Training metric of the switches; best or success by default")
    parser.add_argument("--window", type=int, default=WINDOW, help="Number of updates to average")
    flags = parser.parse_args(arguments)
    if flags.window < 1:
        parser.error(f"--window is {flags.window}, but must be >= 1")
    try:
        sys.stdout.write(page(flags.runs, flags.metric, flags.window))
    except Damaged as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
