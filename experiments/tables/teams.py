"""Table of tasks with divided information: teams and single agents, before and after training.

    python -m experiments.tables.teams --model=qwen2.5-coder-1.5b --seeds=3 --jobs=4      # one GPU
    python -m experiments.tables.teams --only=hidden_profile/at_grpo_shared --steps=2     # the embedded model
    python -m experiments.tables.teams --collect                                          # the runs so far

The rows are the forms of `configs/divided.py`. All rows that learn have room for the same number of completions, which
is checked. The tested checkpoint is evaluated on held-out examples with greedy decoding. Trained teams are compared
with the other rows, trained ones at equal generated tokens of training (`trials.py`), and with the best policy that has
one seat's view. `--config.FIELD=VALUE` goes to every run; fields of learning do not go to evaluations.

Tokens per example do not include the answers before an exchange, which only measure. The table is written to teams.md,
teams.csv and teams.svg in --workdir.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Mapping

from configs import divided
from experiments.tables import trials
from experiments.tables.intervals import difference
from experiments.tables.results import Results, grid
from experiments.tables.runner import Page, Session, Table, check_budgets, config_of, main
from experiments.tables.trials import Spec, Test, Trial, steps_of


@dataclasses.dataclass(frozen=True)
class DividedTask:
    """A task of the table.

    Attributes:
        words: Display name.
        bound: Highest success with one seat's view (docs/divided.md).
        shown: Metrics of the test to list, with their headings.
    """

    words: str
    bound: float
    shown: Mapping[str, str]


MESSAGES = {"message_empty": "empty messages", "message_too_long": "overlong messages"}
TASKS = {
    "half_blind": DividedTask("Half-blind executor", 0.2683, {"progress": "share of the way", **MESSAGES}),
    "hidden_profile": DividedTask(
        "Hidden profile", 1 / 3,
        {"right_before": "right before", "right": "right after", "lure": "lure",
         "unshared_mentioned": "unshared facts mentioned", **MESSAGES},
    ),
}  # fmt: skip
ROWS = {
    "seat": "one agent, one seat's view", "all": "one agent, everything", "prompt": "team, prompts only",
    "seat_grpo": "one agent, one seat's view + GRPO", "all_grpo": "one agent, everything + GRPO",
    "at_grpo_shared": "team + AT-GRPO, shared", "at_grpo_per_role": "team + AT-GRPO, per role",
}  # fmt: skip
TEAMS = ("at_grpo_shared", "at_grpo_per_role")
STARTS = {"seat_grpo": "seat", "all_grpo": "all", **dict.fromkeys(TEAMS, "prompt")}
QUIET = ("--config.eval.every=0", "--config.checkpoint.best_metric=")


def make(session: Session, task: str, row: str) -> Trial:
    """Return the trial of a row."""
    experiment = f"experiments/{task}.py:{session.form(row)}"
    config = config_of(experiment)
    steps = 0 if row in divided.UNTRAINED else steps_of(session, experiment)
    completions = importlib.import_module(f"experiments.{task}").COMPLETIONS
    room = steps * config.task.n_episodes * divided.completions_of(config, completions)
    games = session.flags.problems or config.eval.games
    test = Test((f"--config.eval.games={games}",), games)
    per_episode = sum(completions) if divided.FORMS[row] == divided.TEAM else 1
    return Trial(task, row, experiment, steps, (room, per_episode), {"test": test}, training=QUIET)


def check(session: Session) -> None:
    """Exit unless all rows of a task that learn have the same budget."""
    made = {key: make(session, *key) for key in session.wanted}
    check_budgets("teams", {key: trial.completions[0] for key, trial in made.items() if trial.steps})


def page(session: Session) -> Page | None:
    """Return success, costs, metrics and paired differences of every task."""
    results, figures = Results(session, SPEC), []
    lines = [f"# Divided information with {session.model()}", ""]
    lines += ["Success on held-out examples in per cent, with 95 % intervals over seeds and examples, and tokens.", ""]
    for task in [task for task in TASKS if any(key[0] == task for key in results.cells)]:
        about = TASKS[task]
        lines += [f"## {about.words}", "", f"The best policy with one seat's view: {100 * about.bound:.1f}.", ""]
        shown = {heading: _means(results, task, metric) for metric, heading in about.shown.items()}
        lines += [*results.summary(task, {"test": "success"}, shown), *results.comparisons(task, {"test": about.words})]
        figures += results.figures(task, {"test": about.words})
        for row in TEAMS:
            cell = results.cells.get((task, row, "test"))
            values = grid(cell.values) if cell else None
            if values is not None:
                change = difference(values, 0 * values + about.bound).points()
                lines.append(f"- {ROWS[row]}, against the best policy with one seat's view: {change} points.")
        lines.append("")
    return Page(lines, figures) if results.cells else None


def _means(results: Results, task: str, metric: str) -> dict[str, str]:
    """Return the mean of a metric over all episodes that have it, by row."""
    means = {}
    for row, own in results.rows(task).items():
        some = [record["metrics"] for record in results.episodes(own, "test")]
        if values := [metrics[metric] for metrics in some if metric in metrics]:
            means[row] = f"{100 * sum(values) / len(values):.1f}"
    return means


SPEC = Spec(
    make,
    untrained=lambda row: STARTS.get(row, ""),
    baselines=lambda row: ("seat_grpo", "prompt", "all_grpo") if row in TEAMS else (),
)
TABLE = Table(
    "teams", 1, __doc__, dict.fromkeys(TASKS, ROWS), lambda session: trials.plan(session, SPEC), page,
    trials.add_flags, check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(TABLE))
