"""Readers of contest problems: LiveCodeBench, APPS and CodeContests; functions, and programs with standard input."""

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
"""What the sites for functions import before a solution."""


def livecodebench(records: Iterable[dict]) -> Iterator[Row]:
    """LiveCodeBench, all of it evaluation: public tests, and the private ones where the file has them."""
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
    """APPS; problems without tests, of which the published file has some, are left out."""
    for record in records:
        id = record.get("problem_id", record.get("id"))
        where = f"apps {id}"
        text = field(record, "input_output", where)
        if not text.strip():
            continue
        cases = _json(text, where, dict)
        inputs, outputs = (field(cases, which, where, list) for which in ("inputs", "outputs"))
        if len(inputs) != len(outputs):
            raise ValueError(f"{where}: {len(inputs)} inputs and {len(outputs)} outputs")
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
    """Some inputs are lists of lines."""
    given, output = ("\n".join(map(str, x)) if isinstance(x, list) else str(x) for x in (given, output))
    return {"stdin": given, "stdout": output}


def _apps_call(name: str, method: bool, given: Any, output: Any, where: str) -> dict:
    """Values are often wrapped in a list of one, so that what is in it counts as well."""
    if not isinstance(given, list):
        raise ValueError(f"{where}: inputs has {given!r:.80}; expected a list of arguments")
    call = f"{'Solution().' if method else ''}{name}({', '.join(map(repr, given))})"
    wrapped = isinstance(output, list) and len(output) == 1
    return {"call": call, "expect": repr(output), "plain": True} | ({"or": [repr(output[0])]} if wrapped else {})


CODECONTESTS_TESTS = ("public_tests", "private_tests", "generated_tests")
PYTHON3 = 3


def codecontests(records: Iterable[dict], part: str = "test") -> Iterator[Row]:
    """CodeContests: every test of the file; the solution is the first right one in Python 3 that parses.

    Problems with several right outputs have only one of them in the file and are graded by it.
    """
    for record in records:
        name = field(record, "name", "codecontests")
        where = f"codecontests {name}"
        tests = []
        for which in CODECONTESTS_TESTS:
            found = record.get(which) or {}
            inputs, outputs = found.get("input") or [], found.get("output") or []
            if len(inputs) != len(outputs):
                raise ValueError(f"{where}: {which} has {len(inputs)} inputs and {len(outputs)} outputs")
            tests += [{"stdin": i, "stdout": o} for i, o in zip(inputs, outputs, strict=True)]
        if not tests:
            raise ValueError(f"{where}: it has none of {', '.join(CODECONTESTS_TESTS)}; expected the file with tests")
        yield make_row(
            "codecontests", name, field(record, "description", where), tests, part=part, solution=_python3(record)
        )


def _python3(record: dict) -> str | None:
    """Python 2 has the number 1 in the published file; some of its programs are marked as Python 3."""
    found = record.get("solutions") or {}
    for language, code in zip(found.get("language") or [], found.get("solution") or [], strict=True):
        if language == PYTHON3:
            try:
                parse(code)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            return tidy(code)
    return None


def _json(text: str, where: str, kind: type | None = None) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}: {text!r:.80}") from None
    if kind is not None and not isinstance(found, kind):
        raise ValueError(f"{where}: found {text!r:.80}; expected a JSON {kind.__name__}")
    return found
