"""Table of language tasks: math, code and NLI with one agent or several roles.

    MARL_JAX_DATA=../shared/data python -m experiments.tables.reasoning --model=qwen2.5-coder-1.5b        # one GPU
    python -m experiments.tables.reasoning --model=qwen3-1.7b --only=code,math/at_grpo_shared --steps=50
    python -m experiments.tables.reasoning --model=qwen2.5-coder-1.5b --sets=gsm8k,math500 --only=math
    python -m experiments.tables.reasoning --steps=2                   # the embedded model on the built-in samples

The rows compare one agent with roles: by prompts alone, with GRPO, and with AT-GRPO for one policy, an adapter per role
or a model per role. The group `program` is GSM8K with programs as answers, rewarded by their execution; it has one
agent only. All rows of a task that learn have room for the same number of completions, which is checked. Roles are
compared with one agent at equal generated tokens, in training and at inference (`trials.py`). The score for best-of-n
is the task's own: whether solution and program agree, or the share of an agent's test cases that its program passes.

Each tested checkpoint is evaluated once on each test set; test sets are never used for selection. Test sets of a few
dozen problems are sampled SMALL_SAMPLES times at a temperature (avg@k), the others once and greedily. Data files must
exist: a table never shows a built-in sample instead of a published dataset. APPS and CodeContests are included if their
files are there. `--config.FIELD=VALUE` goes to every run; fields of learning do not go to evaluations. The table is
written to reasoning.md, reasoning.csv and reasoning.svg in --workdir.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import sys
from collections.abc import Mapping

from configs import reasoning as forms
from experiments.tables import trials
from experiments.tables.results import Results
from experiments.tables.runner import (
    Page,
    Session,
    Table,
    at_least,
    check_budgets,
    check_files,
    config_of,
    has_file,
    main,
)
from experiments.tables.trials import Spec, Test, Trial, steps_of

SMALL_SAMPLES = 16
TEMPERATURE = 0.7
"""Temperature of tests with several samples."""


@dataclasses.dataclass(frozen=True)
class TestSet:
    """A column of the table.

    Attributes:
        words: Display name.
        file: Data file; "" for built-in problems.
        size: Number of problems.
        samples: Number of samples per problem.
        optional: Whether the set is left out if its file is missing.
    """

    __test__ = False  # not a pytest test

    words: str
    file: str
    size: int
    samples: int = 1
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: experiment, data file for training, test sets, and parameters."""

    words: str
    experiment: str
    file: str
    sets: Mapping[str, TestSet]
    params: tuple[str, ...] = ()


