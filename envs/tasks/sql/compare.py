"""Comparison of the results of two queries.

Rows are compared with their duplicates. Their order counts if the gold query orders its result. Columns may have
another order and other names, as in the official script of Spider's test suites. Floats are equal if they agree in nine
significant digits, because a sum depends on the order of its terms.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

MAX_PERMUTATIONS = 5_040
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|\w+|[^\s\w]", re.DOTALL)


def is_ordered(query: str) -> bool:
    """Return whether the outermost query has an ORDER BY clause."""
    depth, before = 0, ""
    for token in _TOKEN.findall(query):
        depth += (token == "(") - (token == ")")
        if depth == 0 and (before, token.lower()) == ("order", "by"):
            return True
        before = token.lower()
    return False


def equal(gold: Sequence[tuple], rows: Sequence[tuple], fixed: Iterable[int] = ()) -> bool:
    """Return whether two results have the same rows, up to the order of columns.

    Args:
        gold: The expected rows.
        rows: The rows to compare.
        fixed: Indices of rows that must be in the same place; other rows may be in any order.
    """
    if len(gold) != len(rows):
        return False
    if not gold:
        return True
    width = len(gold[0])
    if len(rows[0]) != width:
        return False
    gold, rows = [tuple(map(_value, row)) for row in gold], [tuple(map(_value, row)) for row in rows]
    expected, places = Counter(gold), list(fixed)
    # A column of the result can only be one of the gold columns with the same values.
    values = [Counter(row[i] for row in gold) for i in range(width)]
    options = [[j for j in range(width) if values[i] == Counter(row[j] for row in rows)] for i in range(width)]
    for tried, order in enumerate(itertools.product(*options)):
        if tried >= MAX_PERMUTATIONS:
            return False
        if len(set(order)) == width:
            permuted = [tuple(row[j] for j in order) for row in rows]
            if Counter(permuted) == expected and all(permuted[i] == gold[i] for i in places):
                return True
    return False


def _value(value):
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value
