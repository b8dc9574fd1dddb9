"""Write pairs of completions, as a judge prefers them, and a report of the judge.

    python -m envs.tasks.judges runs/labels/labelled/train.jsonl pairs.jsonl                       # by their labels
    python -m envs.tasks.judges completions.jsonl pairs.jsonl --judge=http://127.0.0.1:8000/v1#judge
    python -m envs.tasks.judges base=runs/a/answers/test_00000000.jsonl,new=runs/b/answers/test_00000060.jsonl \
        pairs.jsonl --judge=http://127.0.0.1:8000/v1#judge --author=base --report=report.json

A line of the input has a prompt and its completions, as `--mode=label` or `--mode=eval` writes them or in a short form,
where `scores` and `authors` may be missing:

    {"messages": [{"role": "user", "content": "2 + 2?"}], "answers": [{"text": "4", "right": true}, …]}
    {"prompt": "2 + 2?", "completions": ["4", "5"], "scores": [1.0, 0.0], "authors": ["mine", "yours"]}

Several files are separated by commas, each optionally after `AUTHOR=`. Episodes of `--mode=eval` with the same example
are compared; the completion is everything that the first role wrote. If there are several authors, only completions of
different authors are compared.

Ties are left out. Labels and scores, where the input has them, are the rule that the judge is compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envs.tasks.data import DataError, from_jsonl
from envs.tasks.judges.cache import VerdictCache
from envs.tasks.judges.judge import CRITERIA, Judge, Verdict
from envs.tasks.judges.kinds import ChatClient, LanguageJudge
from envs.tasks.judges.report import Comparison, preferences, report
from envs.tasks.scorer_client import ScorerError

_SOURCE = re.compile(r"(?:([\w.-]+)=)?(.*)", re.DOTALL)
_SPECIAL = re.compile(r"<\|[^|<>]*\|>")


class Candidate(NamedTuple):
    """A completion of a prompt.

    Attributes:
        text: The completion.
        score: Its score by the rule; None if that is unknown.
        author: Its author, or "".
    """

    text: str
    score: float | None = None
    author: str = ""


def candidates(row: Mapping[str, Any]) -> tuple[str, list[Candidate]] | None:
    """Return the prompt and the different completions of a line, or None for a header."""
    if "answers" in row:
        several = [Candidate(answer["text"], float(answer["right"])) for answer in row["answers"]]
        prompt = row["messages"][-1]["content"]
    elif "completions" in row:
        texts = row["completions"]
        columns = [row.get("scores", [None] * len(texts)), row.get("authors", [""] * len(texts))]
        if any(len(column) != len(texts) for column in columns):
            raise DataError(f"a line has {len(texts)} completions, but must have as many scores and authors")
        several, prompt = [Candidate(*one) for one in zip(texts, *columns, strict=True)], row["prompt"]
    elif "format" in row:
        return None
    else:
        raise DataError(f"a line has {', '.join(row)}, but must have messages and answers, or prompt and completions")
    return prompt, list({(one.text, one.author): one for one in several}.values())


def read_rows(sources: str) -> list[Mapping[str, Any]]:
    """Read files separated by commas, each optionally after `AUTHOR=`; episodes are grouped by example."""
    rows: list[Mapping[str, Any]] = []
    examples: dict[str, dict[str, Any]] = {}
    for source in sources.split(","):
        author, path = _SOURCE.findall(source)[0]
        data = from_jsonl(path)
        for row in (data[i] for i in range(len(data))):
            if "turns" not in row:
                rows.append(row)
            elif row["turns"] and not row["failed"]:
                _add_episode(examples, row, author)
    return [*rows, *examples.values()]


def _add_episode(examples: dict[str, dict[str, Any]], episode: Mapping[str, Any], author: str) -> None:
    """Add the completions of the first role of an episode to its example."""
    first = episode["turns"][0]
    empty = {"id": episode["id"], "completions": [], "scores": [], "authors": []}
    prompt = " ".join(_SPECIAL.sub("\n", first["prompt"]).split())
    example = examples.setdefault(episode["id"], {"prompt": prompt, **empty})
    own = [turn["text"] for turn in episode["turns"] if turn["role"] == first["role"]]
    for name, value in (("completions", "\n".join(own)), ("scores", episode["success"]), ("authors", author)):
        example[name].append(value)


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
    wanted: list[tuple[Mapping[str, Any], str, Candidate, Candidate]] = []
    for row in rows:
        if (question := candidates(row)) is not None:
            prompt, answers = question
            differing = itertools.islice(_differing(answers, judge is None), per_prompt)
            wanted += [(row, prompt, a, b) for a, b in differing]
    truths = [_truth(a, b) for _, _, a, b in wanted]
    if judge is None:
        verdicts = [Verdict(truth or 0.0) for truth in truths]
    else:  # concurrently; the client limits its connections
        verdicts = await asyncio.gather(
            *(judge.compare(prompt, a.text, b.text, criterion) for _, prompt, a, b in wanted)
        )
    pairs: list[dict[str, Any]] = []
    comparisons: list[Comparison] = []
    for (row, prompt, a, b), verdict, truth in zip(wanted, verdicts, truths, strict=True):
        comparisons.append(Comparison(a.text, b.text, verdict, truth, a.author, b.author, row.get("id", "")))
        if verdict.p != 0.5 and a.text.strip() and b.text.strip():
            chosen, rejected = (a, b) if verdict.p > 0.5 else (b, a)
            pairs.append({"prompt": row.get("messages", prompt), "chosen": chosen.text, "rejected": rejected.text})
    return pairs, comparisons


def _truth(a: Candidate, b: Candidate) -> float | None:
    """Return the probability that the first completion is better according to the rule."""
    if a.score is None or b.score is None:
        return None
    return 0.5 + 0.5 * ((a.score > b.score) - (a.score < b.score))


def _differing(answers: Sequence[Candidate], by_labels: bool):
    """Yield pairs of completions with different authors, and with different scores if these decide.

    With one author, empty completions are left out. With several, an empty completion loses against any other.
    """
    several = len({one.author for one in answers}) > 1
    for a, b in itertools.combinations([one for one in answers if several or one.text.strip()], 2):
        if several and a.author == b.author:
            continue
        if not by_labels or (a.score is not None and b.score is not None and a.score != b.score):
            yield a, b


def main(argv: Sequence[str]) -> int:
    """Write the pairs and a report, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m envs.tasks.judges", description=__doc__)
    parser.add_argument("completions", help="JSONL files of prompts with their completions, [AUTHOR=]FILE,…")
    parser.add_argument("pairs", help="JSONL file to write")
    parser.add_argument("--judge", default="", help="endpoint URL#MODEL of a language model; by default the labels")
    parser.add_argument("--criterion", default="correctness", choices=CRITERIA, help="what the judge compares")
    parser.add_argument("--per_prompt", type=int, default=4, help="maximum number of pairs per prompt")
    parser.add_argument("--author", default="", help="name of the judge among the authors, for its self-preference")
    parser.add_argument("--report", default="", help="JSON file to write with the report and all preferences")
    parser.add_argument("--max_tokens", type=int, default=64, help="maximum number of tokens of a judge's reply")
    parser.add_argument("--deadline", type=float, default=60.0, help="time limit of a request to the judge in seconds")
    parser.add_argument("--cache", default="", help="file of known answers; by default next to the pairs")
    given = parser.parse_args(argv)
    path, judge = Path(given.pairs), None
    try:
        if given.judge:
            cache = VerdictCache(given.cache or path.with_suffix(".verdicts.jsonl"))
            client = ChatClient.parse(given.judge, max_tokens=given.max_tokens, deadline=given.deadline)
            judge = LanguageJudge(client, name=given.judge, cache=cache)
        rows = read_rows(given.completions)
        pairs, comparisons = asyncio.run(compare_all(judge, rows, given.criterion, given.per_prompt))
    except (ScorerError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    path.write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs), encoding="utf-8")
    measured = report(comparisons, given.author)
    if given.report:
        content = {"judge": given.judge, "report": measured, "preferences": preferences(comparisons)}
        Path(given.report).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = [f"{name:16} {value:.4g}" for name, value in measured.items()]
    sys.stdout.write("\n".join([f"wrote {len(pairs)} pairs to {path}", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
