"""Train, validation and test: parts of one dataset or of several, which share no example."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from envs.tasks.data.dataset import DataError, Dataset, canonical, summary

Key = str | Callable[[dict[str, Any]], Any] | None
"""What tells examples apart: a field, a function of the row, or None for the whole row."""

SHARE = 0.1
LARGEST = 500
"""What is cut from train for a part that a source does not have: a tenth, and no more than this."""


def make_splits(
    train: Dataset, validation: Dataset | None = None, test: Dataset | None = None, key: Key = None
) -> dict[str, Dataset]:
    """{"train", "validation", "test"}: parts that are not given are cut from train; any overlap is refused.

    The cut depends on the examples' keys alone, not on a seed or on the order of the rows.
    """
    if test is None:
        train, test = cut(train, key, "test")
    if validation is None:
        train, validation = cut(train, key, "validation")
    parts = {"train": train, "validation": validation, "test": test}
    for name, part in parts.items():
        if not len(part):
            raise DataError(f"{part.name}: no rows for the part {name!r}")
    check_disjoint(train, test, key)
    check_disjoint(train, validation, key, other="validation")
    check_disjoint(validation, test, key, one="validation")
    return parts


def cut(data: Dataset, key: Key = None, name: str = "validation", n: int | None = None) -> tuple[Dataset, Dataset]:
    """(the rest, a part of `n` rows chosen by a hash of their keys); rows of equal keys stay together.

    n  a tenth of the rows by default, at most 500
    """
    n = min(LARGEST, max(1, round(SHARE * len(data)))) if n is None else n
    hashes = [hashlib.sha256(name.encode() + b"\0" + _key(data, i, key)).digest() for i in range(len(data))]
    last = max(sorted(hashes)[:n], default=b"")
    rest = [i for i, found in enumerate(hashes) if found > last]
    if not rest:
        different = len(set(hashes))
        raise DataError(f"{data.name}: {len(data)} rows, {different} different: too few to cut the part {name!r} from")
    taken = [i for i, found in enumerate(hashes) if found <= last]
    return data.select(rest), data.select(taken, f"{data.name} ({name})")


def check_disjoint(train: Dataset, test: Dataset, key: Key = None, *, one: str = "train", other: str = "test") -> None:
    """Refuses examples that are in both; each is named with its two places."""
    seen: dict[bytes, int] = {}
    for i in range(len(train)):
        seen.setdefault(_key(train, i, key), i)
    what = f"{key} " if isinstance(key, str) else "example "
    found = []
    for i in range(len(test)):
        value = _key(test, i, key)
        if value in seen:
            text = value.decode()
            text = text if len(text) <= 80 else f"{text[:80]}…"
            found.append(f"{what}{text} is in {one} ({train.where(seen[value])}) and in {other} ({test.where(i)})")
    if found:
        raise DataError(summary(found))


def _key(data: Dataset, i: int, key: Key) -> bytes:
    row = data.row(i)
    if isinstance(key, str):
        if key not in row:
            raise DataError(f"{data.where(i)}: no field {key!r}; found: {', '.join(row) or 'none'}")
        row = row[key]
    elif key is not None:
        row = key(row)
    return canonical(row, lambda: data.where(i))


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
