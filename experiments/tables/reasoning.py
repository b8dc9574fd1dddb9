"""Table of language tasks: math, code and NLI with one agent or several roles.

    MARL_JAX_DATA=../shared/data python -m experiments.tables.reasoning --model=qwen2.5-coder-0.5b        # one GPU
    python -m experiments.tables.reasoning --model=qwen3-1.7b --only=code,math/at_grpo_shared --steps=50
    python -m experiments.tables.reasoning --steps=2                   # the embedded model on the built-in samples

The rows compare prompts alone with GRPO and AT-GRPO. All rows of a task that learn have the same sample budget, which
is checked. A run is evaluated on the validation split while it learns, and its best checkpoint by that (`--step`) is
then evaluated once on each test set; test sets are never used for selection. Test sets of a few dozen problems are
sampled SMALL_SAMPLES times at a temperature (avg@k), the others once and greedily. Intervals are those of the
evaluation: 95 %, over problems.

Each run and each evaluation is a separate `launch.py` with its own folder under --workdir, so the same command
continues where it was stopped and collects finished runs. `--config.FIELD=VALUE` goes to every run; fields of learning
(`command.LEARNING`) do not go to evaluations. Data files must exist: a table never shows a built-in sample instead of a
published dataset.

The table is written to reasoning.md, reasoning.csv and reasoning.svg in --workdir.
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

from configs import reasoning as forms
from experiments.tables.charts import Bar, bar_chart
from experiments.tables.command import (
    add_flags,
    at_least,
    check_files,
    finish,
    read_flags,
    run_rounds,
    select,
    without_learning,
)
from experiments.tables.runs import Rate, Runs, counted, evaluation, is_done

SMALL_SAMPLES = 16
TEMPERATURE = 0.7
"""Temperature for small test sets, which are sampled several times."""


@dataclasses.dataclass(frozen=True)
class TestSet:
    """A column of the table.

    Attributes:
        words: Display name.
        params: Parameters of the task that choose the test set.
        file: Data file.
        samples: Number of samples per problem.
    """

    __test__ = False  # not a pytest test

    words: str
    params: Mapping[str, str]
    file: str
    samples: int = 1


@dataclasses.dataclass(frozen=True)
class Task:
    """A task with its experiment, its data files for training, and its test sets."""

    words: str
    experiment: str
    files: tuple[str, ...]
    sets: Mapping[str, TestSet]


def _set(words: str, name: str, file: str, samples: int = 1) -> TestSet:
    return TestSet(words, {"test_dataset": name}, file, samples)


TASKS = {
    "math": Task("Math", "math_reasoning", ("gsm8k_train",), {
        "gsm8k": _set("GSM8K", "gsm8k", "gsm8k_test"),
        "math500": _set("MATH-500", "math500", "math500_test"),
        "aime2024": _set("AIME 2024", "aime2024", "aime2024", SMALL_SAMPLES),
        "aime2025": _set("AIME 2025", "aime2025", "aime2025", SMALL_SAMPLES),
        "aime2026": _set("AIME 2026", "aime2026", "aime2026", SMALL_SAMPLES),
        "amc2023": _set("AMC 2023", "amc2023", "amc2023", SMALL_SAMPLES),
        "olympiadbench": _set("OlympiadBench", "olympiadbench", "olympiadbench_math_en_text"),
    }),
    "code": Task("Code", "code_generation", ("mbpp",), {
        "mbpp": _set("MBPP", "mbpp", "mbpp"),
        "humaneval": _set("HumanEval", "humaneval", "humaneval"),
        "livecodebench": _set("LiveCodeBench v1, public tests", "livecodebench", "livecodebench_v1_public"),
    }),
    "nli": Task("NLI", "nli", ("anli_dev",), {"anli": TestSet("ANLI", {}, "anli_test")}),
}  # fmt: skip
SAMPLE = TestSet("built-in sample", {}, "")
"""The only test set of the embedded model."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        words: Display name.
        untuned: The untuned row that it starts from; "" if it is untuned itself.
    """

    words: str
    untuned: str = ""


ROWS = {
    "single": Row("one agent"),
    "single_grpo": Row("one agent + GRPO", "single"),
    "roles_prompt": Row("roles, prompts only"),
    "roles_grpo": Row("roles + GRPO", "roles_prompt"),
    "at_grpo_shared": Row("roles + AT-GRPO, shared", "roles_prompt"),
    "at_grpo_per_role": Row("roles + AT-GRPO, per role", "roles_prompt"),
}
Wanted = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Result:
    """A cell of the table; see `planning.Result` for `answers` and `used`."""

    task: str
    set: str
    row: str
    rate: Rate | None
    answers: int | None = None
    used: int | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table.

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    flags, passed = parse(argv)
    wanted = select("reasoning", flags.only, TASKS, ROWS)
    check_budgets(flags, wanted)
    folder, failed, stopped = Path(flags.workdir), [], False
    if not flags.collect:
        check_files("reasoning", files_of(flags, wanted))
        failed, stopped = run_rounds(plan(flags, wanted, passed), folder, flags.jobs)
    results = collect(flags, wanted)
    if flags.collect and not any(result.rate for result in results):
        raise SystemExit(f"reasoning.py: {folder} has no evaluations to collect")
    status = finish("reasoning", folder, markdown(results, flags), drawing(results, flags), failed, stopped)
    write_csv(results, folder / "reasoning.csv")
    return status


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags of the table and those for every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "reasoning")
    parser.add_argument("--only", default="", help="Rows as TASK/ROW or TASK, separated by commas")
    parser.add_argument(
        "--problems", type=at_least(0), default=0, help="Maximum number of problems per test set; 0 uses all"
    )
    parser.add_argument("--step", choices=("best", "newest"), default="best", help="Checkpoint to test")
    return read_flags(parser, "reasoning", argv)


# ------------------------------------------------------------------------------------------------------------- runs


def sets_of(flags: argparse.Namespace, task: str) -> Mapping[str, TestSet]:
    """Return the test sets of a task; the embedded model has the built-in sample."""
    return TASKS[task].sets if flags.model else {"sample": SAMPLE}


def config_of(flags: argparse.Namespace, task: str, row: str):
    """Return the config of a row: the experiment's, with the table's flags."""
    experiment = importlib.import_module(f"experiments.{TASKS[task].experiment}")
    config = experiment.get_config("+".join(part for part in (row, flags.model) if part))
    if flags.steps:
        config.steps = flags.steps
        config.optim.warmup = min(config.optim.warmup, flags.steps - 1)
    return config


def answers(task: str, row: str, config: Mapping) -> int:
    """Return the maximum number of completions of a run in training."""
    experiment = importlib.import_module(f"experiments.{TASKS[task].experiment}")
    return forms.answers_of(config, experiment.ANSWERS, single=row.startswith("single"))


def check_budgets(flags: argparse.Namespace, wanted: Wanted) -> None:
    """Exit unless all rows of a task that learn have the same budget."""
    for task in TASKS:
        budgets = {row: answers(task, row, config_of(flags, task, row)) for t, row in wanted if t == task}
        budgets = {row: room for row, room in budgets.items() if ROWS[row].untuned}
        if len(set(budgets.values())) > 1:
            raise SystemExit(f"reasoning.py: budgets of {task} differ: {budgets}")


def files_of(flags: argparse.Namespace, wanted: Wanted) -> list[str]:
    """Return the published files that the rows need; none for the embedded model."""
    if not flags.model:
        return []
    return [file for task in dict.fromkeys(task for task, _ in wanted)
            for file in (*TASKS[task].files, *(s.file for s in TASKS[task].sets.values()))]  # fmt: skip


def test_folder(flags: argparse.Namespace, task: str, row: str, name: str) -> str:
    """Return the folder of an evaluation.

    For a row that learns, it includes the number of steps, so that a longer run gets new evaluations.
    """
    steps = f"_{config_of(flags, task, row).steps}_{flags.step}" if ROWS[row].untuned else ""
    problems = f"_{flags.problems}" if flags.problems else ""
    return f"{task}/{row}/test{steps}{problems}/{name}"


def plan(flags: argparse.Namespace, wanted: Wanted, passed: Sequence[str] = ()) -> tuple[Runs, Runs]:
    """Return two rounds of runs: training, and all evaluations.

    Args:
        flags: Flags of the table.
        wanted: Selected (task, row) pairs.
        passed: Flags for every run.
    """
    folder = Path(flags.workdir)
    to_tests = without_learning(passed)
    training, tests = {}, {}
    for task, row in wanted:
        config = config_of(flags, task, row)
        form = "+".join(part for part in (row, flags.model) if part)
        experiment = f"--config=experiments/{TASKS[task].experiment}.py:{form}"
        start = []
        if ROWS[row].untuned:
            name = f"{task}/{row}"
            steps = [f"--config.steps={config.steps}", f"--config.optim.warmup={config.optim.warmup}"]
            training[name] = ([experiment, *steps, *passed], is_done(folder / name, config.steps))
            start = [f"--config.model.init_from={(folder / name).absolute()}@{flags.step}"]
        for set_name, test_set in sets_of(flags, task).items():
            name = test_folder(flags, task, row, set_name)
            command = [experiment, "--mode=eval", *start, "--config.eval.split=test"]
            command += [f"--config.eval.games={flags.problems or 10**6}", f"--config.eval.samples={test_set.samples}"]
            command += [f"--config.eval.temperature={TEMPERATURE}"] * (test_set.samples > 1)
            command += [f"--config.task.params.{name_}={value}" for name_, value in test_set.params.items()]
            tests[name] = ([*command, *to_tests], (folder / name / "evaluation.json").exists())
    return training, tests


# ---------------------------------------------------------------------------------------------------------- results


def collect(flags: argparse.Namespace, wanted: Wanted) -> list[Result]:
    """Read the results of the selected rows."""
    folder, results = Path(flags.workdir), []
    for task, row in wanted:
        room = used = None
        path = folder / task / row / "config.json"
        if ROWS[row].untuned and path.exists():
            room, used = answers(task, row, json.loads(path.read_text())), counted(folder / task / row)
        for name in sets_of(flags, task):
            rate = evaluation(folder / test_folder(flags, task, row, name), "self")
            results.append(Result(task, name, row, rate, room, used))
    for task in TASKS:
        budgets = {result.row: result.answers for result in results if result.task == task and result.answers}
        if len(set(budgets.values())) > 1:
            raise SystemExit(
                f"reasoning.py: the runs of {task} have different budgets: {budgets}; start anew elsewhere"
            )
    return results


def heading(flags: argparse.Namespace, task: str, name: str) -> str:
    """Return the heading of a column: task, test set, and avg@k if sampled several times."""
    test_set = sets_of(flags, task)[name]
    return f"{TASKS[task].words}: {test_set.words}" + (f", avg@{test_set.samples}" if test_set.samples > 1 else "")


def markdown(results: Sequence[Result], flags: argparse.Namespace) -> str:
    """Return the table as Markdown: success in percent with intervals, by task."""
    lines = [f"# Reasoning with {flags.model or 'the embedded model'}", ""]
    lines += ["Success on test sets in per cent, with 95 % intervals over problems.", ""]
    for task in dict.fromkeys(result.task for result in results):
        here = [result for result in results if result.task == task]
        sets = list(dict.fromkeys(result.set for result in here))
        by_cell = {(result.row, result.set): result for result in here}
        lines.append("| | " + " | ".join(heading(flags, task, name) for name in sets) + " |")
        lines.append("| --- |" + " --- |" * len(sets))
        for row in dict.fromkeys(result.row for result in here):
            cells = [cell(by_cell.get((row, name))) for name in sets]
            lines.append(f"| {ROWS[row].words} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join([*lines, *notes(results, flags)]) + "\n"


def cell(result: Result | None) -> str:
    """Return the text of one cell; rows that have learned are bold."""
    if result is None or result.rate is None:
        return "–"
    return f"**{result.rate}**" if ROWS[result.row].untuned else str(result.rate)


def notes(results: Sequence[Result], flags: argparse.Namespace) -> Iterator[str]:
    """Yield the notes below the table."""
    if any(result.answers for result in results):
        chosen = "best on the validation part" if flags.step == "best" else "last"
        yield f"- Of rows that learn, the checkpoint is tested that was {chosen}; a test set chooses nothing."
    for task in dict.fromkeys(result.task for result in results):
        here = [result for result in results if result.task == task]
        words = TASKS[task].words
        room = next((result.answers for result in here if result.answers), None)
        if room:
            yield f"- {words}: every row that learns has room for {room:,} answers."
        used = {ROWS[r.row].words: r.used / r.answers for r in here if r.used and r.used < r.answers}
        if used:
            parts = ", ".join(f"{100 * share:.0f} % ({row})" for row, share in used.items())
            yield f"- {words}: of that room were used {parts}."
    if any(sets_of(flags, result.task)[result.set].samples > 1 for result in results):
        yield f"- avg@k: the mean over k samples of every problem at temperature {TEMPERATURE}; the others are greedy."


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write the table as CSV, with rates between 0 and 1."""
    ends = ("value", "low", "high")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "set", "row", *ends, "answers", "used"])
        for r in results:
            rate = [getattr(r.rate, end) if r.rate else "" for end in ends]
            writer.writerow([r.task, r.set, r.row, *rate, *("" if x is None else x for x in (r.answers, r.used))])


def drawing(results: Sequence[Result], flags: argparse.Namespace) -> str:
    """Draw rows that learn as bars, with the untuned rows that they start from."""

    def bar(rate: Rate | None):
        return None if rate is None else (rate.value, rate.low, rate.high)

    groups: dict[str, list[Bar]] = {}
    rates = {(r.task, r.set, r.row): r.rate for r in results}
    for r in results:
        if ROWS[r.row].untuned:
            before = rates.get((r.task, r.set, ROWS[r.row].untuned))
            group = groups.setdefault(heading(flags, r.task, r.set), [])
            group.append(Bar(ROWS[r.row].words, bar(before), bar(r.rate)))
    return bar_chart(groups)


if __name__ == "__main__":
    sys.exit(main())
