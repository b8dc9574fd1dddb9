"""Verdicts on lists of actions, written in a completion or printed by its program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from envs.tasks.math import tool
from envs.tasks.planning import rules
from envs.tasks.planning.actions import PRINTED, read_actions
from envs.tasks.planning.levels import Level
from envs.tasks.sandbox import Sandbox
from envs.tasks.task import Ask

NAME = "program.py"
"""Name of a program in its tracebacks."""
PROGRAM_FAILURES = ("no_program", "not_run", "no_output")
UNPARSED = (*PROGRAM_FAILURES, "no_list", "unknown_action")
"""Reasons for which a completion has no readable list."""
KINDS = (*UNPARSED, "illegal_action", "unsolved", "solved")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The verdict on a completion.

    Attributes:
        kind: One of KINDS.
        reason: Description of the result.
        actions: The list of actions, or None.
        progress: Achieved share of the solution, 0 to 1.
        program: Source of the program, or None.
        result: Result of the program, or None.
    """

    kind: str
    reason: str
    actions: list[Any] | None = None
    progress: float = 0.0
    program: str | None = None
    result: dict[str, Any] | None = None

    @property
    def solved(self) -> bool:
        """Whether the list solves the level."""
        return self.kind == "solved"


def checked(level: Level, text: str, marker: str) -> Attempt:
    """Return the verdict on the list of actions after the last marker of a text."""
    read = read_actions(text, marker, level)
    if read.actions is None:
        return Attempt(read.kind, read.reason)
    played = rules.check(level, read.actions)
    return Attempt(played.kind, played.reason, read.actions, played.progress)


async def attempt_by_program(
    ask: Ask, level: Level, text: str, sandbox: Sandbox, wall: float, given: Mapping[str, Any], name: str
) -> Attempt:
    """Run the program of a completion and check the list that it prints.

    Args:
        ask: The episode.
        level: The level.
        text: The completion.
        sandbox: Where to run the program.
        wall: Time limit in seconds.
        given: Variables of the program (`with_variables`).
        name: Name of the call, which must differ from those of concurrent calls.
    """
    program = tool.program_of(text)
    if program is None:
        return Attempt("no_program", "there is no ```python block")
    source = with_variables(program, given)
    result = await tool.run_in_episode(ask, sandbox.settings, source, wall, name)
    result = {**result, "stderr": without_wrapper(result["stderr"])}
    if result["status"] != "ok":
        attempt = Attempt("not_run", f"the program ended with {result['limit'] or result['status']}")
    elif not result["stdout"].strip():
        attempt = Attempt("no_output", "the program printed nothing")
    else:
        attempt = checked(level, result["stdout"], PRINTED)
    return dataclasses.replace(attempt, program=program, result=result)


def with_variables(program: str, given: Mapping[str, Any]) -> str:
    """Return a program that runs `program` with variables.

    They are global, and `program` can also import them: `from level import NAME`.
    """
    return (
        f"import sys, types\ngiven = {dict(given)!r}\nsys.modules['level'] = types.SimpleNamespace(**given)\n"
        f"exec(compile({program!r}, {NAME!r}, 'exec'), {{'__name__': '__main__', **given}})"
    )


def without_wrapper(trace: str) -> str:
    """Remove the frame of `with_variables` from a traceback, which quotes the whole program."""
    _, frame, rest = trace.partition(f'  File "{NAME}"')
    return f"Traceback (most recent call last):\n{frame}{rest}" if frame else trace
