"""CPU time of grading completions with programs and test cases, as JSON lines.

    MARL_JAX_DATA=../shared/data python -m benchmarks.code_grading --answers=300

A completion has a solution of MBPP, or a broken variant of it, and up to `--cases` of its tests as the agent's own test
cases. It is graded as in a run of the form `single`: `envs.tasks.code.calls.tried` on the gold tests and on the cases,
in this process with a separate sandbox. Each kind of program has a line:

    cpu_ms   user and system time per completion of this process and the sandbox, excluding the start of workers
    started  processes and threads started per completion, including those of other programs on the machine
    passed   fraction of completions with a program that passes its gold tests
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from envs.tasks.code import calls, sources
from envs.tasks.code.rows import Row, some_tests
from envs.tasks.sandbox import same_sandbox, shared_sandbox, worker
from envs.tasks.sandbox.inside.tree import descendants

KINDS: dict[str, Callable[[Row], str]] = {
    "solution": lambda row: row["solution"],
    "wrong value": lambda row: f"{row['solution']}\ndef {row['entry_point']}(*args):\n    return list(args)\n",
    "exception": lambda row: f"{row['solution']}\ndef {row['entry_point']}(*args):\n    return args[9]\n",
    "syntax error": lambda row: row["solution"] + "\nreturn (\n",
    "keeps state": lambda row: row["solution"] + "\nclass Seen:\n    calls = []\n",
    "never ends": lambda row: f"{row['solution']}\ndef {row['entry_point']}(*args):\n    while True: pass\n",
}
TICK = os.sysconf("SC_CLK_TCK")


def spent() -> float:
    """Return the CPU seconds of this process and its descendants, including finished ones."""
    own = sum(os.times()[:2])
    for pid in descendants(os.getpid()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        own += sum(map(int, fields[11:15])) / TICK
    return own


def started() -> int:
    """Return the number of processes and threads that this machine has started since boot."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes "))


def answer(row: Row, cases: int) -> str:
    """Return a completion's test cases: the gold tests, repeated."""
    lines = [f"assert {test['call']} == {test['expect']}" for test in row["tests"] if "expect" in test]
    return "```tests\n" + "\n".join((lines * cases)[:cases]) + "\n```"


def has_cases(row: Row) -> bool:
    """Return whether the tests of a row can be written as an agent's test cases."""
    return bool(calls.cases_in(answer(row, 1), row["entry_point"], 1)["tests"])


def measure(kind: str, rows: list[Row], cases: int, seconds: float) -> dict:
    """Return the figures of one kind of program."""
    settings = shared_sandbox().settings
    jobs = [(calls.needed(row), KINDS[kind](row), some_tests(row, 8), answer(row, cases)) for row in rows]
    same_sandbox(settings).run_sync("")
    before, first, began = spent(), started(), time.perf_counter()
    reports = [
        calls.tried(settings, row, program, tests, text, cases, seconds) for row, program, tests, text in jobs
    ]  # fmt: skip
    n = len(reports)
    return {
        "kind": kind, "answers": n, "cpu_ms": round((spent() - before) / n * 1e3, 2),
        "wall_ms": round((time.perf_counter() - began) / n * 1e3, 2), "started": round((started() - first) / n, 1),
        "tests": round(sum(len(report["tests"]) for one in reports for report in (one["gold"], one["kept"])) / n, 1),
        "passed": round(sum(one["gold"]["passed"] for one in reports) / n, 3), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main():
    """Parse the options and measure all kinds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=300, help="Number of completions")
    parser.add_argument("--cases", type=int, default=5, help="Number of test cases per completion")
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds per program")
    args = parser.parse_args()
    worker.MAX_PROGRAMS = 1 << 30  # the CPU time of a replaced worker would be lost
    rows = [row for row in sources.load("mbpp")["train"] if row["entry_point"] and has_cases(row)]
    rows = [rows[n % len(rows)] for n in range(args.answers)]
    for kind in KINDS:
        some = rows[: 2 + args.answers // 50] if kind == "never ends" else rows
        print(json.dumps(measure(kind, some, args.cases, args.seconds)), flush=True)


if __name__ == "__main__":
    main()
