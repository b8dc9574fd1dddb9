"""Pass rates of gold solutions in the task `code`, as JSON lines.

    MARL_JAX_DATA=../shared/data python -m benchmarks.code_gold                  # all datasets with solutions
    MARL_JAX_DATA=../shared/data python -m benchmarks.code_gold mbpp humaneval

Every problem of a file is read, its solution is put into a completion, the program is extracted from it, and all hidden
tests are run. For CRUXEval, completions are its published assertions. `known` lists ids that are known to fail. Other
failures set the exit status to 1. `cpu` has the CPU seconds that a solution needs for its tests (at most `--tests`):
median, 99th percentile, maximum, and the ids above one second. It is 0 if tests are inputs or nothing is run.
`python -m benchmarks.sandbox` measures the speed of the sandbox itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from envs.tasks.code import sources
from envs.tasks.code.extract import read_program
from envs.tasks.code.grading import grade
from envs.tasks.code.rows import Row, some_tests
from envs.tasks.code.task import Code
from envs.tasks.sandbox import Sandbox, SandboxResult, shared_sandbox, worker
from envs.tasks.scripted import play

NAMES = ("mbpp", "mbpp_sanitized", "mbpp_plus", "humaneval", "cruxeval_output", "cruxeval_input", "quixbugs")
KNOWN = {
    "quixbugs": ("knapsack", "levenshtein"),  # exponential: they exceed any limit
    "mbpp_plus": ("164", "295"),  # the published assertions and the published solution disagree
}


used = threading.local()
"""`cpu`: CPU seconds of the longest program of this thread since it was set to 0."""
_result = worker._result


def note_cpu(answer: dict, *args) -> SandboxResult:
    """Record the CPU time of a worker's reply, in place of `worker._result`."""
    used.cpu = max(getattr(used, "cpu", 0.0), answer["cpu"])
    return _result(answer, *args)


def passes(sandbox: Sandbox, row: Row, seconds: float, tests: int) -> str:
    """Return an empty string if the solution of a row passes, and the problem otherwise."""
    if row["predict"]:
        task = Code(dataset=f"cruxeval_{row['predict']}", form="single")
        [test] = row["tests"]
        answer = f"```tests\nassert {test['call']} == {test['expect']}\n```"
        outcome, _ = play(task, row, lambda *_: answer)
        return "" if outcome.success else f"wrong {outcome.metrics}"
    program = read_program(f"The program:\n```python\n{row['solution']}\n```\nThat is it.").text
    report = grade(sandbox, row, program, some_tests(row, tests), seconds)
    wrong = [test for test in report["tests"] if test["outcome"] not in ("passed", "void")]
    return "" if report["passed"] else f"{len(wrong)} of {len(report['tests'])}: {wrong[:1] or 'all are void'}"


def check(name: str, sandbox: Sandbox, at_once: int, seconds: float, tests: int) -> dict:
    """Return the figures of one dataset."""
    rows = sources.read(name)
    if rows is None:
        return {"dataset": name, "error": "its file is not in $MARL_JAX_DATA"}
    rows = [row for row in rows if row["solution"]]
    began = time.monotonic()

    def one(row: Row) -> tuple[str, float]:
        """Return the problem with a solution and its CPU seconds."""
        used.cpu = 0.0
        return passes(sandbox, row, seconds, tests), used.cpu

    with ThreadPoolExecutor(at_once) as side_by_side:
        problems, cpu = zip(*side_by_side.map(one, rows), strict=True)
    failed = {row["id"]: problem for row, problem in zip(rows, problems, strict=True) if problem}
    slow = [row["id"] for row, spent in zip(rows, cpu, strict=True) if spent > 1]
    spent = time.monotonic() - began
    return {
        "dataset": name, "passed": len(rows) - len(failed), "of": len(rows), "seconds": round(spent, 1),
        "problems_per_s": round(len(rows) / spent, 1), "known": [id for id in KNOWN.get(name, ()) if id in failed],
        "failed": {id: why for id, why in failed.items() if id not in KNOWN.get(name, ())},
        "cpu": [round(x, 3) for x in (*np.quantile(cpu, (0.5, 0.99)), max(cpu))] + [slow],
    }  # fmt: skip


def main() -> int:
    """Check all datasets and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"Datasets, among: {', '.join(sources.SOURCES)}")
    parser.add_argument("--at_once", type=int, default=0, help="Number of concurrent problems; 0: two per worker")
    parser.add_argument("--seconds", type=float, default=12.0, help="CPU seconds for all calls of a program")
    parser.add_argument("--tests", type=int, default=0, help="Maximum number of tests per problem; 0: all")
    args = parser.parse_args()
    worker._result = note_cpu
    sandbox, status = shared_sandbox(), 0
    print(json.dumps({"layers": sandbox.layers, "workers": sandbox.workers}), flush=True)
    for name in args.names:
        line = check(name, sandbox, args.at_once or 2 * sandbox.workers, args.seconds, args.tests)
        print(json.dumps(line), flush=True)
        status |= bool(line.get("failed") or "error" in line)
    sandbox.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