GSM8K = TestSet("GSM8K", "gsm8k_test", 1319)
TASKS = {
    "math": Task("Math", "math_reasoning", "gsm8k_train", {
        "gsm8k": GSM8K,
        "math500": TestSet("MATH-500", "math500_test", 500),
        "aime2024": TestSet("AIME 2024", "aime2024", 30, SMALL_SAMPLES),
        "aime2025": TestSet("AIME 2025", "aime2025", 30, SMALL_SAMPLES),
        "aime2026": TestSet("AIME 2026", "aime2026", 30, SMALL_SAMPLES),
        "amc2023": TestSet("AMC 2023", "amc2023", 40, SMALL_SAMPLES),
        "olympiadbench": TestSet("OlympiadBench", "olympiadbench_math_en_text", 675),
    }),
    "program": Task(
        "Math by programs", "math_reasoning", "gsm8k_train", {"gsm8k": GSM8K}, ("tool=False", "answer=program")
    ),
    "code": Task("Code", "code_generation", "mbpp", {
        "mbpp": TestSet("MBPP", "mbpp", 500),
        "humaneval": TestSet("HumanEval", "humaneval", 164),
        "livecodebench": TestSet("LiveCodeBench v1, public tests", "livecodebench_v1_public", 400),
        "apps": TestSet("APPS", "apps_test", 5000, optional=True),
        "codecontests": TestSet("CodeContests", "codecontests_test", 165, optional=True),
    }),
    "nli": Task("NLI", "nli", "anli_dev", {"anli": TestSet("ANLI, chance 33.3 %", "anli_test", 3200)}),
}  # fmt: skip
SAMPLE = TestSet("built-in sample", "", 16)
"""The only test set of the embedded model."""
ROWS = {
    "single": "one agent",
    "single_grpo": "one agent + GRPO",
    "roles_prompt": "roles, prompts only",
    "roles_grpo": "roles + GRPO",
    "at_grpo_shared": "roles + AT-GRPO, shared",
    "at_grpo_per_role": "roles + AT-GRPO, per role",
    "at_grpo_separate": "roles + AT-GRPO, a model per role",
}
SINGLE = ("single", "single_grpo")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this table."""
    trials.add_flags(parser)
    parser.add_argument("--sets", default="", help="Test sets, separated by commas; all by default")
    parser.add_argument("--samples", type=at_least(0), default=8, help="Samples of one agent per problem; 0 for none")


def sets_of(session: Session, task: str) -> Mapping[str, TestSet]:
    """Return the selected test sets of a task; the embedded model has the built-in sample."""
    if not session.flags.model:
        return {"sample": SAMPLE}
    chosen = session.flags.sets.split(",") if session.flags.sets else TASKS[task].sets
    sets = {name: one for name, one in TASKS[task].sets.items() if name in chosen}
    return {name: one for name, one in sets.items() if not one.optional or has_file(one.file)}


def check(session: Session) -> None:
    """Exit if test sets, budgets or data files do not fit."""
    names = dict.fromkeys(name for task in TASKS.values() for name in task.sets)
    if unknown := [name for name in session.flags.sets.split(",") if name and name not in names]:
        raise SystemExit(f"reasoning: --sets has {unknown[0]!r}, but must be one of: {', '.join(names)}")
    check_budgets(
        "reasoning", {key: trial.completions[0] for key in session.wanted if (trial := make(session, *key)).steps}
    )
    files = [(TASKS[task].file, *(one.file for one in sets_of(session, task).values())) for task, _ in session.wanted]
    check_files(session, dict.fromkeys(file for several in files for file in several))


@functools.lru_cache(maxsize=8)
def _answers(experiment: str) -> tuple[int, int]:
    return importlib.import_module(f"experiments.{experiment}").ANSWERS


def make(session: Session, task: str, row: str) -> Trial:
    """Return the trial of a row; one agent is also sampled several times."""
    about = TASKS[task]
    experiment = f"experiments/{about.experiment}.py:{session.form(row)}"
    steps = 0 if row in forms.UNTRAINED else steps_of(session, experiment)
    answers = _answers(about.experiment)
    room = forms.answers_of(config_of(experiment).to_dict() | {"steps": steps}, answers, single=row in SINGLE)
    tests = {}
    for name, one in sets_of(session, task).items():
        tests[name] = _test(session, name, one, one.samples)
        if row in SINGLE and session.flags.samples > one.samples == 1:
            tests[f"{name}_samples"] = _test(session, name, one, session.flags.samples)
    params = tuple(f"--config.task.params.{param}" for param in about.params)
    return Trial(task, row, experiment, steps, (room, answers[row not in SINGLE]), tests, params)


def _test(session: Session, name: str, one: TestSet, samples: int) -> Test:
    games = min(session.flags.problems or one.size, one.size)
    flags = [f"--config.eval.games={games}", f"--config.eval.samples={samples}"]
    flags += [f"--config.eval.temperature={TEMPERATURE}"] * (samples > 1)
    flags += [f"--config.task.params.test_dataset={name}"] * (one.file not in ("", "anli_test"))
    return Test(tuple(flags), games * samples)


def page(session: Session) -> Page | None:
    """Return success on test sets by task, and the comparisons at equal tokens."""
    results, figures = Results(session, SPEC), []
    lines = [f"# Reasoning with {session.model()}", ""]
    lines += [
        "Success on test sets in per cent, with 95 % intervals over seeds and problems, and tokens per problem.",
        "",
    ]
    for task in dict.fromkeys(task for task, _ in session.wanted):
        words = {
            name: one.words + (f", avg@{one.samples}" if one.samples > 1 else "")
            for name, one in sets_of(session, task).items()
        }
        lines += [f"## {TASKS[task].words}", "", *results.summary(task, words), *results.comparisons(task, words)]
        figures += results.figures(task, {name: f"{TASKS[task].words}: {heading}" for name, heading in words.items()})
        missing = [one.words for one in TASKS[task].sets.values() if one.optional and not has_file(one.file)]
        lines += [f"No tests at hand: {', '.join(missing)}.", ""] if missing and session.flags.model else []
    return Page(lines, figures) if results.cells else None


SMALL = {name for task in TASKS.values() for name, one in task.sets.items() if one.samples > 1}
SPEC = Spec(
    make,
    untrained=lambda row: "" if row in forms.UNTRAINED else "single" if row in SINGLE else "roles_prompt",
    baselines=lambda row: () if row in SINGLE else (SINGLE[row not in forms.UNTRAINED],),
    sampled=lambda row: {} if row in SINGLE else {(one := SINGLE[row not in forms.UNTRAINED]): ROWS[one]},
    samples=lambda test: test if test in SMALL else f"{test}_samples",
)
GROUPS = {task: ROWS if task != "program" else {row: ROWS[row] for row in SINGLE} for task in TASKS}
TABLE = Table("reasoning", 2, __doc__, GROUPS, lambda session: trials.plan(session, SPEC), page, add_flags, check)

if __name__ == "__main__":
    sys.exit(main(TABLE))
