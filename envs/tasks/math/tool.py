"""The tool of the math task: Python programs that print an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from envs.tasks.math import symbolic
from envs.tasks.math.normalize import clean
from envs.tasks.math.reading import Scalar, Unreadable, read
from envs.tasks.math.verifier import verify
from envs.tasks.replies import CallTimeout, Verdict
from envs.tasks.sandbox import Limits, same_sandbox
from envs.tasks.task import Ask

MAX_PROGRAM = 20_000
"""Maximum length of a program in characters; a longer one is not run."""
MAX_LINE = 300
START_LIMIT = 30.0
"""Extra seconds beyond a program's limit, for starting a sandbox."""
ROUNDING = 1e-9
"""Relative tolerance for a printed decimal of ten digits or more, because programs compute with floats."""

_BLOCK = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_DECIMAL = re.compile(r"([-+]?\d+\.\d+)(?: \\times 10\^\{([-+]?\d{1,2})\})?")


def program_of(text: str) -> str | None:
    """Return the last Python block of a text; None if missing, empty or too long."""
    blocks = _BLOCK.findall(text)
    program = blocks[-1].strip() if blocks else ""
    return program if 0 < len(program) <= MAX_PROGRAM else None


def run_program(sandbox: Mapping, program: str, wall: float) -> dict[str, Any]:
    """Run a program in a worker process and return its result as a JSON value.

    Args:
        sandbox: Settings of the sandbox, see `Sandbox.settings`.
        program: Source of the program.
        wall: Limit in seconds of wall-clock and CPU time.
    """
    return same_sandbox(sandbox).run_sync(program, limits=Limits(wall=wall, cpu=wall)).to_json()


async def run_in_episode(ask: Ask, sandbox: Mapping, program: str, wall: float, name: str) -> dict[str, Any]:
    """Run a program as a call of an episode.

    A program that does not end has the status "limit".

    Args:
        ask: The episode.
        sandbox: Settings of the sandbox, see `Sandbox.settings`.
        program: Source of the program.
        wall: Limit in seconds of wall-clock and CPU time.
        name: Name of the call, which must differ from those of concurrent calls.
    """
    try:
        return await ask.verify(run_program, sandbox, program, wall, limit=wall + START_LIMIT, name=name)
    except CallTimeout:
        return {"status": "limit", "stdout": "", "stderr": "", "limit": "wall"}


def printed_answer(stdout: str) -> str | None:
    """Return the last printed line as an answer in LaTeX.

    Returns:
        The answer, or None if nothing was printed or the line is too long.
    """
    lines = [line.strip() for line in stdout.splitlines() if line.strip()]
    if not lines or len(lines[-1]) > MAX_LINE:
        return None
    line = lines[-1]
    if (named := re.fullmatch(r"[^=:]{0,60}[=:]\s*([^=:]+)", line)) is not None:
        line = named[1]  # answer = 5, The answer is: 5
    line = re.sub(r"\boo\b", r"\\infty", line.replace("**", "^"))
    line = re.sub(r"(?<=\d)e([-+]?\d+)\b", r" \\times 10^{\1}", line)
    if re.fullmatch(r"\[.*\]|\{.*\}", line):
        line = rf"\{{{line[1:-1]}\}}" if line[1:-1].strip() else r"\emptyset"
    return line


def verify_output(gold: str, stdout: str) -> Verdict:
    """Return the verdict on a program's output; long decimals may be rounded."""
    answer = printed_answer(stdout)
    if answer is None:
        return Verdict(right=False, answer=None, reason="nothing printed" if not stdout.strip() else "a line too long")
    verdict = verify(gold, rf"\boxed{{{answer}}}")
    decimal = _DECIMAL.fullmatch(answer)
    if not verdict["right"] and decimal is not None and sum(map(str.isdigit, decimal[1])) >= 10:
        try:
            expected = read(clean(gold))
            value = float(decimal[1]) * 10.0 ** int(decimal[2] or 0)
            close = isinstance(expected, Scalar) and symbolic.near(expected.latex, value, ROUNDING)
        except Unreadable:
            close = False
        if close:
            return Verdict(right=True, answer=answer, reason="equal up to rounding")
    return verdict
