"""Passages that the scripted searchers of the task `retrieval` bring.

    python -m benchmarks.searchers
    python -m benchmarks.searchers squad hotpotqa --k=5

A JSON line for each dataset has, for every searcher and the first request of every question, the share of questions for
which a passage mentions the answer (`mentioned`), and the mean number of passages.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence

from envs.tasks.retrieval.searchers import SEARCHERS, Request
from envs.tasks.search import scoring, sources


def measure(dataset: str, k: int) -> dict[str, dict[str, float]]:
    """Return the measures of every searcher on all questions of a dataset."""
    collection = sources.load(dataset)
    rows = [row for part in collection.splits.values() for row in part]
    measures = {}
    for name, searcher in SEARCHERS.items():
        requests = [Request(row["question"], row, collection, k, random.Random(row["id"])) for row in rows]
        brought = [searcher.bring(request)[0] for request in requests]
        texts = ["\n".join(f"{passage['title']} {passage['text']}" for passage in passages) for passages in brought]
        mentioned = [scoring.mentions(text, row["answers"]) for text, row in zip(texts, rows, strict=True)]
        measures[name] = {
            "mentioned": sum(mentioned) / len(rows),
            "passages": sum(map(len, brought)) / len(rows),
            "questions": len(rows),
        }
    return measures


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the measures of some datasets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("datasets", nargs="*", default=["squad", "hotpotqa"], help="Names of datasets")
    parser.add_argument("--k", type=int, default=3, help="Number of passages of a search")
    flags = parser.parse_args(arguments)
    for dataset in flags.datasets:
        sys.stdout.write(json.dumps({"dataset": dataset, "k": flags.k, "searchers": measure(dataset, flags.k)}) + "\n")


if __name__ == "__main__":
    main()
