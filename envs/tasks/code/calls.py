"""What episodes of the task `code` leave to other processes (`ask.verify`): reading test cases and grading.

Arguments and results are JSON values. Each process has a sandbox of its own, which isolates as the run has found that
this machine allows. So neither the threads that wait for programs nor the syntax trees of answers take the
interpreter away from the event loop and the sampler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.code import extract
from envs.tasks.code.grading import WAIT, Report, grade, grade_groups
from envs.tasks.code.rows import Row
from envs.tasks.sandbox import same_sandbox

STARTING = 30.0
"""Seconds that a call may take beyond the limits of its programs: workers of the sandbox start, values are compared."""


def graded(sandbox: Mapping, row: Row, program: str, tests: Sequence[dict], seconds: float) -> Report:
    """A program on tests; `sandbox` are the settings of one."""
    return grade(same_sandbox(sandbox), row, program, tests, seconds)


def cases_in(text: str, entry_point: str | None, most: int) -> dict[str, Any]:
    """{"tests", "unreadable"}: the test cases of an answer."""
    found = extract.read_cases(text, entry_point, most)
    return {"tests": found.tests, "unreadable": found.unreadable}


def tried(
    sandbox: Mapping, row: Row, program: str | None, tests: Sequence[dict], text: str, most: int, seconds: float
) -> dict[str, Any]:
    """{"cases", "gold", "kept"}: the cases of an answer, and a program on gold tests and on these cases.

    A report is None where there is nothing to report: without a program, or without a case.
    """
    cases = cases_in(text, row["entry_point"], most)
    if program is None:
        return {"cases": cases, "gold": None, "kept": None}
    groups = [tests, cases["tests"]] if cases["tests"] else [tests]
    gold, *kept = grade_groups(same_sandbox(sandbox), row, program, groups, seconds)
    return {"cases": cases, "gold": gold, "kept": kept[0] if kept else None}


def limit(tests: int, seconds: float) -> float:
    """Seconds that a call with so many tests may take, which is more than all of its programs are allowed."""
    return STARTING + (2 * tests + 4) * (WAIT * seconds + 3)


def needed(row: Row) -> Row:
    """What grading needs of a row beside its tests."""
    return {name: row[name] for name in ("prelude", "setup", "solution", "entry_point")}
