"""Interface of datasets: indexed rows with a name and a fingerprint."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

SHOWN = 5
"""Maximum number of invalid rows that an error lists; the others are counted."""


class DataError(ValueError):
    """Invalid data; the message names the file and the line, or the row."""


class NoSplit(DataError):
    """A source that does not have the requested split."""


class Dataset(Sequence):
    """A sequence of rows. Every access returns a new dict, which the caller may change.

    Attributes:
        name: Name of the dataset in messages.
    """

    name: str = "data"

    def __len__(self) -> int:
        raise NotImplementedError

    def row(self, i: int) -> dict[str, Any]:
        """Return the row with index 0 <= i < len."""
        raise NotImplementedError

    def where(self, i: int) -> str:
        """Return the location of a row, for messages."""
        return f"{self.name}, row {i}"

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return self.select(range(*i.indices(len(self))))
        if not -len(self) <= i < len(self):
            raise IndexError(f"index is {i}, but {self.name} has {len(self)} rows")
        return self.row(i % len(self))

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the rows in their order, in hexadecimal; independent of their source."""
        digest = hashlib.sha256()
        for i in range(len(self)):
            digest.update(canonical(self.row(i), lambda i=i: self.where(i)) + b"\n")
        return digest.hexdigest()

    def select(self, indices: Iterable[int], name: str | None = None) -> Dataset:
        """Return a dataset of the rows with these indices, in their order."""
        return _Selected(self, indices, name or self.name)

    def map(self, function: Callable[[dict[str, Any]], dict[str, Any]], name: str | None = None) -> Dataset:
        """Return a dataset that applies a function to each row when it is read.

        Errors of the function are reported with the row.
        """
        return _Mapped(self, function, name or self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self)} rows)"


def from_list(rows: Iterable[Mapping[str, Any]], name: str = "list") -> Dataset:
    """Return a dataset of dicts with JSON values."""
    return _Rows(rows, name)


class _Rows(Dataset):
    def __init__(self, rows: Iterable[Mapping[str, Any]], name: str):
        self.name, self._rows = name, list(rows)
        for i, row in enumerate(self._rows):
            if not isinstance(row, Mapping):
                raise DataError(f"{self.where(i)} is {row!r:.80}, but must be a dict")
            canonical(row, lambda i=i: self.where(i))

    def __len__(self):
        return len(self._rows)

    def row(self, i):
        return _copy(dict(self._rows[i]))


def _copy(value: Any) -> Any:
    """Copy a JSON value, several times as fast as `copy.deepcopy`.

    Every episode gets its own copy of a row, so the time matters.
    """
    if isinstance(value, str | int | float) or value is None:
        return value
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if type(value) is list else copy.deepcopy(value)


class _Selected(Dataset):
    def __init__(self, whole: Dataset, indices: Iterable[int], name: str):
        self.name, self._whole, self._indices = name, whole, list(indices)

    def __len__(self):
        return len(self._indices)

    def row(self, i):
        return self._whole.row(self._indices[i])

    def where(self, i):
        return self._whole.where(self._indices[i])


class _Mapped(Dataset):
    def __init__(self, whole: Dataset, function: Callable, name: str):
        self.name, self._whole, self._function = name, whole, function

    def __len__(self):
        return len(self._whole)

    def row(self, i):
        row = self._whole.row(i)
        try:
            return self._function(row)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"{self.where(i)}: {type(error).__name__}: {error}") from error

    def where(self, i):
        return self._whole.where(i)


def canonical(row: Any, where: Callable[[], str] = lambda: "a row") -> bytes:
    """Encode a row in a unique way, for fingerprints.

    Raises a DataError for values that are not JSON and for invalid Unicode.
    """
    try:
        text = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DataError(f"{where()}: {half!r} is half of a surrogate pair, which is not valid text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{where()}: {error}; values must be JSON") from None


def fingerprint_of(examples: Sequence[Any]) -> str:
    """Return the fingerprint of examples, or "" if they cannot be encoded.

    Args:
        examples: A dataset, or a list of JSON values or dataclasses.
    """
    if isinstance(examples, Dataset):
        return examples.fingerprint
    digest = hashlib.sha256()
    for example in examples:
        if dataclasses.is_dataclass(example) and not isinstance(example, type):
            example = dataclasses.asdict(example)
        try:
            digest.update(canonical(example) + b"\n")
        except DataError:
            return ""
    return digest.hexdigest()


def summary(problems: Sequence[str]) -> str:
    """Join the first few problems, one per line, and count the others."""
    more = len(problems) - SHOWN
    return "\n".join([*problems[:SHOWN], *([f"and {more} more"] if more > 0 else [])])
