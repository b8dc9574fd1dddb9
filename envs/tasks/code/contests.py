"""Readers of contest problems: LiveCodeBench, APPS and CodeContests.

Problems ask either for a function or for a program that reads standard input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from envs.tasks.code.private_tests import private_tests
from envs.tasks.code.readers import field, tidy
from envs.tasks.code.rows import Row, make_row
from envs.tasks.code.values import parse

PRELUDE = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush
from itertools import accumulate, combinations, permutations, product
from math import ceil, comb, floor, gcd, inf, sqrt
from typing import Any, Deque, Dict, List, Optional, Set, Tuple, Union
"""
"""Imports that contest sites make available to a solution."""


def livecodebench(records: Iterable[dict]) -> Iterator[Row]:
    """Yield the rows of LiveCodeBench, all of them in the test split.

    The private tests are included if the file has them.
    """
    for record in records:
        where = f"livecodebench {field(record, 'question_id', 'livecodebench')}"
        cases = _json(field(record, "public_test_cases", where), where, list)
        if record.get("private_test_cases"):
            cases = cases + private_tests(field(record, "private_test_cases", where), where)
        starter = tidy(record.get("starter_code") or "")
        metadata = record.get("metadata") or "{}"
        name = (metadata if isinstance(metadata, dict) else _json(metadata, where, dict)).get("func_name")
        title, content = (field(record, name, where) for name in ("question_title", "question_content"))
        entry = f"Solution.{name}" if starter and name else None
        tests = [_livecodebench_test(case, name if entry else None, where) for case in cases]
        yield make_row(
            "livecodebench", record["question_id"], f"{title}\n\n{content}".strip(), tests,
            entry_point=entry, starter=starter.rstrip(), prelude=PRELUDE if entry else "",
        )  # fmt: skip


def _livecodebench_test(case: dict, name: str | None, where: str) -> dict:
    given, output = (field(case, which, where) for which in ("input", "output"))
    if name is None:
        return {"stdin": given, "stdout": output}
    arguments = [repr(_json(line, where)) for line in given.split("\n") if line.strip()]
    return {"call": f"Solution().{name}({', '.join(arguments)})", "expect": repr(_json(output, where)), "plain": True}


def apps(records: Iterable[dict], part: str = "test") -> Iterator[Row]:
    """Yield the rows of APPS, skipping problems without tests."""
    for record in records:
        id = record.get("problem_id", record.get("id"))
        where = f"apps {id}"
        text = field(record, "input_output", where)
        if not text.strip():
            continue
        cases = _json(text, where, dict)
        inputs, outputs = (field(cases, which, where, list) for which in ("inputs", "outputs"))
        if len(inputs) != len(outputs):
            raise ValueError(f"{where}: input_output has {len(inputs)} inputs but {len(outputs)} outputs")
        if not inputs:
            continue
        starter, name = tidy(record.get("starter_code") or "").rstrip(), cases.get("fn_name")
        method = bool(name) and "class Solution" in starter
        pairs = zip(inputs, outputs, strict=True)
        tests = [_apps_call(name, method, *pair, where) if name else _apps_stdin(*pair) for pair in pairs]
        solutions = _json(record.get("solutions") or "[]", where, list)
        yield make_row(
            "apps", id, field(record, "question", where), tests, part=part,
            entry_point=f"Solution.{name}" if method else name, starter=starter, prelude=PRELUDE if name else "",
            solution=tidy(solutions[0]) if solutions else None,
        )  # fmt: skip


def _apps_stdin(given: Any, output: Any) -> dict:
    """Convert an input and an output, which may be lists of lines, into a test."""
    given, output = ("\n".join(map(str, x)) if isinstance(x, list) else str(x) for x in (given, output))
    return {"stdin": given, "stdout": output}


def _apps_call(name: str, method: bool, given: Any, output: Any, where: str) -> dict:
    """Convert arguments and a value into a test.

    The published file often wraps the value in a list of one element, so the element alone is accepted as well.
    """
    if not isinstance(given, list):
        raise ValueError(f"{where}: inputs contains {given!r:.80}, but must contain lists of arguments")
    call = f"{'Solution().' if method else ''}{name}({', '.join(map(repr, given))})"
    wrapped = isinstance(output, list) and len(output) == 1
    return {"call": call, "expect": repr(output), "plain": True} | ({"or": [repr(output[0])]} if wrapped else {})


CODECONTESTS_TESTS = ("public_tests", "private_tests", "generated_tests")
PYTHON3 = 3


def codecontests(records: Iterable[dict], part: str = "test") -> Iterator[Row]:
    """Yield the rows of CodeContests with all tests of the file.

    The solution is the first correct one marked as Python 3 that parses. If a problem has several correct outputs, the
    file contains only one of them, and programs are graded by it.
    """
    for record in records:
        name = field(record, "name", "codecontests")
        where = f"codecontests {name}"
        tests = []
        for which in CODECONTESTS_TESTS:
            group = record.get(which) or {}
            inputs, outputs = group.get("input") or [], group.get("output") or []
            if len(inputs) != len(outputs):
                raise ValueError(f"{where}: {which} has {len(inputs)} inputs but {len(outputs)} outputs")
            tests += [{"stdin": i, "stdout": o} for i, o in zip(inputs, outputs, strict=True)]
        if not tests:
            raise ValueError(
                f"{where}: there are no tests; the file must have at least one of: {', '.join(CODECONTESTS_TESTS)}"
            )
        yield make_row(
            "codecontests", name, field(record, "description", where), tests, part=part, solution=_python3(record)
        )


def _python3(record: dict) -> str | None:
    """Return the first solution marked as Python 3 that parses, or None.

    Some solutions in Python 2 are marked as Python 3 in the published file.
    """
    solutions = record.get("solutions") or {}
    for language, code in zip(solutions.get("language") or [], solutions.get("solution") or [], strict=True):
        if language == PYTHON3:
            try:
                parse(code)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            return tidy(code)
    return None


def _json(text: str, where: str, kind: type | None = None) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}: {text!r:.80}") from None
    if kind is not None and not isinstance(value, kind):
        raise ValueError(f"{where}: {text!r:.80} is not a JSON {kind.__name__}")
    return value
