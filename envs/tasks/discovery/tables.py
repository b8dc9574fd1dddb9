"""Tables: reading, rows for learning and testing, columns that can be predicted, and R²."""

from __future__ import annotations

import bisect
import csv
import hashlib
import io
import math
import random
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

KNOWN, PROBE, HIDDEN = 60, 30, 60
"""Number of rows that a program may read, rows whose R² is shown, and rows whose R² is the score."""
DISTINCT = 10
"""Minimum number of different values of a column that is predicted."""
BINS = 8
LEARNABLE = 0.2
"""Minimum R² of a prediction from one other column, for a column to be a target."""


def read_csv(text: str) -> list[Row]:
    """Read rows; values are numbers, booleans, None if empty, or strings."""
    return [{name: _value(value) for name, value in row.items() if name} for row in csv.DictReader(io.StringIO(text))]


def _value(text: str | None) -> Any:
    if text in (None, "", "nan"):
        return None
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return text


def divide(rows: Sequence[Row], target: str, name: str) -> tuple[list[Row], list[Row], list[Row]] | None:
    """Return known, probe and hidden rows with a target, or None if too few.

    Rows are shuffled by the name of the table. Rows with the same inputs as an earlier one are left out, because their
    targets could be looked up.
    """
    usable, seen = [], set()
    for row in rows:
        inputs = tuple(value for column, value in row.items() if column != target)
        if _is_number(row[target]) and inputs not in seen:
            seen.add(inputs)
            usable.append(row)
    if len(usable) < KNOWN + PROBE + HIDDEN:
        return None
    random.Random(hashlib.sha256(f"{name}/{target}".encode()).hexdigest()).shuffle(usable)
    ends = KNOWN, KNOWN + PROBE, KNOWN + PROBE + HIDDEN
    return usable[: ends[0]], usable[ends[0] : ends[1]], usable[ends[1] : ends[2]]


def targets(rows: Sequence[Row]) -> list[str]:
    """Return the numeric columns with many values that another column predicts in part.

    A constant column shows no law, and one that is independent of all others cannot be predicted.
    """
    names = [
        name for name in rows[0]
        if all(_is_number(row[name]) or row[name] is None for row in rows)
        and len({row[name] for row in rows} - {None}) >= DISTINCT
    ]  # fmt: skip
    bins = {column: _bins([row[column] for row in rows]) for column in rows[0]}
    values = {name: [row[name] for row in rows] for name in names}
    return [
        name for name in names
        if any(_by_bins(bins[other], values[name]) >= LEARNABLE for other in bins if other != name)
    ]  # fmt: skip


def _bins(values: Sequence[Any]) -> list[Any]:
    """Return the quantiles of numbers, or the values themselves if some are not numbers."""
    if not all(map(_is_number, values)):
        return list(values)
    ordered = sorted(values)
    edges = [ordered[len(ordered) * i // BINS] for i in range(1, BINS)]
    return [bisect.bisect_left(edges, value) for value in values]


def _by_bins(bins: Sequence[Any], target: Sequence[float | None]) -> float:
    """Return the R² of the mean target in each bin, fitted on every other row."""
    pairs = [(key, value) for key, value in zip(bins, target, strict=True) if value is not None]
    groups: dict[Any, list[float]] = {}
    for key, value in pairs[::2]:
        groups.setdefault(key, []).append(value)
    means = {key: sum(values) / len(values) for key, values in groups.items()}
    mean = sum(value for _, value in pairs[::2]) / len(pairs[::2])
    return r_squared([value for _, value in pairs[1::2]], [means.get(key, mean) for key, _ in pairs[1::2]])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def r_squared(expected: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the coefficient of determination; -inf if it is not finite."""
    mean = sum(expected) / len(expected)
    total = sum((value - mean) * (value - mean) for value in expected)
    errors = sum((value - guess) * (value - guess) for value, guess in zip(expected, predicted, strict=True))
    score = 1 - errors / total if total > 0 else -math.inf
    return score if math.isfinite(score) else -math.inf
