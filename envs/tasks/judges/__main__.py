"""Write pairs of completions, as a judge prefers them, and a report of the judge.

    python -m envs.tasks.judges runs/labels/labelled/train.jsonl pairs.jsonl                       # by their labels
    python -m envs.tasks.judges completions.jsonl pairs.jsonl --judge=http://127.0.0.1:8000/v1#judge

A line of the input has a prompt and its completions, as `--mode=label` writes them or in a short form:

    {"messages": [{"role": "user", "content": "2 + 2?"}], "answers": [{"text": "4", "right": true}, …]}
    {"prompt": "2 + 2?", "completions": ["4", "5"]}

Ties are left out. Labels, where the input has them, are the rule that the judge is compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envs.tasks.data import DataError, from_jsonl
from envs.tasks.judges.cache import VerdictCache
from envs.tasks.judges.judge import CRITERIA, Judge, Verdict
from envs.tasks.judges.kinds import ChatClient, LanguageJudge
from envs.tasks.judges.report import Comparison, report
from envs.tasks.scorer_client import ScorerError


class Candidate(NamedTuple):
    """A completion of a prompt, and whether it is right; None if that is unknown."""

    text: str
    right: bool | None


def candidates(row: Mapping[str, Any]) -> tuple[str, list[Candidate]] | None:
    """Return the prompt and the different completions of a line, or None for a header."""
    if "answers" in row:
        by_text = {answer["text"]: Candidate(answer["text"], bool(answer["right"])) for answer in row["answers"]}
        return row["messages"][-1]["content"], list(by_text.values())
    if "completions" in row:
        return row["prompt"], [Candidate(text, None) for text in dict.fromkeys(row["completions"])]
    if "format" in row:
        return None
    raise DataError(f"a line has {', '.join(row)}, but must have messages and answers, or prompt and completions")


async def compare_all(
    judge: Judge | None, rows: Sequence[Mapping[str, Any]], criterion: str, per_prompt: int
) -> tuple[list[dict[str, Any]], list[Comparison]]:
    """Compare the completions of every line.

    Args:
        judge: The judge; None for the labels.
        rows: Lines of the input.
        criterion: What the judge compares.
        per_prompt: Maximum number of pairs per line.

    Returns:
        Pairs as lines of a file, and all comparisons.
    """
    pairs: list[dict[str, Any]] = []
    comparisons: list[Comparison] = []
    for row in rows:
        if (question := candidates(row)) is None:
            continue
        prompt, answers = question
        for a, b in itertools.islice(_differing(answers, judge is None), per_prompt):
            truth = None if a.right is None or b.right is None else 0.5 + 0.5 * (a.right - b.right)
            verdict = await judge.compare(prompt, a.text, b.text, criterion) if judge else Verdict(truth or 0.0)
            comparisons.append(Comparison(a.text, b.text, verdict, truth))
            if verdict.p != 0.5:
                chosen, rejected = (a, b) if verdict.p > 0.5 else (b, a)
                pairs.append({"prompt": row.get("messages", prompt), "chosen": chosen.text, "rejected": rejected.text})
    return pairs, comparisons


def _differing(answers: Sequence[Candidate], by_labels: bool):
    """Yield pairs of non-empty completions, and only those with different labels if these decide."""
    for a, b in itertools.combinations([one for one in answers if one.text.strip()], 2):
        if not by_labels or (a.right is not None and a.right != b.right):
            yield a, b


def main(argv: Sequence[str]) -> int:
    """Write the pairs and a report, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m envs.tasks.judges", description=__doc__)
    parser.add_argument("completions", help="JSONL file of prompts with their completions")
    parser.add_argument("pairs", help="JSONL file to write")
    parser.add_argument("--judge", default="", help="endpoint URL#MODEL of a language model; by default the labels")
    parser.add_argument("--criterion", default="correctness", choices=CRITERIA, help="what the judge compares")
    parser.add_argument("--per_prompt", type=int, default=4, help="maximum number of pairs per prompt")
    parser.add_argument("--cache", default="", help="file of known answers; by default next to the pairs")
    given = parser.parse_args(argv)
    path, judge = Path(given.pairs), None
    try:
        if given.judge:
            cache = VerdictCache(given.cache or path.with_suffix(".verdicts.jsonl"))
            judge = LanguageJudge(ChatClient.parse(given.judge), name=given.judge, cache=cache)
        data = from_jsonl(given.completions)
        rows = [data[i] for i in range(len(data))]
        pairs, comparisons = asyncio.run(compare_all(judge, rows, given.criterion, given.per_prompt))
    except (DataError, ScorerError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    path.write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs), encoding="utf-8")
    lines = [f"{name:16} {value:.4g}" for name, value in report(comparisons).items()]
    sys.stdout.write("\n".join([f"wrote {len(pairs)} pairs to {path}", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
