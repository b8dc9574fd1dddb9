"""Prompts of the proposer; the solver's prompts are those of CRUXEval (`envs.tasks.code.prompts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.tasks.propose.problems import block

SYSTEM = (
    "You write programs for an exam in reading Python. A good problem is solved by some students and missed by others."
)
RULES = (
    "Write a problem that differs from these: a function f of your own, and arguments for one call. A student must "
    "find the value that f returns. The function must be deterministic, use only Python's standard library without "
    "input, files, time or randomness, end quickly, and return a short value. Think briefly about what makes it hard, "
    "then end with two blocks, the program and the arguments:\n"
    "```python\ndef f(…):\n    …\n```\n```input\n…\n```"
)


def propose(references: Sequence[Mapping[str, str]]) -> str:
    """Return the proposer's prompt with problems that exist already."""
    shown = "\n\n".join(
        f"Problem {number}:\n{block(one['program'], one['call'])}" for number, one in enumerate(references, 1)
    )
    return f"{shown}\n\n{RULES}" if shown else RULES.replace(" that differs from these", "")
