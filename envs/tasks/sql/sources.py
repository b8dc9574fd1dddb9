"""Datasets of questions and databases: sql-eval, Spider, the built-in sample and your own file.

Every row is {id, db, question, instructions, golds, script}. No database is in two splits. Files are searched in the
folder $MARL_JAX_DATA; if they are missing, the built-in sample is used, with a warning in the log.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Iterable
from typing import Any

from envs.tasks.data import DataError, Dataset, check_fields, find, from_jsonl, from_list, make_splits, open_dataset
from envs.tasks.data.places import ROOT, warn_of_sample
from envs.tasks.sql import copies, engine, sample, spider
from envs.tasks.task import SPLITS

log = logging.getLogger(__name__)

SAMPLE = "sample"
FILES = {
    "sqleval": ("sqleval_questions", "sqleval_databases"),
    "spider": ("spider_dev", "spider_dev_tables"),
}
SQLEVAL_PARTS = {"scholar": "test", "restaurants": "validation"}
"""The other databases of sql-eval are for training."""
SPIDER_TEST, SPIDER_VALIDATION = 5, 3
"""Number of Spider databases in the test and validation splits; the others are for training."""
_OWN = (".jsonl", ".jsonl.gz", ".jsonl.xz")

Row = dict[str, Any]


def check_name(name: str) -> None:
    """Raise a ValueError if the dataset is unknown."""
    if name not in FILES and name != SAMPLE and not name.endswith(_OWN):
        known = ", ".join([*FILES, SAMPLE])
        raise ValueError(f"dataset is {name!r}, but must be one of: {known}, or a .jsonl file (docs/sql.md)")


def load(name: str) -> dict[str, Dataset]:
    """Return the splits of a dataset."""
    check_name(name)
    return _load(name, os.environ.get(ROOT, ""))


@functools.lru_cache(maxsize=8)
def _load(name: str, root: str) -> dict[str, Dataset]:
    if name == SAMPLE:
        return _splits(name, _sample_rows())
    if name in FILES:
        paths = {file: find(file) for file in FILES[name]}
        if any(path is None for path in paths.values()):
            warn_of_sample(name, [file for file, path in paths.items() if path is None])
            return _load(SAMPLE, root)
        questions, databases = (from_jsonl(path) for path in paths.values() if path is not None)
        return _splits(name, (_sqleval if name == "sqleval" else _spider)(questions, databases))
    rows = open_dataset(name, "train")
    check_fields(rows, required=("question", "gold_sql", "script"), filled=("db", "question", "gold_sql", "script"))
    own = from_list([_row(str(row["db"]), i, row, row["script"]) for i, row in enumerate(rows)], name)
    return {part: _checked(data) for part, data in make_splits(own, key="db").items()}


def _row(db: str, number: int, record: Row, script: str) -> Row:
    golds = record["gold_sql"]
    return {
        "id": f"{db}/{number}", "db": db, "question": record["question"], "script": script,
        "instructions": record.get("instructions") or "", "golds": [golds] if isinstance(golds, str) else list(golds),
    }  # fmt: skip


def _sample_rows() -> list[tuple[str, Row]]:
    return [
        (sample.PARTS[db], _row(db, i, {"question": question, "gold_sql": gold}, sample.SCRIPTS[db]))
        for i, (db, question, gold) in enumerate(sample.QUESTIONS)
    ]


def _sqleval(questions: Iterable[Row], databases: Iterable[Row]) -> list[tuple[str, Row]]:
    scripts = {row["db"]: row["sqlite_script"] for row in databases}
    return [
        (SQLEVAL_PARTS.get(row["db"], "train"), _row(row["db"], i, row, scripts[row["db"]]))
        for i, row in enumerate(questions)
    ]


def _spider(questions: Iterable[Row], schemas: Iterable[Row]) -> list[tuple[str, Row]]:
    """Fill Spider's schemas with rows."""
    rows, by_name = list(questions), {schema["db_id"]: schema for schema in schemas}
    names = sorted({row["db_id"] for row in rows}, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    parts = dict.fromkeys(names, "train") | dict.fromkeys(names[:SPIDER_TEST], "test")
    parts |= dict.fromkeys(names[SPIDER_TEST : SPIDER_TEST + SPIDER_VALIDATION], "validation")
    scripts = {
        name: spider.script(by_name[name], [row["query"] for row in rows if row["db_id"] == name]) for name in names
    }
    return [
        (parts[row["db_id"]], _row(row["db_id"], i, row | {"gold_sql": row["query"]}, scripts[row["db_id"]]))
        for i, row in enumerate(rows)
    ]


def _splits(name: str, rows: list[tuple[str, Row]]) -> dict[str, Dataset]:
    return {
        part: _checked(from_list([row for of, row in rows if of == part], f"{name} ({part})")) for part in SPLITS
    }  # fmt: skip


def _checked(data: Dataset) -> Dataset:
    """Return the questions that a result can decide, and log the number of others.

    Raises:
        DataError: A database or a gold query fails.
    """
    kept = []
    for i in range(len(data)):
        row = data.row(i)
        try:
            informative = [copies.is_informative(row["script"], gold) for gold in row["golds"]]
        except engine.QueryError as error:
            raise DataError(f"{data.where(i)}: {error}; gold_sql is {row['golds']}") from None
        if all(informative):
            kept.append(i)
    if len(kept) < len(data):
        left = len(data) - len(kept)
        log.info("%s: left out %d questions with a gold result that is always empty, NULL or 0", data.name, left)
    return data.select(kept)
