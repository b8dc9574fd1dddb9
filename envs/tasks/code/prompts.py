"""Prompts of coder and tester, which never contain a hidden test."""

from __future__ import annotations

from collections.abc import Sequence

from envs.tasks.code.rows import Row

CODER = (
    "You are an expert Python programmer. Think briefly, then answer with the whole program in one block that begins "
    "with ```python and ends with ```."
)
TESTER = (
    "You write test cases for a program that you cannot see. Work out each expected result from the problem alone, "
    "step by step, and write only cases whose result is certain. Cover ordinary and extreme inputs."
)
SINGLE = (
    "You are an expert Python programmer. Think briefly, then answer with the whole program in one block that begins "
    "with ```python and ends with ```, and behind it with test cases for it. The program is run on your test cases, "
    "and you see which of them fail."
)
PREDICT = "You read Python programs and work out what they do, step by step."

LONGEST = 300
FAILURES = 3
"""Maximum number of failing test cases that are shown; each part is cut to `LONGEST` characters."""


def problem(row: Row) -> str:
    """Return the question with the required form of the program."""
    if row["entry_point"] is None:
        return f"{row['question']}\n\nThe program reads standard input and writes standard output."
    name = row["entry_point"]
    what = f"the method {name.replace('.', '().')}" if "." in name else f"the function {name}"
    if row["starter"] and row["starter"] not in row["question"]:
        return f"{row['question']}\n\nWrite {what}:\n```\n{row['starter']}\n```"
    return f"{row['question']}\n\nWrite {what}."


def cases_form(row: Row, most: int) -> str:
    """Return the instructions for the format of test cases."""
    if row["entry_point"] is None:
        return (
            f"Write up to {most} test cases, each as two blocks, the input and the output:\n"
            "```input\n1 2\n```\n```output\n3\n```"
        )
    name, _, method = row["entry_point"].partition(".")
    call = f"{name}().{method}" if method else name
    return (
        f"Write up to {most} test cases in one block, one a line, with literal values only:\n"
        f"```tests\nassert {call}(…) == …\n```"
    )


def predict(row: Row) -> str:
    """Return the prompt of a CRUXEval problem."""
    missing = "value" if row["predict"] == "output" else "arguments"
    return (
        f"{row['question']}\n\nFind the {missing} in place of ?? with which the assertion holds. End with the complete "
        "assertion in one block:\n```tests\nassert f(…) == …\n```"
    )


def after_cases(reports: Sequence[tuple[dict, dict]] | None, whose: str) -> str:
    """Describe the results of a program on test cases.

    Args:
        reports: One (case, verdict) pair per case; None if there is no program.
        whose: Possessive for the test cases, "your" or "the".
    """
    if reports is None:
        return "There was no program in a ```python block."
    if not reports:
        return "There were no test cases that could be read."
    failed = [(case, verdict) for case, verdict in reports if verdict["outcome"] != "passed"]
    if not failed:
        return f"The program passes all of {whose} test cases."
    shown = "\n".join(_failure(case, verdict) for case, verdict in failed[:FAILURES])
    more = f"\nand {len(failed) - FAILURES} more" if len(failed) > FAILURES else ""
    return f"The program fails {len(failed)} of {whose} {len(reports)} test cases:\n{shown}{more}"


def _failure(case: dict, verdict: dict) -> str:
    if "stdin" in case:
        wanted = f"input:\n{_cut(case['stdin'])}\nexpected output:\n{_cut(case['stdout'])}\n"
    else:
        wanted = f"{_cut(case['call'])}, expected {_cut(case['expect'])}, "
    if verdict["outcome"] == "wrong":
        return f"- {wanted}found{':' if 'stdin' in case else ''} {_cut(verdict['got'])}"
    event = {"error": "it raised", "limit": "it ran into a limit:"}.get(verdict["outcome"], "it was not run:")
    return f"- {wanted}{event} {_cut(verdict['note'])}".rstrip()


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def coder_again(feedback: str) -> str:
    """Return the coder's prompt for a later turn."""
    return (
        f"{feedback}\n\nThe test cases are not certain to be right. Check the program, and write the whole of it again."
    )


def tester_again(feedback: str) -> str:
    """Return the tester's prompt for a later turn."""
    return f"{feedback}\n\nWork out the cases again, correct those that are wrong, and write all test cases again."


def single_again(feedback: str) -> str:
    """Return the single agent's prompt for a later turn."""
    return f"{feedback}\n\nCorrect the program or the test cases, and write all of both again."


def examples(tests: Sequence[dict]) -> str:
    """Format gold tests that are shown with the problem and therefore not used for grading."""
    lines = [
        f"Input:\n{test['stdin'].rstrip()}\nOutput:\n{test['stdout'].rstrip()}" if "stdin" in test
        else f"assert {test['call']} == {test['expect']}" if "expect" in test
        else test.get("check") or test["call"]
        for test in tests
    ]  # fmt: skip
    return "\n\nFor example:\n```\n" + "\n".join(lines) + "\n```" if lines else ""
