"""Datasets by name: GSM8K, MATH, MATH-500, AIME, AMC, OlympiadBench and more.

Other names are the built-in sample and JSONL files. Every row is {id, question, answer, source}. Files are searched in
the folder $MARL_JAX_DATA. If a dataset's files are missing, the built-in sample is used instead, with a warning in the
log. Contests and MATH-500 are for testing only.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path

from envs.tasks.data import DataError, Dataset, check_disjoint, check_fields, cut, find, from_jsonl, from_list
from envs.tasks.data.places import ROOT, warn_of_sample
from envs.tasks.math import sample
from envs.tasks.task import SPLITS, check_split

SAMPLE = "sample"
FIELDS = ("id", "question", "answer", "source")
_OWN = (".jsonl", ".jsonl.gz", ".jsonl.xz")


@dataclasses.dataclass(frozen=True)
class MathProblem:
    """A question with its gold answer; `id` identifies it in all results."""

    id: str
    question: str
    answer: str
    source: str


# ---------------------------------------------------------------------------------------------------- readers


def gsm8k(record: dict) -> tuple[str, str]:
    """Return the question and the answer, which follows `####`."""
    _, marker, answer = record["answer"].rpartition("####")
    if not marker:
        raise ValueError("no '####' in the answer")
    return record["question"], answer.strip()


def gsm8k_solution(record: dict) -> str:
    """Return the lines before `####`, without calculator annotations."""
    return re.sub(r"<<[^<>]*>>", "", record["answer"].rpartition("####")[0]).strip()


def given_solution(record: dict) -> str:
    """Return the field `solution`, or ""."""
    return str(record.get("solution") or "").strip()


def competition(record: dict) -> tuple[str, str]:
    """Return `problem` or `question`, and `answer`, which may be a number."""
    return record["problem"] if "problem" in record else record["question"], str(record["answer"])


def olympiad_bench(record: dict) -> tuple[str, str]:
    """Return the question and the answer, which is the only element of a list."""
    if len(record["final_answer"]) != 1:
        raise ValueError(f"final_answer has {len(record['final_answer'])} answers, but must have exactly 1")
    return record["question"], record["final_answer"][0]


@dataclasses.dataclass(frozen=True)
class MathSource:
    """The files and readers of a dataset.

    Attributes:
        reader: Function that returns the question and the answer of a record.
        test: Name of the test file.
        train: Name of the training file, if any.
        id: Field that identifies a row; by default the row number does.
        solution: Function that returns the worked solution of a record, or "".
    """

    reader: Callable[[dict], tuple[str, str]]
    test: str
    train: str | None = None
    id: str | None = None
    solution: Callable[[dict], str] = given_solution

    @property
    def files(self) -> dict[str, str]:
        """The file of every split that has one."""
        return {part: file for part, file in (("train", self.train), ("test", self.test)) if file}

    def name(self, prefix: str, record: dict, number: int) -> str:
        """Return the id of a row; `prefix` is DATASET/SPLIT."""
        return f"{prefix.split('/')[0]}/{record[self.id]}" if record.get(self.id) else f"{prefix}/{number}"


SOURCES = {
    "aime2024": MathSource(competition, "aime2024"),
    "aime2025": MathSource(competition, "aime2025"),
    "aime2026": MathSource(competition, "aime2026"),
    "amc2023": MathSource(competition, "amc2023"),
    "gsm8k": MathSource(gsm8k, "gsm8k_test", "gsm8k_train", solution=gsm8k_solution),
    "math": MathSource(competition, "math500_test", "math_train4500", id="unique_id"),
    "math500": MathSource(competition, "math500_test", id="unique_id"),
    "olympiadbench": MathSource(olympiad_bench, "olympiadbench_math_en_text", id="id"),
}


# ---------------------------------------------------------------------------------------------------- parts


def check_name(name: str, field: str = "dataset") -> None:
    """Raise a ValueError if the dataset is unknown."""
    if name not in SOURCES and name != SAMPLE and not str(name).endswith(_OWN):
        known = ", ".join([*SOURCES, SAMPLE])
        raise ValueError(
            f"{field} is {name!r}, but must be one of: {known}, or a .jsonl file with id, question and answer"
        )


def problems(name: str, part: str) -> tuple[MathProblem, ...]:
    """Return the problems of a split.

    Raises:
        DataError: The dataset does not have this split.
    """
    check_name(name)
    check_split(part)
    parts = _load(name, os.environ.get(ROOT, ""))
    if part not in parts:
        names = ", ".join(_trainable())
        raise DataError(f"dataset is {name!r}, which has no {part} split, but must be one of: {names}")
    return parts[part]


def _trainable() -> list[str]:
    return [*(name for name, source in SOURCES.items() if source.train), SAMPLE]


@functools.lru_cache(maxsize=16)
def _load(name: str, root: str) -> dict[str, tuple[MathProblem, ...]]:
    if name == SAMPLE:
        return _checked({part: from_list(sample.rows(part), f"sample ({part})") for part in SPLITS})
    if name not in SOURCES:
        return _own(name, root)
    source = SOURCES[name]
    paths = {part: find(file) for part, file in source.files.items()}
    if absent := [source.files[part] for part, path in paths.items() if path is None]:
        warn_of_sample(name, absent)
        return _load(SAMPLE, root)
    parts = {part: read(path, source, f"{name}/{part}") for part, path in paths.items() if path is not None}
    if "train" in parts:
        parts["train"], parts["validation"] = cut(parts["train"], "question")
    return _checked(parts)


def read(path: Path, source: MathSource, prefix: str) -> Dataset:
    """Return the rows of a published file; errors name the line."""
    records = from_jsonl(path)
    rows = []
    for i in range(len(records)):
        record = records.row(i)
        try:
            question, answer = source.reader(record)
        except KeyError as error:
            raise DataError(f"{records.where(i)}: no field {error}; found: {', '.join(record) or 'none'}") from None
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"{records.where(i)}: {error}") from None
        row = {"question": question, "answer": answer, "source": prefix.split("/")[0]}
        rows.append({"id": source.name(prefix, record, i), **row})
    return from_list(rows, str(path))


def solutions(name: str) -> dict[str, str]:
    """Return the worked solutions of a dataset by problem id, where available."""
    return _solutions(name, os.environ.get(ROOT, ""))


@functools.lru_cache(maxsize=4)
def _solutions(name: str, root: str) -> dict[str, str]:
    by_id = {}
    source = SOURCES.get(name)
    if source is None:
        return {}
    for part, file in source.files.items():
        path = find(file)
        if path is None:
            continue
        records = from_jsonl(path)
        for i in range(len(records)):
            record = records.row(i)
            by_id[source.name(f"{name}/{part}", record, i)] = source.solution(record)
    return {id_: solution for id_, solution in by_id.items() if solution}


def _own(name: str, root: str) -> dict[str, tuple[MathProblem, ...]]:
    """Load a user's file.

    The field `part` of a row is "train", "validation" or "test". Splits without rows are cut from the training rows.
    """
    path = Path(name).expanduser()
    path = path if path.is_file() else find(name)
    if path is None:
        raise DataError(f"{name}: no such file in the working directory or in ${ROOT} ({root or 'not set'})")
    whole = from_jsonl(path)
    check_fields(whole, required=("id", "question", "answer"), filled=("id", "question", "answer"))
    named = [whole.row(i).get("part") for i in range(len(whole))]
    if wrong := [i for i, part in enumerate(named) if part not in (None, *SPLITS)]:
        raise DataError(
            f"{whole.where(wrong[0])}: part is {named[wrong[0]]!r}, but must be one of: {', '.join(SPLITS)}"
        )
    rows = whole.map(lambda row: {"source": "own", **{k: str(row[k]) for k in ("id", "question", "answer")}})
    parts = {part: rows.select([i for i, p in enumerate(named) if (p or "train") == part], name) for part in SPLITS}
    for part in ("test", "validation"):
        if not len(parts[part]) and len(parts["train"]):
            parts["train"], parts[part] = cut(parts["train"], "id", part)
    return _checked({part: data for part, data in parts.items() if len(data)})


def _checked(parts: dict[str, Dataset]) -> dict[str, tuple[MathProblem, ...]]:
    """Check for empty fields, duplicate ids, and questions or ids in two splits."""
    for data in parts.values():
        check_fields(data, required=FIELDS, filled=("question", "answer"))
        seen: dict[str, int] = {}
        for i in range(len(data)):
            first = seen.setdefault(data.row(i)["id"], i)
            if first != i:
                raise DataError(f"id {data.row(i)['id']} is in {data.where(first)} and in {data.where(i)}")
    names = list(parts)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            check_disjoint(parts[one], parts[other], "id", one=one, other=other)
            check_disjoint(parts[one], parts[other], _question, one=one, other=other)
    return {part: tuple(MathProblem(**row) for row in data) for part, data in parts.items()}


def _question(row: dict) -> str:
    return re.sub(r"\s+", " ", row["question"]).strip()
