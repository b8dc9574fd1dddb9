"""Table of preference learning: a learner with a judge only, against learners with context agents.

    python -m experiments.tables.preference --model=qwen2.5-coder-0.5b --seeds=3 --jobs=4      # one GPU
    python -m experiments.tables.preference --only=story --steps=2 --problems=10 --seeds=1     # the embedded model
    python -m experiments.tables.preference --model=smollm2 --judge=http://127.0.0.1:8000/v1#judge --collect
    python -m experiments.tables.preference --config.algo.name=dpo                             # learn from pairs

The rows are the forms of `configs/partnered.py`. All rows that learn have room for the same number of the learner's
completions, which is checked, and all are tested on the same held-out examples against all scripted context agents.

- Success: The rule of the task.
- Win rate: Share of test examples on which the rule prefers the trained learner to the untrained one; ties count half.
- Preference: The mean probability that a judge prefers what the trained learner wrote, in both orders. With --judge, a
  language model compares; without it, the table has no preferences.

The table is written to preference.md, preference.csv and preference.svg in --workdir.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs import partnered
from experiments.tables import records, trials
from experiments.tables.intervals import Rate, mean
from experiments.tables.results import Results, compare, episodes, grid
from experiments.tables.runner import Figure, Page, Session, Table, check_budgets, config_of, main, markdown_table
from experiments.tables.runs import ROOT
from experiments.tables.trials import Spec, Test, Trial, elsewhere, steps_of, test_name, tested_step

TASKS = {"negotiation": "Negotiation", "story": "Stories", "debugging": "Debugging", "retrieval": "Retrieval"}
CRITERIA = {"negotiation": "fairness", "story": "coherence", "debugging": "correctness", "retrieval": "relevance"}
COMPLETIONS = {"negotiation": (1, 3), "story": (4, 4), "debugging": (2, 2), "retrieval": (2, 2)}
"""Completions of the learner in an episode of the form `single`, and of the others."""
ROWS = {
    "prompt": "untrained", "single": "learner and judge", "multi_fixed": "one context agent",
    "multi_pool": "context agents from a pool", "multi_switch": "context agents that switch",
    "multi_learning": "context agent that learns",
}  # fmt: skip
BASE, SINGLE, SWITCHING = "prompt", "single", "multi_switch"
QUIET = ("--config.eval.every=0", "--config.checkpoint.best_metric=")
REPORT = "preference.json"


def make(session: Session, task: str, row: str) -> Trial:
    """Return the trial of a row."""
    experiment = f"experiments/{task}.py:{session.form(row)}"
    config = config_of(experiment)
    steps = 0 if row in partnered.UNTRAINED else steps_of(session, experiment)
    alone, together = COMPLETIONS[task]
    room = steps * config.task.n_episodes * (alone if row == SINGLE else together)
    games = session.flags.problems or config.eval.games
    test = Test((f"--config.eval.games={games}",), games)
    training = QUIET
    if row == SWITCHING:  # at thirds of the run, as in the experiment
        at = max(steps // 3, 1), max(2 * steps // 3, 2)
        training = (*QUIET, f"--config.task.params.switch_at=({at[0]},{at[1]})")
    return Trial(task, row, experiment, steps, (room, together), {"test": test}, training=training)


def check(session: Session) -> None:
    """Exit unless all rows of a task that learn have the same budget."""
    made = {key: make(session, *key) for key in session.wanted}
    check_budgets("preference", {key: trial.completions[0] for key, trial in made.items() if trial.steps})


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this table."""
    trials.add_flags(parser)
    parser.set_defaults(seeds=3)
    parser.add_argument("--judge", default="", help="Endpoint URL#MODEL of the language model that judges")


# ------------------------------------------------------------------------------------------------------- comparisons


