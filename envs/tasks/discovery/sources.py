"""Tables with a column to predict: DiscoveryBench's synthetic tables, and the built-in sample.

Every row is {id, target, columns, known, probe, hidden, solution}. No table, and in DiscoveryBench no domain, is in
two splits. Files are searched in the folder $MARL_JAX_DATA; if they are missing, the built-in sample is used, with a
warning in the log.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

from envs.tasks.data import DataError, Dataset, find, from_jsonl, from_list, make_splits
from envs.tasks.data.places import ROOT, warn_of_sample
from envs.tasks.discovery import sample
from envs.tasks.discovery.tables import divide, read_csv, targets

SAMPLE, BENCH = "sample", "discoverybench"
FILES = ("discoverybench_synth", "discoverybench_synth36")
"""Names of DiscoveryBench's file; the first that exists is read."""
DATASETS = (BENCH, SAMPLE)


def load(name: str) -> dict[str, Dataset]:
    """Return the splits of a dataset."""
    return _load(name, os.environ.get(ROOT, ""))


@functools.lru_cache(maxsize=4)
def _load(name: str, root: str) -> dict[str, Dataset]:
    if name == SAMPLE:
        return {
            part: from_list([row for table in tables for row in _rows(table, [table["target"]])], f"sample ({part})")
            for part, tables in sample.tables().items()
        }
    path = next((path for file in FILES if (path := find(file)) is not None), None)
    if path is None:
        warn_of_sample(BENCH, FILES[:1])
        return _load(SAMPLE, root)
    return _published(from_jsonl(path))


def _published(tables: Dataset) -> dict[str, Dataset]:
    """Return every target of every table that has only one file.

    The tables of "dev" are for testing. Some domains of "train" are cut from it for validation.
    """
    rows: dict[str, list[dict]] = {"synth_train": [], "synth_dev": []}
    for i in range(len(tables)):
        table = tables.row(i)
        if len(table["csv"]) != 1:
            continue
        if table["split"] not in rows:
            raise DataError(f"{tables.where(i)}: split is {table['split']!r}, but must be one of: {', '.join(rows)}")
        [text] = table["csv"].values()
        described = {c["name"]: c["description"] for c in table["metadata"][0]["datasets"][0]["columns"]}
        values = read_csv(text)
        if not values:
            raise DataError(f"{tables.where(i)}: the table has no rows")
        columns = {name: described.get(name, "") for name in values[0]}
        made = {"name": table["name"], "columns": columns, "rows": values, "solution": ""}
        rows[table["split"]] += _rows(made, targets(values))
    if not all(rows.values()):
        raise DataError(f"{tables.name}: no table with a column that can be predicted")
    train, dev = (from_list(part, f"{BENCH} ({name})") for name, part in rows.items())
    return make_splits(train, test=dev, key=domain)


def domain(row: dict[str, Any]) -> str:
    """Return the domain of a table, which is named DOMAIN_NUMBER_NUMBER."""
    return row["id"].partition("/")[0].rpartition("_")[0].rpartition("_")[0]


def _rows(table: dict[str, Any], names: Iterable[str]) -> list[dict[str, Any]]:
    made = []
    for target in names:
        parts = divide(table["rows"], target, table["name"])
        if parts is not None:
            known, probe, hidden = parts
            made.append({
                "id": f"{table['name']}/{target}", "target": target, "columns": table["columns"], "known": known,
                "probe": probe, "hidden": hidden, "solution": table["solution"],
            })  # fmt: skip
    return made
