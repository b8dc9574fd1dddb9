"""What every row must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.tasks.data.dataset import DataError, Dataset, summary


def check_fields(data: Dataset, required: Sequence[str], filled: Sequence[str] = ()) -> None:
    """Refuses rows without a required field, or with nothing in one that must be filled; rows are named.

    filled  fields that must not be None, "", blank or an empty list
    """
    problems = []
    for i in range(len(data)):
        row = data.row(i)
        missing = [name for name in (*required, *filled) if name not in row]
        empty = [name for name in filled if name in row and is_empty(row[name])]
        if missing:
            problems.append(f"{data.where(i)}: no field {missing[0]!r}; found: {', '.join(row) or 'none'}")
        elif empty:
            problems.append(f"{data.where(i)}: the field {empty[0]!r} is empty: {row[empty[0]]!r}")
    if problems:
        raise DataError(summary(problems))


def is_empty(value: Any) -> bool:
    """None, blank text, or a list of nothing else; 0 and False are values."""
    if isinstance(value, list | tuple):
        return all(map(is_empty, value))
    return value is None or (isinstance(value, str) and not value.strip())
