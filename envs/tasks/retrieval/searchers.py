"""Scripted searchers, from helpful to misleading.

A searcher gets a request, at first the question itself, and brings passages of a collection with a note.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from envs.tasks.search.scoring import exact
from envs.tasks.search.sources import Collection

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Request:
    """The request that a searcher works on.

    Attributes:
        text: The question, or words that the writer searches for.
        row: The question with its answers.
        collection: All passages.
        k: Number of passages that a search returns.
        rng: Source of random choices.
    """

    text: str
    row: Row
    collection: Collection
    k: int
    rng: random.Random

    def search(self, query: str) -> list[Row]:
        """Return the best passages for a query."""
        return self.collection.search(query, self.k)


def _plain(request: Request) -> tuple[list[Row], str]:
    """Bring the best passages for the request."""
    return request.search(request.text), ""


def _helpful(request: Request) -> tuple[list[Row], str]:
    """Bring the best passages, and those that continue the first of them."""
    first = request.search(request.text)
    second = request.search(first[0]["text"]) if first else []
    return first + [row for row in second if row not in first], "The last passages continue the first one."


def _lazy(request: Request) -> tuple[list[Row], str]:
    """Bring one passage, for the longest word of the request only."""
    longest = max(request.text.split(), key=len, default="")
    return request.search(longest)[:1], "That is all there is."


def _distracting(request: Request) -> tuple[list[Row], str]:
    """Hide the best passage among those of other questions."""
    others = _others(request)
    shown = request.search(request.text)[:1]
    for row in request.rng.sample(others, min(2, len(others))):
        shown += [passage for passage in request.search(row["question"])[:2] if passage not in shown]
    request.rng.shuffle(shown)
    return shown, ""


def _misleading(request: Request) -> tuple[list[Row], str]:
    """Bring the best passages with a wrong answer, that of a similar question."""
    shown, golds = request.search(request.text), request.row["answers"]
    wrong = [row["answers"][0] for row in _others(request) if not exact(row["answers"][0], golds)]
    return shown, f"I am certain that the answer is {request.rng.choice(wrong)}." if wrong else ""


def _others(request: Request) -> Sequence[Row]:
    """Return other train questions, preferably with the same first word."""
    rows = [row for row in request.collection.splits["train"] if row["id"] != request.row["id"]]
    same = [row for row in rows if row["question"].split()[:1] == request.row["question"].split()[:1]]
    return same or rows


@dataclasses.dataclass(frozen=True)
class Searcher:
    """A searcher.

    Attributes:
        bring: Returns passages and a note for a request.
        prompt: Instruction for a language model that plays this searcher.
    """

    bring: Callable[[Request], tuple[list[Row], str]]
    prompt: str


SEARCHERS = {
    "helpful": Searcher(_helpful, "Help the writer to find the answer."),
    "plain": Searcher(_plain, "Search for what the writer wants and write no note."),
    "lazy": Searcher(_lazy, "Search for a single word only."),
    "distracting": Searcher(_distracting, "Search for passages about something else."),
    "misleading": Searcher(_misleading, "Recommend a wrong answer in your note."),
}
