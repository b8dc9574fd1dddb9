"""Table of tasks with divided information: teams and single agents, before and after training.

    python -m experiments.tables.teams --model=qwen2.5-coder-1.5b --seeds=3 --jobs=4      # one GPU
    python -m experiments.tables.teams --only=hidden_profile/at_grpo_shared --steps=2     # the embedded model
    python -m experiments.tables.teams --collect                                          # the runs so far

The rows are the forms of `configs/divided.py`. All rows that learn have room for the same number of completions, which
is checked. Each run is a separate `launch.py` with its own folder under --workdir, so the same command continues where
it was stopped. The last checkpoint is tested on held-out examples with greedy decoding. `--config.FIELD=VALUE` goes to
every run; fields of learning do not go to untrained rows.

Intervals are 95 % over examples. Differences are paired: every form has the same test examples, and the success of an
example is the mean over seeds. Tokens are those generated per test example, without the answers before an exchange,
which only measure. The table is written to teams.md, teams.csv and teams.svg in --workdir.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from configs import divided
from experiments.tables.charts import Bar, bar_chart
from experiments.tables.command import add_flags, at_least, finish, read_flags, run_rounds, select, without_learning
from experiments.tables.debate_records import points
from experiments.tables.intervals import difference, rate
from experiments.tables.runs import Rate, Runs, counted, episodes


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
BASELINES = ("seat_grpo", "prompt", "all_grpo")
"""Rows that trained teams are compared with."""

Wanted = Sequence[tuple[str, str]]
Tests = Mapping[tuple[str, str], Sequence[Sequence[Mapping]]]
"""Episodes of the test of each seed, by task and row."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table.

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    flags, passed = parse(argv)
    wanted = select("teams", flags.only, TASKS, ROWS)
    check_budgets(flags, wanted)
    folder = Path(flags.workdir)
    failed, stopped = ([], False) if flags.collect else run_rounds(plan(flags, wanted, passed), folder, flags.jobs)
    tests = collect(flags, wanted)
    if flags.collect and not tests:
        raise SystemExit(f"teams.py: {folder} has no evaluations to collect")
    status = finish("teams", folder, markdown(flags, tests), drawing(tests), failed, stopped)
    write_csv(tests, folder / "teams.csv")
    return status


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags of the table and those for every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "teams")
    parser.add_argument("--only", default="", help="Rows as TASK/ROW or TASK, separated by commas")
    parser.add_argument("--seeds", type=at_least(1), default=1, help="Number of runs of every row that learns")
    parser.add_argument(
        "--problems", type=at_least(0), default=0, help="Number of test examples; 0 uses the experiment's"
    )
    flags, passed = read_flags(parser, "teams", argv)
    if any(flag.startswith("--config.seed=") for flag in passed):
        parser.error("--seeds sets the seed of every run; remove --config.seed")
    return flags, passed


# ------------------------------------------------------------------------------------------------------------- runs


def config_of(flags: argparse.Namespace, task: str, row: str):
    """Return the config of a row: the experiment's, with the table's flags."""
    config = importlib.import_module(f"experiments.{task}").get_config(form_of(flags, row))
    config.steps = flags.steps or config.steps
    config.optim.warmup = min(config.optim.warmup, config.steps - 1)
    return config


def form_of(flags: argparse.Namespace, row: str) -> str:
    """Return the form of a row with the model."""
    return f"{row}+{flags.model}" if flags.model else row


def room(task: str, config) -> int:
    """Return the maximum number of completions of a run in training."""
    completions = importlib.import_module(f"experiments.{task}").COMPLETIONS
    return config.steps * config.task.n_episodes * divided.completions_of(config, completions)


def check_budgets(flags: argparse.Namespace, wanted: Wanted) -> None:
    """Exit unless all rows of a task that learn have the same budget."""
    for task in TASKS:
        learning = [row for t, row in wanted if t == task and row not in divided.UNTRAINED]
        budgets = {row: room(task, config_of(flags, task, row)) for row in learning}
        if len(set(budgets.values())) > 1:
            raise SystemExit(f"teams.py: budgets of {task} differ: {budgets}")


def name_of(task: str, row: str, seed: int) -> str:
    """Return the folder of a run."""
    return f"{task}/{row}-{seed}"


def seeds_of(flags: argparse.Namespace, row: str) -> range:
    """Return the seeds of a row; greedy tests of the untrained model need only one."""
    return range(1 if row in divided.UNTRAINED else flags.seeds)


def plan(flags: argparse.Namespace, wanted: Wanted, passed: Sequence[str] = ()) -> tuple[Runs, Runs]:
    """Return two rounds of runs: training, and all tests."""
    folder, training, tests = Path(flags.workdir), {}, {}
    problems = [f"--config.eval.games={flags.problems}"] if flags.problems else []
    for task, row in wanted:
        config = config_of(flags, task, row)
        experiment = f"--config=experiments/{task}.py:{form_of(flags, row)}"
        for seed in seeds_of(flags, row):
            name = name_of(task, row, seed)
            if row in divided.UNTRAINED:
                tested = (folder / name / "evaluation.json").exists()
                tests[name] = ([experiment, "--mode=eval", *problems, *without_learning(passed)], tested)
                continue
            command = [experiment, f"--config.seed={seed}", f"--config.steps={config.steps}"]
            command += [f"--config.optim.warmup={config.optim.warmup}"]
            command += ["--config.eval.every=0", "--config.checkpoint.best_metric="]
            done = (folder / name / "checkpoints" / str(config.steps) / "seal.json").exists()
            training[name] = ([*command, *passed], done)
            tests[name] = (["--mode=eval", *problems], _tested(folder / name) == config.steps)
    return training, tests


