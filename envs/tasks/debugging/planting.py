"""Verification of bugs: a bug must break a test that the original program passes.

The functions run in processes of `ask.verify`; arguments and results are JSON values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.tasks.code.grading import grade
from envs.tasks.code.rows import Row
from envs.tasks.sandbox import same_sandbox

WORKING, BROKEN = "working", "broken"


def first_bug(
    sandbox: Mapping, row: Row, original: str, programs: Sequence[str], tests: Sequence[dict], seconds: float
) -> dict:
    """Find the first program that can be built and fails a test.

    Args:
        sandbox: Settings of the sandbox.
        row: The problem.
        original: The working program.
        programs: Programs with a bug, in the order in which they are tried.
        tests: Tests of the problem.
        seconds: CPU time limit of a program.

    Returns:
        {"original", "number", "tried"}: WORKING or BROKEN, the index of the program or None, and the number of programs
        that were tried.
    """
    box = same_sandbox(sandbox)
    if not grade(box, row, original, tests, seconds)["passed"]:
        return {"original": BROKEN, "number": None, "tried": 0}
    for number, program in enumerate(programs):
        report = grade(box, row, program, tests, seconds)
        if report["built"] and not report["passed"]:
            return {"original": WORKING, "number": number, "tried": number + 1}
    return {"original": WORKING, "number": None, "tried": len(programs)}