def wins(ours: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """Return wins by common example: 1 for a higher success, ½ for an equal one."""
    return {id_: 0.5 + 0.5 * ((ours[id_] > base[id_]) - (ours[id_] < base[id_])) for id_ in ours if id_ in base}


def preferences(session: Session, trial: Trial, base: Trial) -> Mapping[str, float]:
    """Return the judge's preference for a trained learner by example; none without verdicts.

    With --judge, missing verdicts are obtained first.
    """
    folders = [_answers(session, one) for one in (base, trial)]
    if not all(folders):
        return {}
    old, new = (str(folder) for folder in folders)
    path = Path(new).parents[1] / REPORT
    if session.flags.judge and not path.exists():
        command = [
            sys.executable, "-m", "envs.tasks.judges", f"old={old},new={new}", str(path.with_suffix(".pairs.jsonl")),
            f"--judge={session.flags.judge}", f"--criterion={CRITERIA[trial.group]}", f"--report={path}",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            session.problems.append(f"{trial.name} was not judged: {done.stderr.strip()[-200:]}")
    if not path.exists():
        return {}
    return records.read_json(path)["preferences"].get("new", {})


def _answers(session: Session, trial: Trial) -> Path | None:
    """Return the file with the test episodes of a trial, or None."""
    step, here = tested_step(session, trial), elsewhere(session, trial)
    folder = here if here and step in records.tested_steps(here) else None
    folder = folder or session.folder / test_name(session, trial, "test", step)
    return max((folder / "answers").glob("test_*.jsonl"), default=None)


def rate_of(rows: Sequence[Mapping[str, float]]) -> Rate | None:
    """Return the mean over seeds and examples with its interval, or None."""
    values = grid([row for row in rows if row])
    return None if values is None else mean([values])


# ------------------------------------------------------------------------------------------------------------- page


def page(session: Session) -> Page | None:
    """Return success, win rate, preference and differences from the learner without context agents."""
    results, figures = Results(session, SPEC), []
    lines = [f"# Preference learning with {session.model()}", ""]
    lines += ["Held-out examples against all scripted context agents, in per cent with 95 % intervals over seeds and "
              "examples.", ""]  # fmt: skip
    for task in [task for task in TASKS if any(key[0] == task for key in results.cells)]:
        lines += [f"## {TASKS[task]}", "", *_rows(session, results, task, figures), *_differences(results, task)]
    return Page(lines, figures) if results.cells else None


def _rows(session: Session, results: Results, task: str, figures: list[Figure]) -> list[str]:
    own = results.rows(task)
    base = own.get(BASE, [None])[0]
    base_values = records.success(episodes(session, base, "test")) if base else {}
    before = results.cells.get((task, BASE, "test"))
    table = []
    for row, several in own.items():
        cell = results.cells.get((task, row, "test"))
        if cell is None:
            continue
        trained = row != BASE and base is not None
        won = rate_of([wins(values, base_values) for values in cell.values]) if trained else None
        judged = [session.read(preferences, session, one, base, default={}) for one in several] if trained else []
        preferred = rate_of(judged)
        by_seed = [statistics.fmean(values.values()) for values in cell.values]
        spread = f"{100 * statistics.stdev(by_seed):.1f}" if len(by_seed) > 1 else None
        completions = f"{cell.training.completions:,.0f}" if cell.training else None
        table.append([ROWS[row], len(by_seed), f"{cell.updates:g}", completions, cell.rate, spread, won, preferred])
        more = dict(seeds=len(by_seed), updates=cell.updates)
        more |= dict(win_rate=won and won.value, preference=preferred and preferred.value)
        figures.append(Figure(TASKS[task], ROWS[row], cell.rate, before.rate if before and trained else None, more))
    heads = ["", "seeds", "updates", "completions", "success", "standard deviation of seeds", "win rate", "preference"]
    return markdown_table(heads, table)


def _differences(results: Results, task: str) -> list[str]:
    """Return the difference in success of every form with context agents from the form without."""
    single = results.cells.get((task, SINGLE, "test"))
    table = []
    for row in ROWS:
        cell = results.cells.get((task, row, "test"))
        if cell is None or single is None or row in (BASE, SINGLE):
            continue
        one = compare(cell.values, single.values, (cell.spent, single.spent))
        if one:
            table.append([ROWS[row], one.change.points(), one.examples, one.verdict()])
    heads = ["against learner and judge", "difference in success", "examples", ""]
    return markdown_table(heads, table) if table else []


SPEC = Spec(make, untrained=lambda row: "" if row == BASE else BASE, baselines=lambda row: ())
TABLE = Table(
    "preference", 1, __doc__, dict.fromkeys(TASKS, ROWS), lambda session: trials.plan(session, SPEC), page, add_flags,
    check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(TABLE))
