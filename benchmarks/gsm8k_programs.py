"""GSM8K's calculations as programs: how many come to the answer, by exact fractions and by running them.

    MARL_JAX_DATA=../shared/data PYTHONPATH=. python benchmarks/gsm8k_programs.py          # all rows
    MARL_JAX_DATA=../shared/data PYTHONPATH=. python benchmarks/gsm8k_programs.py 200      # the first of each file

Counts by kind (`envs/tasks/math/programs.py`), then what the programs print in the sandbox, as the task judges it. Rows
where both disagree are printed.
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
    """(id, solution, answer) of both files."""
    found = []
    for part in ("train", "test"):
        path = find(f"gsm8k_{part}")
        if path is None:
            raise SystemExit(f"no file gsm8k_{part} in $MARL_JAX_DATA")
        data = from_jsonl(path)
        for i in range(min(len(data), limit or len(data))):
            solution, _, answer = data.row(i)["answer"].rpartition("####")
            found.append((f"gsm8k/{part}/{i}", solution, answer.strip()))
    return found


async def ran(found: list[tuple[str, str, str]], sandbox: Sandbox) -> dict[str, bool]:
    """By id, whether what a row's program prints is right; rows without a program have none."""

    async def one(name, solution, answer):
        program = programs.to_run(programs.reference_program(solution))
        result = await sandbox.run(program)
        return name, result.status == "ok" and tool.verify_output(answer, result.stdout)["right"]

    made = [row for row in found if "<<" in row[1]]
    return dict(await asyncio.gather(*(one(*row) for row in made)))


def main(limit: int | None = None) -> None:
    """Prints the counts."""
    found = rows(limit)
    kinds = {name: programs.kind(solution, answer) for name, solution, answer in found}
    for part in ("train", "test"):
        count = Counter(kind for name, kind in kinds.items() if f"/{part}/" in name)
        print(part, sum(count.values()), {kind: count[kind] for kind in programs.KINDS})
    start = time.perf_counter()
    right = asyncio.run(ran(found, Sandbox()))
    seconds = time.perf_counter() - start
    print(f"sandbox: {len(right)} programs, {sum(right.values())} right, {seconds:.0f} s")
    for name, agrees in right.items():
        if agrees != (kinds[name] == "agrees"):
            print("  ", name, kinds[name], "ran right" if agrees else "ran wrong")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
