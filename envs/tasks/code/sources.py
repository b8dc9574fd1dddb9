"""Datasets by name: their files, readers and splits.

Files are searched in the folder $MARL_JAX_DATA (`envs.tasks.data.find`). If a dataset's file is missing, the built-in
sample is used instead, with a warning in the log.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from envs.tasks.code import contests, readers, sample
from envs.tasks.code.rows import Row, check_row, make_row, split
from envs.tasks.data import DataError, Dataset, check_disjoint, find, from_jsonl, from_list
from envs.tasks.data.places import ROOT, warn_of_sample
from envs.tasks.task import SPLITS

log = logging.getLogger(__name__)

Reader = Callable[[Iterable[dict]], Iterator[Row]]


@dataclasses.dataclass(frozen=True)
class CodeSource:
    """The files of a dataset with their readers.

    Each entry of `files` is (names, reader); the first name that exists is read.
    """

    files: tuple[tuple[tuple[str, ...], Reader], ...]


def _one(reader: Reader, *names: str) -> CodeSource:
    return CodeSource(((names, reader),))


def _parts(reader: Callable, train: str, test: str, validation: str | None = None) -> CodeSource:
    """Return a source with one file per split."""
    files = {"train": train, "validation": validation, "test": test}
    return CodeSource(tuple(((name,), functools.partial(reader, part=part)) for part, name in files.items() if name))


SOURCES = {
    "apps": _parts(contests.apps, "apps_train", "apps_test"),
    "codecontests": _parts(contests.codecontests, "codecontests_train", "codecontests_test", "codecontests_valid"),
    "cruxeval_input": _one(functools.partial(readers.cruxeval, predict="input"), "cruxeval"),
    "cruxeval_output": _one(readers.cruxeval, "cruxeval"),
    "humaneval": _one(readers.humaneval, "humaneval"),
    "livecodebench": _one(contests.livecodebench, "livecodebench", "livecodebench_v1_public"),
    "mbpp": _one(readers.mbpp, "mbpp"),
    "mbpp_plus": _one(readers.mbpp_plus, "mbppplus_v0.1.0"),
    "mbpp_sanitized": _one(readers.mbpp, "mbpp_sanitized"),
    "quixbugs": _one(readers.quixbugs, "quixbugs_python"),
}
SAMPLE = "sample"
VALIDATION_EVERY = 10
"""Every n-th training row is used for validation if no validation split is published."""


def check_name(name: str) -> None:
    """Raise a ValueError if the dataset is unknown."""
    if name not in SOURCES and name != SAMPLE and not str(name).endswith((".jsonl", ".jsonl.gz", ".jsonl.xz")):
        known = ", ".join(sorted([*SOURCES, SAMPLE]))
        raise ValueError(f"dataset is {name!r}, but must be one of: {known}, or a .jsonl file of rows")


def load(name: str) -> dict[str, Dataset]:
    """Return the splits of a dataset; some datasets have only a test split."""
    check_name(name)
    return _load(name, os.environ.get(ROOT, ""))


@functools.lru_cache(maxsize=8)
def _load(name: str, root: str) -> dict[str, Dataset]:
    if name == SAMPLE:
        return _as_parts(SAMPLE, sample.rows())
    if name not in SOURCES:
        path = Path(name).expanduser()
        path = path if path.is_file() else find(name)
        if path is None:
            raise DataError(f"{name}: no such file in the working directory or in ${ROOT} ({root or 'not set'})")
        return _as_parts(name, [own_row(row) for row in from_jsonl(path)])
    rows = read(name)
    if rows is None:
        warn_of_sample(name, [files[0] for files, _ in SOURCES[name].files])
        return _load(SAMPLE, root)
    return _as_parts(name, rows)


def read(name: str) -> list[Row] | None:
    """Return all rows of a published dataset, or None if a file is missing."""
    rows: list[Row] = []
    for names, reader in SOURCES[name].files:
        path = next((candidate for one in names if (candidate := find(one))), None)
        if path is None:
            return None
        records = from_jsonl(path)
        try:
            rows += reader(records)
        except ValueError as error:
            raise DataError(f"{path}: {error}") from None
    return rows


def own_row(record: dict) -> Row:
    """Convert a record of a user's file into a row.

    The fields `id`, `question` and `tests` are required.
    """
    missing = [name for name in ("id", "question", "tests") if record.get(name) in (None, "", [])]
    if missing:
        raise DataError(f"row {record.get('id', '?')}: {missing[0]} is missing or empty")
    known = set(make_row("own", "0", "?", [{"stdin": "", "stdout": ""}]))
    if unknown := set(record) - known:
        names = ", ".join(sorted(known))
        raise DataError(f"row {record['id']}: unknown field {sorted(unknown)[0]!r}; fields must be one of: {names}")
    row = {name: record.get(name, "") for name in known} | {
        "source": record.get("source", "own"), "part": record.get("part", "train"),
        "entry_point": record.get("entry_point"), "solution": record.get("solution"), "id": str(record["id"]),
    }  # fmt: skip
    check_row(row)
    if row["part"] not in SPLITS:
        raise DataError(f"row {row['id']}: part is {row['part']!r}, but must be one of: {', '.join(SPLITS)}")
    return row


def _as_parts(name: str, rows: list[Row]) -> dict[str, Dataset]:
    published = {part: from_list([r for r in rows if r["part"] == part], name) for part in SPLITS}
    for one, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
        check_disjoint(published[one], published[other], "id", one=one, other=other)
    parts = split(rows)
    if parts["train"] and not parts["validation"]:
        parts["validation"] = parts["train"][::VALIDATION_EVERY]
        parts["train"] = [row for i, row in enumerate(parts["train"]) if i % VALIDATION_EVERY]
    left = sum(len(published[part]) - len(parts[part]) for part in SPLITS)
    if left > 0:
        log.info("%s: skipped %d problems that are in two splits or have checks in the program's process", name, left)
    return {part: from_list(split_rows, f"{name}/{part}") for part, split_rows in parts.items()}
