"""Table of debates by turn, compared with baselines of equal numbers of completions.

    MARL_JAX_DATA=../shared/data python -m experiments.tables.debate --model=qwen2.5-coder-1.5b           # one GPU
    python -m experiments.tables.debate --model=qwen2.5-coder-1.5b --scorer=http://127.0.0.1:8100 --only=gsm8k
    python -m experiments.tables.debate --only=gsm8k/untuned,gsm8k/correctness        # the embedded model

The rows are: the untuned model; models trained in debates or as a single agent, for correct answers or for a verifier's
scores (with `--scorer`); and pairs of different models, untuned and trained. All rows that learn sample the same number
of completions, which is checked. The checkpoint that was best on the validation split is tested (`--step`); test sets
are never used for selection.

Each row is tested in debates of 3 agents and 3 turns, on its own task and on the other one (transfer); with nine
independent samples per question (maj@9, and best-of-9 by the verifier); and as one agent that refines its answer nine
times. Baselines are listed with their cost, and with the N for which maj@N writes as many tokens as the debate.
Intervals are 95 % Wilson intervals over questions. A paired bootstrap over questions decides whether a debate beats
maj@9.

Each run and each evaluation is a separate `launch.py` with its own folder under --workdir, so the same command
continues where it was stopped and collects finished runs. `--config.FIELD=VALUE` goes to every run; fields of learning
(`command.LEARNING`) do not go to evaluations. Data files must exist, except for the embedded model.

The table is written to debate.md, debate.csv and debate.svg in --workdir.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from configs import debate as forms
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
from experiments.tables.debate_page import Found, drawing, markdown, write_csv
from experiments.tables.debate_rows import OTHER, ROWS, SMALL, TASKS, TESTS, config_of, form_of, size, tests_of
from experiments.tables.runs import Runs, episodes, is_done

Wanted = list[tuple[str, str]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table.

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    flags, passed = parse(argv)
    wanted = rows_of(flags)
    check_budgets(flags, wanted)
    folder, failed, stopped = Path(flags.workdir), [], False
    if not flags.collect:
        check_files("debate", files_of(flags, wanted) if flags.model else [])
        failed, stopped = run_rounds(plan(flags, wanted, passed), folder, flags.jobs)
    results = collect(flags, wanted)
    if flags.collect and not results:
        raise SystemExit(f"debate.py: {folder} has no evaluations to collect")
    status = finish(
        "debate", folder, markdown(flags, wanted, results), drawing(flags, wanted, results), failed, stopped
    )
    write_csv(flags, wanted, results, folder / "debate.csv")
    return status


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags of the table and those for every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "debate")
    parser.add_argument("--only", default="", help="Rows as TASK/ROW or TASK, separated by commas")
    parser.add_argument("--tests", default=",".join(TESTS), help="Tests of the rows, separated by commas")
    parser.add_argument(
        "--problems", type=at_least(0), default=0, help="Maximum number of problems per test set; 0 uses all"
    )
    parser.add_argument("--step", choices=("best", "newest"), default="best", help="Checkpoint to test")
    algorithms = [name for name in forms.ALGORITHMS if name != forms.UNTUNED]
    parser.add_argument("--algorithm", choices=algorithms, default="ppo", help="Algorithm of rows that learn")
    parser.add_argument("--scorer", default="", help="Address of a verifier, for rows with one and best-of-N")
    flags, passed = read_flags(parser, "debate", argv)
    if unknown := [test for test in flags.tests.split(",") if test not in TESTS]:
        parser.error(f"--tests has {unknown[0]!r}, but must be one of: {', '.join(TESTS)}")
    return flags, passed


def rows_of(flags: argparse.Namespace) -> Wanted:
    """Return the selected (task, row) pairs.

    Rows with a verifier are included only with `--scorer`. A verifier judges one task.
    """
    wanted = select("debate", flags.only, TASKS, ROWS)
    verifier_rows = [row for row, about in ROWS.items() if about.verifier and f"/{row}" in flags.only]
    if verifier_rows and not flags.scorer:
        raise SystemExit(f"debate.py: the row {verifier_rows[0]!r} needs --scorer=http://…, the address of a verifier")
    if flags.scorer and len({task for task, _ in wanted}) > 1:
        raise SystemExit(f"debate.py: a verifier judges one task; add --only={' or '.join(TASKS)}")
    return [(task, row) for task, row in wanted if flags.scorer or not ROWS[row].verifier]


# ------------------------------------------------------------------------------------------------------------- runs


def files_of(flags: argparse.Namespace, wanted: Wanted) -> list[str]:
    """Return the data files of the tasks that are used for training or tests."""
    used = {task for task, _ in wanted} | {OTHER[task] for task, row in wanted if "transfer" in tests_of(flags, row)}
    return [file for task, about in TASKS.items() if task in used for file in about.files]


def check_budgets(flags: argparse.Namespace, wanted: Wanted) -> None:
    """Exit unless all rows of a task that learn sample the same number of completions."""
    for task in TASKS:
        learning = [row for t, row in wanted if t == task and ROWS[row].untuned]
        budgets = {row: forms.answers_of(config_of(flags, task, row)) for row in learning}
        if len(set(budgets.values())) > 1:
            raise SystemExit(f"debate.py: budgets of {task} differ: {budgets}")


def test_folder(flags: argparse.Namespace, task: str, row: str, test: str) -> str:
    """Return the folder of an evaluation.

    For a row that learns, it includes the number of steps, so that a longer run gets new evaluations.
    """
    steps = f"_{config_of(flags, task, row).steps}_{flags.step}" if ROWS[row].untuned else ""
    problems = f"_{flags.problems}" if flags.problems else ""
    return f"{task}/{row}/test{steps}{problems}/{test}"


def test_params(flags: argparse.Namespace, task: str, test: str) -> dict[str, object]:
    """Return the parameters of the debate for one of the tests."""
    agents, turns = size(flags)
    datasets = {name: about.dataset for name, about in TASKS.items()} if flags.model else SMALL
    sizes = {"samples": (agents * turns, 1), "refine": (1, agents * turns)}
    eval_agents, turns = sizes.get(test, (agents, turns))
    scorer = flags.scorer if test == "samples" and flags.scorer else "gold"
    dataset = datasets[OTHER[task] if test == "transfer" else task]
    return dict(dataset=dataset, eval_agents=eval_agents, turns=turns, scorer=scorer)


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
        config, name = config_of(flags, task, row), f"{task}/{row}"
        experiment = f"--config=experiments/{TASKS[task].experiment}.py:{form_of(flags, row)}"
        start = []
        if ROWS[row].untuned:
            command = [experiment, f"--config.steps={config.steps}", f"--config.optim.warmup={config.optim.warmup}"]
            if ROWS[row].verifier:
                least = TASKS[task].min_words if flags.model else 0
                command += [f"--config.task.params.scorer={flags.scorer}", f"--config.task.params.min_words={least}"]
            training[name] = ([*command, *passed], is_done(folder / name, config.steps))
            own = [f"policies.{policy}.model" for policy, about in config.policies.items() if about.model]
            place = f"{(folder / name).absolute()}@{flags.step}"
            start = [f"--config.{model}.init_from={place}" for model in ("model", *own)]
        for test in tests_of(flags, row):
            command = [experiment, "--mode=eval", *start, "--config.eval.split=test"]
            command += [f"--config.eval.games={flags.problems or 10**6}"]
            command += [f"--config.task.params.{key}={value}" for key, value in test_params(flags, task, test).items()]
            if test == "refine":  # one long conversation
                command += [f"--config.task.max_length={8192 if flags.model else 4096}"]
            at = test_folder(flags, task, row, test)
            tests[at] = ([*command, *to_tests], (folder / at / "evaluation.json").exists())
    return training, tests


# ---------------------------------------------------------------------------------------------------------- results


def collect(flags: argparse.Namespace, wanted: Wanted) -> Found:
    """Read the episodes of all tests that have run."""
    folder = Path(flags.workdir)
    budgets = {}
    for task, row in wanted:
        path = folder / task / row / "config.json"
        if ROWS[row].untuned and path.exists():
            budgets[task, row] = forms.answers_of(json.loads(path.read_text()))
    for task in TASKS:
        here = {row: budget for (t, row), budget in budgets.items() if t == task}
        if len(set(here.values())) > 1:
            raise SystemExit(f"debate.py: the runs of {task} have different budgets: {here}; use a new --workdir")
    results = {
        (task, row, test): episodes(folder / test_folder(flags, task, row, test))
        for task, row in wanted
        for test in tests_of(flags, row)
    }
    return {key: records for key, records in results.items() if records}


if __name__ == "__main__":
    sys.exit(main())
