r"""Rows: programming problems of all datasets as JSON values.

Fields:
    id: String, unique within its source.
    source: Name of the dataset.
    part: "train", "validation" or "test", as published. Rows with another value are not used.
    question: Problem statement, without tests.
    entry_point: Name of the function to write; None for a program that reads standard input.
    starter: First lines of the function or class, such as `def f(a, b):`, or "".
    prelude: Code before the program: imports and helpers that the question promises.
    setup: Code between the program and its tests.
    tests: At least one hidden test, each of one of these kinds:
        {"call": "f(1, 2)", "expect": "3"}: an expression and the literal it must equal. Without "expect", it must equal
        the value that the solution returns.
        {"stdin": "1 2\n", "stdout": "3\n"}: an input and the output to print.
        {"check": "assert …"}: code that runs after the program in the same process. The program could tamper with it,
        so such problems are not used for training.
        A call may also have "close": [relative, absolute], a tolerance for floats; "plain": true, which makes lists and
        tuples equal; and "or": [other correct literals].
    solution: A correct program, or None.
    predict: "" for programming problems. "output" or "input" if the question asks for an output or an input of the
        solution, which is shown (CRUXEval).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from envs.tasks.code.values import literal

Row = dict[str, Any]
KINDS = ("call", "stdin", "check")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}(\.[A-Za-z_][A-Za-z0-9_]{0,200})?")


def make_row(
    source: str,
    id: object,
    question: str,
    tests: Sequence[dict],
    *,
    part: str = "test",
    entry_point: str | None = None,
    starter: str = "",
    prelude: str = "",
    setup: str = "",
    solution: str | None = None,
    predict: str = "",
) -> Row:
    """Return a row after checking its fields.

    Raises:
        ValueError: A field is invalid; the message names the problem and the field.
    """
    row = dict(
        id=str(id), source=source, part=part, question=question, entry_point=entry_point, starter=starter,
        prelude=prelude, setup=setup, tests=[dict(test) for test in tests], solution=solution, predict=predict,
    )  # fmt: skip
    check_row(row)
    return row


def check_row(row: Row) -> None:
    """Raise a ValueError if a field of a row is missing or invalid."""
    where = f"{row.get('source') or 'row'} {row.get('id') or '?'}"
    for field in ("id", "source", "part", "question"):
        if not isinstance(row.get(field), str) or not row[field].strip():
            raise ValueError(f"{where}: {field} is {row.get(field)!r:.80}, but must be a non-empty string")
    if row["entry_point"] is not None and not NAME.fullmatch(str(row["entry_point"])):
        raise ValueError(
            f"{where}: entry_point is {row['entry_point']!r:.80}, but must be the name of a function or None"
        )
    for field in ("solution", "starter", "prelude", "setup"):
        if not isinstance(row[field], str) and not (field == "solution" and row[field] is None):
            raise ValueError(f"{where}: {field} is {row[field]!r:.80}, but must be a string")
    if not row["tests"]:
        raise ValueError(f"{where}: tests is empty, but must contain at least one test")
    for number, test in enumerate(row["tests"]):
        if problem := _problem(test, row):
            raise ValueError(f"{where}: test {number}: {problem}")


def _problem(test: dict, row: Row) -> str | None:
    kinds = [kind for kind in KINDS if isinstance(test.get(kind), str)]
    if len(kinds) != 1:
        return f"its keys are {', '.join(test) or '(none)'}, but must include exactly one of: {', '.join(KINDS)}"
    if kinds == ["stdin"]:
        if row["entry_point"] is not None:
            return f"it has stdin, but the row asks for the function {row['entry_point']}"
        return (
            None
            if isinstance(test.get("stdout"), str)
            else f"stdout is {test.get('stdout')!r:.80}, but must be a string"
        )
    if kinds == ["call"]:
        if "expect" not in test:
            return None if row["solution"] else "it has no expected value, and the row has no solution"
        for text in (test["expect"], *test.get("or", ())):
            try:
                literal(text)
            except ValueError as error:
                return f"expect: {error}"
    return None


def kind_of(test: dict) -> str:
    """Return the kind of a test, one of `KINDS`."""
    return next(kind for kind in KINDS if kind in test)


def is_trainable(row: Row) -> bool:
    """Check whether all tests are compared outside the program's process."""
    return all(kind_of(test) != "check" for test in row["tests"])


def some_tests(row: Row, n: int) -> list[dict]:
    """Return at most `n` tests of a row, evenly spaced; 0 means all."""
    tests = row["tests"]
    if not n or len(tests) <= n:
        return tests
    return [tests[i * len(tests) // n] for i in range(n)]


def split(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by split, without repeated questions across splits.

    Some published files contain the same question under several ids. A test question is removed from the other splits,
    and a validation question from train.
    """
    parts: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for row in rows:
        if row["part"] in parts:
            parts[row["part"]].append(row)
    seen: set[str] = set()
    for part in ("test", "validation", "train"):
        kept = [row for row in parts[part] if _key(row) not in seen and (part != "train" or is_trainable(row))]
        seen |= {_key(row) for row in parts[part]}
        parts[part] = kept
    return parts


def _key(row: Row) -> str:
    return " ".join(row["question"].lower().split())
