"""Grading of programs: tests run in the sandbox, and values are compared outside of it.

    report = grade(sandbox, row, program, tests)
    report["share"], [test["outcome"] for test in report["tests"]]
    gold, own = grade_groups(sandbox, row, program, [tests, cases])

Grading waits for the sandbox and may compare large values, so episodes call it in another process (`calls.py`).

A report is a JSON value, so that an episode can record it. A test has one of these outcomes:

- passed: The value or output is the expected one.
- wrong: The value or output differs.
- error: The program raised an exception or exited.
- limit: The program hit the sandbox limit named in `note`, in this test or in an earlier one.
- refused: The sandbox did not run the program.
- void: The solution, which defines the expected value, has none for this test. Void tests do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from envs.tasks.code.rows import Row, kind_of
from envs.tasks.code.values import literal, same, same_output, same_trees, shown
from envs.tasks.sandbox import CallResult, Limits, Sandbox, SandboxResult

Report = dict[str, Any]

SECONDS = 4.0
"""CPU time limit in seconds for all calls of a program together, or for one run on one input."""
WAIT = 3
"""Wall-clock limit as a multiple of the CPU limit.

It leaves room on a busy machine and ends programs that only wait.
"""
MEMORY_MB = 512
OUTPUT_KB = 64
LONGEST_PROGRAM = 100_000


def grade(sandbox: Sandbox, row: Row, program: str, tests: Sequence[dict], seconds: float = SECONDS) -> Report:
    """Grade a program on tests and return a report.

    Returns:
        {"built", "ran", "passed", "share", "tests": [{"outcome", "got", "note"}]}. "built" is True if the program is
        valid Python. "ran" is True if it was loaded and no test ended with an error or a limit. "share" is the fraction
        of tests that passed, without void tests.
    """
    return grade_groups(sandbox, row, program, [tests], seconds)[0]


def grade_groups(
    sandbox: Sandbox, row: Row, program: str, groups: Sequence[Sequence[dict]], seconds: float = SECONDS
) -> list[Report]:
    """Return one report per group of tests.

    The reports are the same as if each group were graded separately, but the program is loaded only once where
    possible.
    """
    program = program.removeprefix("\ufeff")  # it would otherwise follow the row's prelude
    if problem := unfit(program):
        return [_report(False, [_verdict("error", note=problem) for _ in tests]) for tests in groups]
    if any(kind_of(test) == "stdin" for tests in groups for test in tests):
        with ThreadPoolExecutor(len(groups)) as pool:
            return list(pool.map(lambda tests: _grade_stdin(sandbox, program, tests, seconds), groups))
    observed, is_python = observe(sandbox, row, program, groups, seconds)
    reports = []
    for tests, seen in zip(groups, observed, strict=True):
        built = any(result.status != "error" for result in seen)
        if not built and is_python is None:
            is_python = builds(sandbox, program)
        golds = _golds(sandbox, row, tests, seconds)
        reports.append(_report(bool(built or is_python), list(map(_judge, tests, seen, golds))))
    return reports


def _golds(sandbox: Sandbox, row: Row, tests: Sequence[dict], seconds: float) -> list[CallResult | None]:
    """Return the solution's results for tests without an expected value, and None for other tests."""
    unknown = [n for n, test in enumerate(tests) if "call" in test and "expect" not in test]
    golds: list[CallResult | None] = [None] * len(tests)
    if unknown:
        [seen], _ = observe(sandbox, row, row["solution"], [[tests[n] for n in unknown]], seconds)
        for n, result in zip(unknown, seen, strict=True):
            golds[n] = result
    return golds


def unfit(program: str) -> str | None:
    """Return the reason why a program is not run at all, or None."""
    if len(program) > LONGEST_PROGRAM:
        return f"the program has {len(program)} characters; accepted: {LONGEST_PROGRAM} at most"
    try:
        program.encode("utf-8")
    except UnicodeEncodeError:
        return "the program is not valid Unicode"
    return "the program has a NUL character" if "\0" in program else None


def _report(built: bool, verdicts: list[dict]) -> Report:
    counted = [v["outcome"] for v in verdicts if v["outcome"] != "void"]
    passed = counted.count("passed")
    return {
        "built": built,
        "ran": built and bool(counted) and all(outcome in ("passed", "wrong") for outcome in counted),
        "passed": bool(counted) and passed == len(counted),
        "share": passed / len(counted) if counted else 0.0,
        "tests": verdicts,
    }


