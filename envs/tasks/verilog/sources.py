"""Problems with references and test benches: VerilogEval v2, the sample, your own file.

Every row is {id, prompt, ref, test}. No problem is in two splits. The file is searched in the folder $MARL_JAX_DATA; if
it is missing, the built-in sample is used, with a warning in the log.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from envs.tasks.data import DataError, Dataset, check_fields, find, from_jsonl, from_list, make_splits, open_dataset
from envs.tasks.data.places import ROOT, warn_of_sample
from envs.tasks.verilog import bench, sample

EVAL, SAMPLE, FILE = "verilogeval", "sample", "verilog_eval"
TOO_NEW = ("Prob099_m2014_q6c", "Prob151_review2015_fsm", "Prob156_review2015_fancytimer")
"""Problems with references that Icarus Verilog 11 cannot compile; version 12 can."""
SLOW = ("Prob144_conwaylife",)
"""Problems whose simulation takes about 10 s of CPU time; the next slowest takes less than 1 s."""
_OWN = (".jsonl", ".jsonl.gz", ".jsonl.xz")


def check_name(name: str) -> None:
    """Raise a ValueError if the dataset is unknown."""
    if name not in (EVAL, SAMPLE) and not name.endswith(_OWN):
        raise ValueError(f"dataset is {name!r}, but must be one of: {EVAL}, {SAMPLE}, or a .jsonl file")


def load(name: str) -> dict[str, Dataset]:
    """Return the splits of a dataset."""
    check_name(name)
    return _load(name, os.environ.get(ROOT, ""))


@functools.lru_cache(maxsize=8)
def _load(name: str, root: str) -> dict[str, Dataset]:
    if name == SAMPLE:
        return {
            part: from_list([_row(row, row["id"]) for row in rows], f"sample ({part})")
            for part, rows in sample.problems().items()
        }
    if name == EVAL:
        path = find(FILE)
        if path is None:
            warn_of_sample(EVAL, (FILE,))
            return _load(SAMPLE, root)
        problems = from_jsonl(path)
        rows = [problems.row(i) for i in range(len(problems))]
        usable = [row for row in rows if row["id"] not in TOO_NEW + SLOW]
        kept = [_row({**row, "prompt": row["spec_prompt"]}, row["id"]) for row in usable]
        return make_splits(from_list(kept, EVAL), key="id")
    problems = open_dataset(name, "train")
    check_fields(problems, required=("prompt", "ref", "test"), filled=("prompt", "ref", "test"))
    rows = [problems.row(i) for i in range(len(problems))]
    return make_splits(from_list([_row(row, row.get("id", str(i))) for i, row in enumerate(rows)], name), key="id")


def _row(row: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        bench.ports(row["ref"])
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None
    if bench.VERDICT not in row["test"]:
        raise DataError(f"{name}: test must print its result as {bench.VERDICT!r}")
    return {"id": name, "prompt": row["prompt"], "ref": row["ref"], "test": row["test"]}
