"""Problems of the proposer's task: published programs with known outputs, for solvers and as references.

Training and validation use the programs of a dataset of the `code` task, and their published calls; the test split uses
CRUXEval. Without its file, a dataset is replaced by the built-in sample (`envs.tasks.code.sources`).
"""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Iterator

from envs.tasks.code import sources
from envs.tasks.code.rows import Row, make_row
from envs.tasks.code.values import literal, parse
from envs.tasks.data import Dataset, from_list
from envs.tasks.data.places import ROOT
from envs.tasks.propose.programs import LONGEST_OUTPUT, NAME, Invalid, measured, read_proposal

CALLS = 2
"""Maximum number of problems from one published program."""


def problem(id: str, program: str, call: str, expect: str, source: str = "proposed") -> Row:
    """Return the row of a problem in the form of CRUXEval."""
    question = f"```python\n{program.strip()}\n```\n\nassert {call} == ??"
    tests = [{"call": call, "expect": expect}]
    return make_row(source, id, question, tests, entry_point=NAME, solution=program, predict="output")


def load(dataset: str, part: str) -> Dataset:
    """Return the problems of a split of a dataset of the `code` task."""
    return _load(dataset, part, os.environ.get(ROOT, ""))


@functools.lru_cache(maxsize=8)
def _load(dataset: str, part: str, root: str) -> Dataset:
    rows: list[Row] = []
    for row in sources.load(dataset)[part]:
        rows += [row] if row["predict"] == "output" else _converted(row)
    return from_list(rows, f"{dataset}/{part}")


def _converted(row: Row) -> Iterator[Row]:
    """Yield prediction problems of a published program, whose function is renamed to `NAME`."""
    name = row["entry_point"]
    if not name or not name.isidentifier() or not row["solution"] or row["predict"]:
        return
    program = re.sub(rf"\b{name}\b", NAME, row["solution"].replace("\t", "    ")).strip() + "\n"
    for number, test in enumerate(row["tests"][:CALLS]):
        if "call" not in test or "expect" not in test or len(test["expect"]) > LONGEST_OUTPUT:
            continue
        call = re.sub(rf"^{name}\(", f"{NAME}(", test["call"])
        try:  # the same rules as for proposals, except that nothing is run
            literal(test["expect"])
            program, call, _ = read_proposal(block(program, call))
        except (Invalid, ValueError):
            continue
        yield problem(f"{row['source']} {row['id']} {number}", program, call, test["expect"], row["source"])


def block(program: str, call: str) -> str:
    """Format a problem as a proposer writes it."""
    given = call.removeprefix(f"{NAME}(").removesuffix(")")
    return f"```python\n{program.strip()}\n```\n```input\n{given}\n```"


def references(dataset: str, seed: int, count: int, shown: int) -> Dataset:
    """Return the examples of the proposer: published problems to differ from.

    Args:
        dataset: Dataset of the `code` task.
        seed: Random seed.
        count: Number of examples.
        shown: Number of problems in an example.
    """
    rows = list(load(dataset, "train"))
    examples = []
    for number in range(count):
        rng = random.Random(f"proposer {seed} {number}")
        chosen = rng.sample(rows, min(shown, len(rows)))
        given = [_reference(row) for row in chosen]
        examples.append({"id": f"propose {number}", "references": given})
    return from_list(examples, "references for the proposer")


def _reference(row: Row) -> dict[str, str]:
    program = row["solution"]
    return {"program": program, "call": row["tests"][0]["call"], "form": measured(parse(program))["form"]}
