"""Prompts of the math task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BOXED = r"Reason step by step, and put your final answer within \boxed{}."
FINAL = "Reason step by step, and end with a line '#### ANSWER', where ANSWER is the final answer."
PROGRAM = (
    "Write one Python program that computes the answer and prints it, and nothing else, in its last line. Put it in "
    "one block that begins with ```python and ends with ```. Import nothing but the standard library."
)
SOLUTION = (
    "Write one Python program that solves the problem: a function `solution()` without arguments that returns the "
    "answer as a number. Put it in one block that begins with ```python and ends with ```. Import nothing but the "
    "standard library."
)
SHOWN = 1000
"""Maximum number of characters of an output or a solution that are quoted."""

ANSWER = {"boxed": BOXED, "final": FINAL, "program": SOLUTION}


def reasoner_system(form: str, with_tool_agent: bool) -> str:
    """Return the reasoner's system prompt."""
    partner = " A partner checks your answer with a program." if with_tool_agent else ""
    return f"You solve mathematical problems.{partner} {ANSWER[form]}"


def tool_system() -> str:
    """Return the tool agent's system prompt."""
    return f"You check solutions of mathematical problems with programs. {PROGRAM}"


def first(question: str) -> str:
    """Return the reasoner's first prompt."""
    return question


def program(question: str, solution: str, turn: int, same_agent: bool) -> str:
    """Return the request for a program that checks the reasoner's completion of this turn."""
    if same_agent:
        return f"Now check this with a program. {PROGRAM}"
    intro = f"The problem:\n{question}\n\n" if turn == 0 else ""
    return f"{intro}The reasoner wrote{'' if turn == 0 else ' in this turn'}:\n{quote(solution)}\n\n{PROGRAM}"


def again(question: str, program_text: str | None, result: Mapping[str, Any] | None, form: str) -> str:
    """Return the reasoner's prompt for a later turn, with the program and its output.

    Earlier solutions are already in the conversation.
    """
    if result is None:
        shown = "No program was written." if program_text is None else ""
    else:
        assert program_text is not None  # only programs have results
        shown = f"The program\n{quote(program_text, 'python')}\n{outcome(result)}"
    return (
        f"{shown}\n\nThe problem was: {question}\nCompare this with your earlier solutions. Keep the right one, "
        f"or correct it. {ANSWER[form]}"
    ).strip()


def rerun(question: str, result: Mapping[str, Any] | None) -> str:
    """Return the prompt for a later turn if programs are answers.

    It shows the output of the last program.
    """
    shown = "There was no program in your answer." if result is None else f"Your program {outcome(result)}"
    return f"{shown}\n\nThe problem was: {question}\nKeep your program if it is right, or correct it. {SOLUTION}"


def alone(question: str, form: str) -> str:
    """Return the prompt for a later turn without a tool."""
    return (
        f"The problem was: {question}\nCheck your solutions so far. Keep the one that is right, or correct it. "
        f"{ANSWER[form]}"
    )


def outcome(result: Mapping[str, Any]) -> str:
    """Describe the result of a program in a sentence."""
    if result["status"] == "ok":
        return f"printed:\n{quote(result['stdout'])}" if result["stdout"].strip() else "printed nothing."
    if result["status"] == "limit":
        return f"was ended at its {result['limit']} limit."
    if result["status"] == "error":
        return f"failed:\n{quote(result['stderr'][-SHOWN:])}"
    return "was refused by the sandbox."


def quote(text: str, language: str = "") -> str:
    """Quote a text in a fenced block.

    Fences in the text are replaced, and a long text is cut in the middle.
    """
    text = text.strip().replace("```", "'''")
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}\n[…]\n{text[-SHOWN // 2 :]}"
    return f"```{language}\n{text}\n```"
