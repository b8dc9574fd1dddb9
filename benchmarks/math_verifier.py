r"""Accuracy and speed of the math verifier on gold answers and on hard pairs.

    MARL_JAX_DATA=../shared/data PYTHONPATH=. python benchmarks/math_verifier.py
    PYTHONPATH=. python benchmarks/math_verifier.py library      # the hard pairs with math-verify alone, for comparison

Each gold answer is verified against itself in the forms that models use: boxed unchanged; restyled (`\dfrac` for
`\frac`, `\left(` for `(`, spaces); lists also in reverse order; numbers also with thousands separators and a decimal
point. Prints the ids with a wrong verdict.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from envs.tasks.math import symbolic
from envs.tasks.math.reading import split
from envs.tasks.math.sources import SOURCES, problems
from envs.tasks.math.verifier import LIMIT, verify

EXCEPTIONS: dict[str, str] = {}
"""Ids with a gold answer that cannot be verified, with the reason."""

PAIRS = ("math_pairs_written.jsonl", "math_pairs_outside.jsonl", "math_pairs_generated.jsonl")


def ways(gold: str) -> list[str]:
    """Return an answer in the forms that models use."""
    restyled = re.sub(r"\\[dt]?frac(?![a-z])", r"\\dfrac", gold)
    restyled = re.sub(r"(?<!\\left)\((?=[^()]*,)", r"\\left(", restyled) if restyled.count("(") == 1 else restyled
    restyled = re.sub(r"(?<!\\right)\)$", r"\\right)", restyled) if r"\left(" in restyled else restyled
    styled = [gold, f" {restyled} "]
    number = gold.replace(",", "")
    if re.fullmatch(r"-?(0|[1-9]\d*|[1-9]\d{0,2}(,\d{3})+)", gold):
        styled += [f"{int(number):,}", f"{number}.0", f"{number}."]
    elif len(items := split(gold, ",")) > 1 and not re.search(r"\d,\\?!?\d{3}(?!\d)|and|\{[A-Z]|\\[,!]", gold):
        styled.append(", ".join(reversed(items)))
    return styled


def data_sets() -> tuple[int, list[tuple[str, str, str]]]:
    """Return the number of verified answers, and (id, text, reason) of the wrong verdicts."""
    wrong, total = [], 0
    for name, source in SOURCES.items():
        if name == "math500":
            continue  # the test split of math
        parts = ("train", "validation", "test") if source.train else ("test",)
        rows = [p for part in parts for p in problems(name, part)]
        start, before = time.process_time(), len(wrong)
        slowest = 0.0
        for problem in rows:
            for answer in ways(problem.answer):
                began = time.process_time()
                verdict = verify(problem.answer, f"We compute.\nThe answer is $\\boxed{{{answer}}}$. Done.")
                slowest = max(slowest, time.process_time() - began)
                total += 1
                if not verdict["right"] and problem.id not in EXCEPTIONS:
                    wrong.append((problem.id, answer, verdict["reason"]))
        seconds = time.process_time() - start
        bad = len(wrong) - before
        print(f"{name:14} {len(rows):6} gold answers, {bad} wrong, {seconds:5.1f} s, slowest {slowest:.2f} s of CPU")
    return total, wrong


def library(gold: str, text: str) -> bool:
    """Return the verdict of math-verify with its defaults, including a timeout of five seconds."""
    import math_verify

    if len(text) > 2000:
        return False  # its parser crashes on the most deeply nested ones
    return bool(math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(text)))


def pairs(judge: Callable[[str, str], bool]) -> bool:
    """Print counts per kind of the hard pairs and return whether they pass.

    They pass if there is no false positive and recall is at least 95 %.
    """
    folder = Path(__file__).resolve().parents[1] / "tests" / "envs" / "tasks"
    counts, slowest = Counter(), 0.0
    for file in PAIRS:
        for line in (folder / file).read_text().splitlines():
            pair = json.loads(line)
            began = time.process_time()
            right = judge(pair["gold"], pair["text"])
            slowest = max(slowest, time.process_time() - began)
            counts[pair["kind"], pair["right"], right] += 1
    print(f"\n{'kind':28} {'right':>6} {'found':>6} {'wrong':>6} {'false positives':>16}")
    totals = Counter()
    for kind in sorted({kind for kind, *_ in counts}):
        cells = {key: counts[kind, *key] for key in ((True, True), (True, False), (False, False), (False, True))}
        totals.update(cells)
        print(f"{kind:28} {cells[True, True] + cells[True, False]:6} {cells[True, True]:6} "
              f"{cells[False, False] + cells[False, True]:6} {cells[False, True]:16}")  # fmt: skip
    recall = totals[True, True] / (totals[True, True] + totals[True, False])
    print(f"all: {sum(totals.values())} pairs, recall {recall:.1%}, {totals[False, True]} false positives, "
          f"slowest {slowest:.2f} s of CPU, limit {LIMIT:g} s")  # fmt: skip
    return totals[False, True] == 0 and recall >= 0.95


def main() -> int:
    """Print all results and return the exit status."""
    if sys.argv[1:] == ["library"]:
        logging.disable(logging.CRITICAL)
        return 0 if pairs(library) else 1
    symbolic.warm_up()
    total, wrong = data_sets()
    for problem, answer, reason in wrong:
        print(f"  {problem}: {answer!r}: {reason}")
    print(f"{total} answers, {len(wrong)} wrong, {len(EXCEPTIONS)} exceptions")
    return 0 if pairs(lambda gold, text: verify(gold, text)["right"]) and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
