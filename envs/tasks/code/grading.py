"""Grading: a program on tests in the sandbox, the values compared here.

    report = grade(sandbox, row, program, tests)
    report["share"], [test["outcome"] for test in report["tests"]]
    gold, own = grade_groups(sandbox, row, program, [tests, cases])

It waits for the sandbox and may compare large values, so episodes call it in another process (`calls.py`).

A report is a JSON value, so that an episode can record it. Outcomes of a test:

    passed    the value or output is the expected one
    wrong     it is another one
    error     the program raised or exited
    limit     it ran into a limit of the sandbox, named in `note`, in this test or in one before
    refused   the sandbox did not run it
    void      the expected value is that of the solution, which has none here; such a test does not count
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
"""Of CPU time for all calls of a program together, or for one run on one input."""
WAIT = 3
"""Wall time in units of the CPU time: enough on a busy machine, and the end of a program that only waits."""
MEMORY_MB = 512
OUTPUT_KB = 64
LONGEST_PROGRAM = 100_000


def grade(sandbox: Sandbox, row: Row, program: str, tests: Sequence[dict], seconds: float = SECONDS) -> Report:
    """A program on some tests: {"built", "ran", "passed", "share", "tests": [{"outcome", "got", "note"}]}.

    built   it is Python
    ran     it was loaded, and no test ended by an error or a limit
    share   of tests that passed, those that are void left out
    """
    return grade_groups(sandbox, row, program, [tests], seconds)[0]


def grade_groups(
    sandbox: Sandbox, row: Row, program: str, groups: Sequence[Sequence[dict]], seconds: float = SECONDS
) -> list[Report]:
    """A report for each of several groups of tests, as if each was graded by itself, for less."""
    if problem := unfit(program):
        return [_report(False, [_verdict("error", note=problem) for _ in tests]) for tests in groups]
    if any(kind_of(test) == "stdin" for tests in groups for test in tests):
        with ThreadPoolExecutor(len(groups)) as beside:
            return list(beside.map(lambda tests: _grade_stdin(sandbox, program, tests, seconds), groups))
    observed, is_python = observe(sandbox, row, program, groups, seconds)
    reports = []
    for tests, seen in zip(groups, observed, strict=True):
        built = any(found.status != "error" for found in seen)
        if not built and is_python is None:
            is_python = builds(sandbox, program)
        golds = _golds(sandbox, row, tests, seconds)
        reports.append(_report(bool(built or is_python), list(map(_judge, tests, seen, golds))))
    return reports


def _golds(sandbox: Sandbox, row: Row, tests: Sequence[dict], seconds: float) -> list[CallResult | None]:
    """What the solution returns, for tests without an expected value."""
    unknown = [n for n, test in enumerate(tests) if "call" in test and "expect" not in test]
    golds: list[CallResult | None] = [None] * len(tests)
    if unknown:
        [seen], _ = observe(sandbox, row, row["solution"], [[tests[n] for n in unknown]], seconds)
        for n, found in zip(unknown, seen, strict=True):
            golds[n] = found
    return golds


def unfit(program: str) -> str | None:
    """Why a program is not run at all, or None."""
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
"""A block for `__name__ == "__main__"` in an answer is not run where its functions are called."""


def module(row: Row, program: str) -> str:
    """The program with what comes before and behind it in its process; imports from the future come first."""
    future = "".join(line + "\n" for line in _FUTURE.findall(program))
    return f"{future}{row['prelude']}\n{_FUTURE.sub('', program)}\n{row['setup']}\n"


def observe(
    sandbox: Sandbox, row: Row, program: str, groups: Sequence[Sequence[dict]], seconds: float = SECONDS
) -> tuple[list[list[CallResult]], bool | None]:
    """What the calls of groups of tests came to, nothing compared; and whether the program is Python, if that was seen.

    All calls of a group share the limits, so that a program that never ends takes the time of one: after a limit, the
    calls that were not made count as limited too.
    """
    limits = Limits(wall=WAIT * seconds + 2, cpu=seconds, memory_mb=MEMORY_MB, output_kb=OUTPUT_KB)
    items = [[{"kind": "value" if "call" in t else "test", "source": t[kind_of(t)]} for t in tests] for tests in groups]
    items[0].append({"kind": "builds", "source": program})
    found = sandbox.evaluate_groups(module(row, program), items, limits, _NAME)
    is_python = found[0].pop().value
    return found, None if is_python is None else is_python == ["b", 1]


def builds(sandbox: Sandbox, program: str) -> bool:
    """Whether a program is Python at all."""
    probe = sandbox.run_sync(f"compile({program!r}, 'program.py', 'exec')\n")
    return probe.status == "ok"


def _judge(test: dict, found: CallResult, gold: CallResult | None) -> dict[str, str]:
    if gold is not None and gold.status != "ok":
        return _verdict("void", note=f"the solution: {gold.error}")
    if gold is not None and not same_trees(gold.value, gold.value):  # an object of some class, or not a number
        return _verdict("void", note="the solution's value equals nothing")
    if found.status != "ok":
        return _failed(found)
    if "check" in test:
        return _verdict("passed")
    close, plain = tuple(test["close"]) if "close" in test else None, test.get("plain", False)
    if gold is not None:
        right = same_trees(gold.value, found.value, close, plain)
    else:
        expected = [literal(text) for text in (test["expect"], *test.get("or", ()))]
        right = any(same(one, found.value, close, plain) for one in expected)
    return _verdict("passed" if right else "wrong", got=shown(found.value))


def _failed(found: CallResult) -> dict[str, str]:
    if found.status == "error" and "exited with -24 " in found.error:  # SIGXCPU
        return _verdict("limit", note="cpu")
    return _verdict(found.status, note=found.error[:300])


# ---------------------------------------------------------------------------------------------------- standard input


def _grade_stdin(sandbox: Sandbox, program: str, tests: Sequence[dict], seconds: float) -> Report:
    with ThreadPoolExecutor(min(sandbox.workers, len(tests))) as side_by_side:
        results = list(side_by_side.map(
            lambda test: run_stdin(sandbox, program, test["stdin"], test["stdout"], seconds), tests
        ))  # fmt: skip
    built = any(result.status != "error" for result in results) or builds(sandbox, program)
    return _report(built, [_judge_output(test["stdout"], result) for test, result in zip(tests, results, strict=True)])


def run_stdin(sandbox: Sandbox, program: str, given: str, expected: str, seconds: float = SECONDS) -> SandboxResult:
    """One run on one input, with room for an output twice as long as the expected one."""
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