def _tested(folder: Path) -> int | None:
    path = folder / "evaluation.json"
    return json.loads(path.read_text(encoding="utf-8"))["step"] if path.exists() else None


# ---------------------------------------------------------------------------------------------------------- results


def collect(flags: argparse.Namespace, wanted: Wanted) -> Tests:
    """Read the episodes of all tests that have run."""
    folder = Path(flags.workdir)
    tests = {
        (task, row): [
            records for seed in seeds_of(flags, row) if (records := episodes(folder / name_of(task, row, seed)))
        ]
        for task, row in wanted
    }
    return {key: seeds for key, seeds in tests.items() if seeds}


def by_example(seeds: Sequence[Sequence[Mapping]]) -> dict[str, float]:
    """Return the success of each example, as the mean over seeds that tested it."""
    values: dict[str, list[float]] = {}
    for record in (record for records in seeds for record in records):
        values.setdefault(record["id"], []).append(record["success"])
    return {example: sum(those) / len(those) for example, those in values.items()}


def tokens(records: Sequence[Mapping]) -> float:
    """Return the generated tokens per example, without answers before an exchange."""
    return sum(t["tokens"] for r in records for t in r["turns"] if t["label"] != "before") / len(records)


def mean_of(seeds: Sequence[Sequence[Mapping]], metric: str) -> float | None:
    """Return the mean of a metric over all episodes that have it."""
    values = [r["metrics"][metric] for records in seeds for r in records if metric in r["metrics"]]
    return sum(values) / len(values) if values else None


def paired(ours: Sequence[Sequence[Mapping]], baseline: Sequence[Sequence[Mapping]]) -> tuple[Rate, int] | None:
    """Return the difference on common examples with its interval, and their number."""
    own, other = by_example(ours), by_example(baseline)
    both = [example for example in own if example in other]
    if not both:
        return None
    return difference([own[example] for example in both], [other[example] for example in both]), len(both)


def markdown(flags: argparse.Namespace, tests: Tests) -> str:
    """Return the page: success of every seed, costs, metrics and paired differences."""
    page = [f"# Divided information with {flags.model or 'the embedded model'}", ""]
    page += [
        "Success on held-out examples in per cent, with 95 % intervals over examples, seeds one below the other.",
        "",
    ]
    for task, about in TASKS.items():
        rows = [row for t, row in tests if t == task]
        if not rows:
            continue
        page += [f"## {about.words}", "", f"The best policy with one seat's view: {100 * about.bound:.1f}.", ""]
        page += ["| | success | mean | tokens | completions in training | " + " | ".join(about.shown.values()) + " |"]
        page += ["| --- |" + " --- |" * (4 + len(about.shown))]
        page += [_line(flags, task, row, tests[task, row]) for row in rows]
        page += ["", *comparisons(task, tests), ""]
    return "\n".join(page)


def _line(flags: argparse.Namespace, task: str, row: str, seeds: Sequence[Sequence[Mapping]]) -> str:
    rates = "<br>".join(str(rate([record["success"] for record in records])) for records in seeds)
    values = list(by_example(seeds).values())
    used = [counted(Path(flags.workdir) / name_of(task, row, seed)) for seed in seeds_of(flags, row)]
    trained = "–" if row in divided.UNTRAINED else ", ".join("–" if n is None else f"{n:,}" for n in used)
    shown = ["–" if (v := mean_of(seeds, m)) is None else f"{100 * v:.1f}" for m in TASKS[task].shown]
    spent = sum(map(tokens, seeds)) / len(seeds)
    mean = f"{100 * sum(values) / len(values):.1f}"
    return f"| {ROWS[row]} | {rates} | {mean} | {spent:.0f} | {trained} | {' | '.join(shown)} |"


def comparisons(task: str, tests: Tests) -> Iterator[str]:
    """Yield how trained teams compare with the baselines and with the bound of one view."""
    for team in TEAMS:
        if (task, team) not in tests:
            continue
        for other in BASELINES:
            both = paired(tests[task, team], tests.get((task, other), ()))
            if both is not None:
                yield f"- {ROWS[team]}, against {ROWS[other]}: {points(both[0])} points on {both[1]:,} examples."
        values = list(by_example(tests[task, team]).values())
        change = difference(values, [TASKS[task].bound] * len(values))
        yield f"- {ROWS[team]}, against the best policy with one seat's view: {points(change)} points."


def write_csv(tests: Tests, path: Path) -> None:
    """Write the success of every seed as CSV, with rates between 0 and 1."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "row", "seed", "value", "low", "high", "examples", "tokens"])
        for (task, row), seeds in tests.items():
            for seed, records in enumerate(seeds):
                one = rate([record["success"] for record in records])
                writer.writerow(
                    [task, row, seed, one.value, one.low, one.high, len(records), round(tokens(records), 1)]
                )


def drawing(tests: Tests) -> str:
    """Draw the rows as bars: trained rows with the untrained row that they start from."""
    start = {"seat_grpo": "seat", "all_grpo": "all", **dict.fromkeys(TEAMS, "prompt")}

    def bar(task: str, row: str) -> tuple[float, float, float] | None:
        values = list(by_example(tests.get((task, row), ())).values())
        return dataclasses.astuple(rate(values)) if values else None

    groups: dict[str, list[Bar]] = {}
    for task, row in tests:
        if row in start:
            groups.setdefault(TASKS[task].words, []).append(Bar(ROWS[row], bar(task, start[row]), bar(task, row)))
    return bar_chart(groups)


if __name__ == "__main__":
    sys.exit(main())