def _verdict(outcome: str, got: str = "", note: str = "") -> dict[str, str]:
    return {"outcome": outcome, "got": got, "note": note}


# ---------------------------------------------------------------------------------------------------- calls

_FUTURE = re.compile(r"^from __future__ import [^\n]*$", re.MULTILINE)
_NAME = "program"
"""Module name of the program; blocks under `if __name__ == "__main__"` do not run."""


def module(row: Row, program: str) -> str:
    """Return the program with the row's prelude and setup around it.

    Imports from `__future__` are moved to the top.
    """
    future = "".join(line + "\n" for line in _FUTURE.findall(program))
    return f"{future}{row['prelude']}\n{_FUTURE.sub('', program)}\n{row['setup']}\n"


def observe(
    sandbox: Sandbox, row: Row, program: str, groups: Sequence[Sequence[dict]], seconds: float = SECONDS
) -> tuple[list[list[CallResult]], bool | None]:
    """Evaluate groups of tests without comparing any value.

    All calls of a group share the limits, so a program that never ends takes the time of one call. After a limit was
    hit, the remaining calls count as limited too.

    Returns:
        The results of each group, and whether the program is valid Python, or None if that is unknown.
    """
    limits = Limits(wall=WAIT * seconds + 2, cpu=seconds, memory_mb=MEMORY_MB, output_kb=OUTPUT_KB)
    items = [[{"kind": "value" if "call" in t else "test", "source": t[kind_of(t)]} for t in tests] for tests in groups]
    items[0].append({"kind": "builds", "source": program})
    results = sandbox.evaluate_groups(module(row, program), items, limits, _NAME)
    is_python = results[0].pop().value
    return results, None if is_python is None else is_python == ["b", 1]


def builds(sandbox: Sandbox, program: str) -> bool:
    """Check whether a program is valid Python."""
    probe = sandbox.run_sync(f"compile({program!r}, 'program.py', 'exec')\n")
    return probe.status == "ok"


def _judge(test: dict, result: CallResult, gold: CallResult | None) -> dict[str, str]:
    if gold is not None and gold.status != "ok":
        return _verdict("void", note=f"the solution: {gold.error}")
    if gold is not None and not same_trees(gold.value, gold.value):  # an object without a literal, or NaN
        return _verdict("void", note="the solution's value equals nothing")
    if result.status != "ok":
        return _failed(result)
    if "check" in test:
        return _verdict("passed")
    close, plain = tuple(test["close"]) if "close" in test else None, test.get("plain", False)
    if gold is not None:
        right = same_trees(gold.value, result.value, close, plain)
    else:
        expected = [literal(text) for text in (test["expect"], *test.get("or", ()))]
        right = any(same(one, result.value, close, plain) for one in expected)
    return _verdict("passed" if right else "wrong", got=shown(result.value))


def _failed(result: CallResult) -> dict[str, str]:
    if result.status == "error" and "exited with -24 " in result.error:  # SIGXCPU
        return _verdict("limit", note="cpu")
    return _verdict(result.status, note=result.error[:300])


# ---------------------------------------------------------------------------------------------------- standard input


def _grade_stdin(sandbox: Sandbox, program: str, tests: Sequence[dict], seconds: float) -> Report:
    with ThreadPoolExecutor(min(sandbox.workers, len(tests))) as pool:
        results = list(pool.map(
            lambda test: run_stdin(sandbox, program, test["stdin"], test["stdout"], seconds), tests
        ))  # fmt: skip
    built = any(result.status != "error" for result in results) or builds(sandbox, program)
    return _report(built, [_judge_output(test["stdout"], result) for test, result in zip(tests, results, strict=True)])


def run_stdin(sandbox: Sandbox, program: str, given: str, expected: str, seconds: float = SECONDS) -> SandboxResult:
    """Run a program on one input, allowing more than twice the expected output."""
    room = OUTPUT_KB + 2 * len(expected.encode("utf-8", "replace")) // 1024
    limits = Limits(wall=WAIT * seconds + 2, cpu=seconds, memory_mb=MEMORY_MB, output_kb=room)
    return sandbox.run_sync(program, stdin=given, limits=limits)


def _judge_output(expected: str, result: SandboxResult) -> dict[str, str]:
    if result.status == "ok":
        right = same_output(expected, result.stdout)
        return _verdict("passed" if right else "wrong", got=result.stdout[:200])
    note = result.limit or "" if result.status == "limit" else _last_line(result.stderr)
    return _verdict(result.status, got=result.stdout[:200], note=note)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""
