"""Convert a file in TinyGSM's format to problems of the math task.

    PYTHONPATH=. python scripts/tiny_gsm.py tiny_gsm.jsonl problems.jsonl
    python launch.py --config=experiments/math_reasoning.py:single_grpo+qwen2.5-coder-0.5b \
        --config.task.params.dataset=problems.jsonl --config.task.params.tool=False --config.task.params.answer=program

A row is {"question", "code"}, and the code has a function `simple_math_problem()`. Programs run in the sandbox, and
their result is the answer. Rows with a program that fails or does not return a number are left out and counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

from envs.tasks.math import programs
from envs.tasks.math.tool import printed_answer
from envs.tasks.sandbox import Sandbox

CHUNK = 1000
"""Number of programs that are queued at the same time."""


async def solved(path: Path, sandbox: Sandbox) -> tuple[list[dict], Counter]:
    """Run the programs and return rows {id, question, answer} and the reasons for dropped ones."""

    async def one(row):
        return row, await sandbox.run(programs.to_run(row["program"]))

    rows, kept, dropped = programs.tiny_gsm(path), [], Counter()
    ran = [pair for i in range(0, len(rows), CHUNK) for pair in await asyncio.gather(*map(one, rows[i : i + CHUNK]))]
    for row, result in ran:
        answer = printed_answer(result.stdout) if result.status == "ok" else None
        if result.status != "ok":
            dropped[result.limit or result.status] += 1
        elif answer is None or not programs.is_decimal(answer):
            dropped["no number"] += 1
        else:
            kept.append({"id": row["id"], "question": row["question"], "answer": answer})
    return kept, dropped


def main(source: str, target: str, sandbox: Sandbox | None = None) -> None:
    """Write the problems."""
    kept, dropped = asyncio.run(solved(Path(source), sandbox or Sandbox()))
    Path(target).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept), encoding="utf-8")
    print(f"{len(kept)} problems; left out: {dict(dropped) or 'none'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
