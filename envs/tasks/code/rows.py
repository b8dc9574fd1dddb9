"""Rows: one problem of any of the data sets, as a JSON value.

id           text, unique in its source
source       name of the data set
part         "train", "validation" or "test", as published; what is in another part is not used
question     what is asked; shows no test
entry_point  name of the function to write; None for a program that reads standard input
starter      its first lines, such as `def f(a, b):` or a class; "" where there is none
prelude      code that comes before the program: imports and helpers that the question promises
setup        code between the program and its tests
tests        hidden, at least one; each is of one kind:
               {"call": "f(1, 2)", "expect": "3"}     an expression and the literal it must equal; without
                                                      "expect", what the solution returns
               {"stdin": "1 2\n", "stdout": "3\n"}    what is read and what must be printed
               {"check": "assert …"}                  code that runs behind the program, in its process, where
                                                      the program could deceive it: not used for training
             A call may also have "close": [relative, absolute], a tolerance of floats, "plain": true, so that lists
             and tuples are alike, and "or": [more literals that are right].
solution     a program that passes, or None
predict      "" for problems to program; "output" or "input" where one of them is asked for of the solution, a given
             program (CRUXEval)
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
    """A row, checked; a ValueError says which field of which problem is wrong."""
    row = dict(
        id=str(id), source=source, part=part, question=question, entry_point=entry_point, starter=starter,
        prelude=prelude, setup=setup, tests=[dict(test) for test in tests], solution=solution, predict=predict,
    )  # fmt: skip
    check_row(row)
    return row


def check_row(row: Row) -> None:
    """Refuses a row with a field that is missing or wrong."""
    where = f"{row.get('source') or 'row'} {row.get('id') or '?'}"
    for field in ("id", "source", "part", "question"):
        if not isinstance(row.get(field), str) or not row[field].strip():
            raise ValueError(f"{where}: {field} is {row.get(field)!r:.80}; expected a text")
    if row["entry_point"] is not None and not NAME.fullmatch(str(row["entry_point"])):
        raise ValueError(f"{where}: entry_point is {row['entry_point']!r:.80}; expected the name of a function or None")
    for field in ("solution", "starter", "prelude", "setup"):
        if not isinstance(row[field], str) and not (field == "solution" and row[field] is None):
            raise ValueError(f"{where}: {field} is {row[field]!r:.80}; expected a text")
    if not row["tests"]:
        raise ValueError(f"{where}: there are no tests")
    for number, test in enumerate(row["tests"]):
        if problem := _problem(test, row):
            raise ValueError(f"{where}: test {number}: {problem}")


def _problem(test: dict, row: Row) -> str | None:
    kinds = [kind for kind in KINDS if isinstance(test.get(kind), str)]
    if len(kinds) != 1:
        return f"expected one of the texts {', '.join(KINDS)}, found {', '.join(test) or 'nothing'}"
    if kinds == ["stdin"]:
        if row["entry_point"] is not None:
            return f"it has an input, and the row asks for the function {row['entry_point']}"
        return None if isinstance(test.get("stdout"), str) else f"stdout is {test.get('stdout')!r:.80}; expected a text"
    if kinds == ["call"]:
        if "expect" not in test:
            return None if row["solution"] else "it has no expected value, and the row no solution"
        for text in (test["expect"], *test.get("or", ())):
            try:
                literal(text)
            except ValueError as error:
                return f"expect: {error}"
    return None


def kind_of(test: dict) -> str:
    """One of KINDS."""
    return next(kind for kind in KINDS if kind in test)


def is_trainable(row: Row) -> bool:
    """Whether all tests are compared outside the program's process."""
    return all(kind_of(test) != "check" for test in row["tests"])


def some_tests(row: Row, n: int) -> list[dict]:
    """At most `n` of a row's tests, evenly spread over them; 0: all."""
    tests = row["tests"]
    if not n or len(tests) <= n:
        return tests
    return [tests[i * len(tests) // n] for i in range(n)]


def split(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by part. A question of the test part is in no other part, one of validation not in train.

    Some published files ask the same question under several ids. What is left out is not counted as data.
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
