"""Collections of passages with questions: SQuAD, HotpotQA, the built-in sample and your own files.

Every question is {id, question, answers, support}, where `support` lists the titles of the passages with the answer.
All splits search the same passages; no question, and in SQuAD no article, is in two splits. Files are searched in the
folder $MARL_JAX_DATA; if they are missing, the built-in sample is used, with a warning in the log.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable
from typing import Any

from envs.tasks.data import DataError, Dataset, check_fields, find, from_jsonl, from_list, make_splits, open_dataset
from envs.tasks.data.places import ROOT, warn_of_sample
from envs.tasks.search import sample
from envs.tasks.search.index import Index

SAMPLE = "sample"
FILES = {"hotpotqa": ("hotpotqa_distractor", "hotpotqa_distractor100"), "squad": ("squad_val", "squad_val1000")}
"""Names of the file of each dataset; the first that exists is read."""

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Collection:
    """Questions by split, and the passages that contain the answers.

    Attributes:
        splits: Questions by split.
        passages: Passages {title, text}.
        index: Index of titles and texts, in the order of the passages.
    """

    splits: dict[str, Dataset]
    passages: list[Row]
    index: Index

    def search(self, query: str, k: int) -> list[Row]:
        """Return at most `k` passages for a query, the best first."""
        return [self.passages[i] for i, _ in self.index.search(query, k)]


def check_name(dataset: str, passages: str) -> None:
    """Raise a ValueError if the dataset is unknown, or its passages are missing."""
    own = dataset.endswith((".jsonl", ".jsonl.gz", ".jsonl.xz"))
    if dataset not in FILES and dataset != SAMPLE and not own:
        known = ", ".join([*FILES, SAMPLE])
        raise ValueError(f"dataset is {dataset!r}, but must be one of: {known}, or a .jsonl file (docs/search.md)")
    if own != bool(passages):
        raise ValueError(f"passages is {passages!r}, but must be a .jsonl file if dataset is one, and otherwise ''")


def load(dataset: str, passages: str = "") -> Collection:
    """Return a collection."""
    check_name(dataset, passages)
    return _load(dataset, passages, os.environ.get(ROOT, ""))


@functools.lru_cache(maxsize=4)
def _load(dataset: str, passages: str, root: str) -> Collection:
    if dataset == SAMPLE:
        texts, parts = sample.collection()
        return _collection({part: from_list(rows, f"sample ({part})") for part, rows in parts.items()}, texts)
    if dataset not in FILES:
        return _own(dataset, passages)
    path = next((path for name in FILES[dataset] if (path := find(name)) is not None), None)
    if path is None:
        warn_of_sample(dataset, FILES[dataset][:1])
        return _load(SAMPLE, "", root)
    rows, texts, seen = [], [], set()
    for row, of_row in (_squad if dataset == "squad" else _hotpotqa)(from_jsonl(path)):
        rows.append(row)
        for title, text in of_row:
            if (title, text) not in seen:
                seen.add((title, text))
                texts.append({"title": title, "text": text})
    # The questions of an article stay together. HotpotQA has no articles that belong to one question.
    key = (lambda row: row["support"]) if dataset == "squad" else "id"
    return _collection(make_splits(from_list(rows, dataset), key=key), texts)


def _collection(splits: dict[str, Dataset], passages: list[Row]) -> Collection:
    return Collection(splits, passages, Index([f"{row['title']}\n{row['text']}" for row in passages]))


def _squad(rows: Iterable[Row]):
    for row in rows:
        answers = row["answers"]["text"] if isinstance(row["answers"], dict) else row["answers"]
        title = row["title"].replace("_", " ")
        made = {"id": row["id"], "question": row["question"], "answers": sorted(set(answers)), "support": [title]}
        yield made, [(title, row["context"])]


def _hotpotqa(rows: Iterable[Row]):
    for row in rows:
        context, facts = row["context"], row["supporting_facts"]
        if isinstance(context, dict):  # as on the Hub
            context = zip(context["title"], context["sentences"], strict=True)
            facts = zip(facts["title"], facts["sent_id"], strict=True)
        support = list(dict.fromkeys(title for title, _ in facts))
        made = {"id": row["id"], "question": row["question"], "answers": [row["answer"]], "support": support}
        yield made, [(title, "".join(sentences)) for title, sentences in context]


def _own(dataset: str, passages: str) -> Collection:
    questions, texts = open_dataset(dataset, "train"), open_dataset(passages, "train")
    check_fields(questions, required=("id", "question", "answers"), filled=("id", "question", "answers"))
    check_fields(texts, required=("title", "text"), filled=("text",))
    rows = []
    for i in range(len(questions)):
        row = questions.row(i)
        answers = [row["answers"]] if isinstance(row["answers"], str) else row["answers"]
        if not all(isinstance(answer, str) and answer.strip() for answer in answers):
            raise DataError(f"{questions.where(i)}: answers is {answers!r}, but must be a list of strings")
        rows.append(
            {"id": str(row["id"]), "question": row["question"], "answers": answers, "support": row.get("support") or []}
        )
    return _collection(make_splits(from_list(rows, dataset), key="id"), list(texts))
