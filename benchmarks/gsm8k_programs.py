"""Accuracy of programs that are derived from the calculations in GSM8K's solutions.

    MARL_JAX_DATA=../shared/data PYTHONPATH=. python benchmarks/gsm8k_programs.py          # all rows
    MARL_JAX_DATA=../shared/data PYTHONPATH=. python benchmarks/gsm8k_programs.py 200      # the first rows of each file

Prints the counts by kind (`envs/tasks/math/programs.py`), which uses exact fractions, then the number of programs with
the right output in the sandbox, as the task judges it, and the rows in which the two disagree.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter

from envs.tasks.data import find, from_jsonl
from envs.tasks.math import programs, tool
from envs.tasks.sandbox import Sandbox


def rows(limit: int | None) -> list[tuple[str, str, str]]:
    """Return (id, solution, answer) of all rows of both files."""
    problems = []
    for part in ("train", "test"):
        path = find(f"gsm8k_{part}")
        if path is None:
            raise SystemExit(f"no file gsm8k_{part} in $MARL_JAX_DATA")
        data = from_jsonl(path)
        for i in range(min(len(data), limit or len(data))):
            solution, _, answer = data.row(i)["answer"].rpartition("####")
            problems.append((f"gsm8k/{part}/{i}", solution, answer.strip()))
    return problems


async def ran(problems: list[tuple[str, str, str]], sandbox: Sandbox) -> dict[str, bool]:
    """Return by id whether the output of a row's program is right."""

    async def one(name, solution, answer):
        program = programs.to_run(programs.reference_program(solution))
        result = await sandbox.run(program)
        return name, result.status == "ok" and tool.verify_output(answer, result.stdout)["right"]

    made = [row for row in problems if "<<" in row[1]]
    return dict(await asyncio.gather(*(one(*row) for row in made)))


def main(limit: int | None = None) -> None:
    """Print the counts."""
    problems = rows(limit)
    kinds = {name: programs.kind(solution, answer) for name, solution, answer in problems}
    for part in ("train", "test"):
        count = Counter(kind for name, kind in kinds.items() if f"/{part}/" in name)
        print(part, sum(count.values()), {kind: count[kind] for kind in programs.KINDS})
    start = time.perf_counter()
    right = asyncio.run(ran(problems, Sandbox()))
    seconds = time.perf_counter() - start
    print(f"sandbox: {len(right)} programs, {sum(right.values())} right, {seconds:.0f} s")
    for name, agrees in right.items():
        if agrees != (kinds[name] == "agrees"):
            print("  ", name, kinds[name], "ran right" if agrees else "ran wrong")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
