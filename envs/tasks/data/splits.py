"""Disjoint train, validation and test splits of one or several datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from envs.tasks.data.dataset import DataError, Dataset, canonical, summary

Key = str | Callable[[dict[str, Any]], Any] | None
"""Identity of an example: a field, a function of the row, or None for the full row."""

SHARE = 0.1
LARGEST = 500
"""Maximum number of rows cut from train for a missing split, which gets the fraction SHARE of the rows."""


def make_splits(
    train: Dataset, validation: Dataset | None = None, test: Dataset | None = None, key: Key = None
) -> dict[str, Dataset]:
    """Return {"train", "validation", "test"}, which share no example.

    Missing splits are cut from train. The cut depends only on the examples' keys, not on a seed or the order of the
    rows. Raises a DataError if splits overlap.
    """
    if test is None:
        train, test = cut(train, key, "test")
    if validation is None:
        train, validation = cut(train, key, "validation")
    parts = {"train": train, "validation": validation, "test": test}
    for name, part in parts.items():
        if not len(part):
            raise DataError(f"{part.name}: no rows for the split {name!r}")
    check_disjoint(train, test, key)
    check_disjoint(train, validation, key, other="validation")
    check_disjoint(validation, test, key, one="validation")
    return parts


def cut(data: Dataset, key: Key = None, name: str = "validation", n: int | None = None) -> tuple[Dataset, Dataset]:
    """Cut a split from a dataset and return (rest, split).

    Rows are chosen by a hash of their keys, so rows with equal keys stay together.

    Args:
        data: The dataset.
        key: Identity of an example.
        name: Name of the split.
        n: Number of rows; by default a tenth of the dataset, but at most 500.
    """
    n = min(LARGEST, max(1, round(SHARE * len(data)))) if n is None else n
    hashes = [hashlib.sha256(name.encode() + b"\0" + _key(data, i, key)).digest() for i in range(len(data))]
    last = max(sorted(hashes)[:n], default=b"")
    rest = [i for i, digest in enumerate(hashes) if digest > last]
    if not rest:
        different = len(set(hashes))
        raise DataError(f"{data.name}: {len(data)} rows, {different} different: too few to cut the split {name!r}")
    taken = [i for i, digest in enumerate(hashes) if digest <= last]
    return data.select(rest), data.select(taken, f"{data.name} ({name})")


def check_disjoint(train: Dataset, test: Dataset, key: Key = None, *, one: str = "train", other: str = "test") -> None:
    """Raise a DataError that lists the examples of both splits with their locations."""
    seen: dict[bytes, int] = {}
    for i in range(len(train)):
        seen.setdefault(_key(train, i, key), i)
    what = f"{key} " if isinstance(key, str) else "example "
    overlaps = []
    for i in range(len(test)):
        value = _key(test, i, key)
        if value in seen:
            text = value.decode()
            text = text if len(text) <= 80 else f"{text[:80]}…"
            overlaps.append(f"{what}{text} is in {one} ({train.where(seen[value])}) and in {other} ({test.where(i)})")
    if overlaps:
        raise DataError(summary(overlaps))


def _key(data: Dataset, i: int, key: Key) -> bytes:
    row = data.row(i)
    if isinstance(key, str):
        if key not in row:
            raise DataError(f"{data.where(i)}: no field {key!r}; the fields are: {', '.join(row) or 'none'}")
        row = row[key]
    elif key is not None:
        row = key(row)
    return canonical(row, lambda: data.where(i))


def check_fields(data: Dataset, required: Sequence[str], filled: Sequence[str] = ()) -> None:
    """Raise a DataError that lists the rows with missing or empty fields.

    Args:
        data: The dataset.
        required: Fields that must exist.
        filled: Fields that must exist and must not be None, blank or an empty list.
    """
    problems = []
    for i in range(len(data)):
        row = data.row(i)
        missing = [name for name in (*required, *filled) if name not in row]
        empty = [name for name in filled if name in row and is_empty(row[name])]
        if missing:
            problems.append(f"{data.where(i)}: no field {missing[0]!r}; the fields are: {', '.join(row) or 'none'}")
        elif empty:
            problems.append(f"{data.where(i)}: the field {empty[0]!r} is empty: {row[empty[0]]!r}")
    if problems:
        raise DataError(summary(problems))


def is_empty(value: Any) -> bool:
    """Return whether a value is None, blank, or a list of such values.

    0 and False are not empty.
    """
    if isinstance(value, list | tuple):
        return all(map(is_empty, value))
    return value is None or (isinstance(value, str) and not value.strip())
