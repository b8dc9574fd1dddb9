"""Functions that episodes of the `code` task run in other processes with `ask.verify`.

They read test cases and grade programs. Arguments and results are JSON values. Each process has its own sandbox with
the isolation that the run chose for this machine. Waiting for programs and parsing completions therefore never block
the event loop and the sampler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.code import extract
from envs.tasks.code.grading import WAIT, Report, grade, grade_groups
from envs.tasks.code.rows import Row
from envs.tasks.sandbox import same_sandbox

STARTING = 30.0
"""Extra seconds for a call beyond its programs' limits, for starting sandbox workers and comparing values."""


def graded(sandbox: Mapping, row: Row, program: str, tests: Sequence[dict], seconds: float) -> Report:
    """Grade a program on tests.

    Args:
        sandbox: Settings of the sandbox, see `Sandbox.settings`.
        row: The problem; see `needed`.
        program: Source of the program.
        tests: Tests in the format of `rows.py`.
        seconds: CPU time limit.
    """
    return grade(same_sandbox(sandbox), row, program, tests, seconds)


def cases_in(text: str, entry_point: str | None, most: int) -> dict[str, Any]:
    """Return the test cases of a completion as {"tests", "unreadable"}."""
    cases = extract.read_cases(text, entry_point, most)
    return {"tests": cases.tests, "unreadable": cases.unreadable}


def tried(
    sandbox: Mapping, row: Row, program: str | None, tests: Sequence[dict], text: str, most: int, seconds: float
) -> dict[str, Any]:
    """Grade a program on gold tests and on the test cases of a completion.

    Returns:
        {"cases", "gold", "kept"}: the cases and the two reports. Both reports are None without a program, and "kept" is
        None without a readable case.
    """
    cases = cases_in(text, row["entry_point"], most)
    if program is None:
        return {"cases": cases, "gold": None, "kept": None}
    groups = [tests, cases["tests"]] if cases["tests"] else [tests]
    gold, *kept = grade_groups(same_sandbox(sandbox), row, program, groups, seconds)
    return {"cases": cases, "gold": gold, "kept": kept[0] if kept else None}


def limit(tests: int, seconds: float) -> float:
    """Return a time limit in seconds that exceeds all limits of the call's programs.

    Args:
        tests: Number of tests.
        seconds: CPU time limit of a program.
    """
    return STARTING + (2 * tests + 4) * (WAIT * seconds + 3)


def needed(row: Row) -> Row:
    """Return the fields of a row that grading needs, without the tests."""
    return {name: row[name] for name in ("prelude", "setup", "solution", "entry_point")}
