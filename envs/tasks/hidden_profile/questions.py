"""Hidden-profile questions: the best option follows from all facts, but from no seat's facts.

Each fact is an advantage of one option, and the option with the most advantages is the answer. In its view, every seat
holds V + 1 advantages of one wrong option, the lure, and V advantages of each other option. Those of the lure and of
the other wrong options are the same for all seats. Of the answer, U are held by this seat alone and V - U are shared.
With n seats the answer thus has V + (n - 1) U advantages in total, which is more than V + 1.

- The shared facts favour the lure, which is wrong. So does each seat's view.
- All options but the lure look alike in a seat's view. Exchanging the answer with another of them gives a question that
  the generator draws with the same probability and that has the same view (`with_answer`). So the best guess from one
  view is right with probability 1 / (options - 1), and the most common advantage is never right.

Advantages are single words that occur once in a question, so a message mentions a fact if it has the word.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envs.tasks.data import Dataset, from_list, make_splits
from envs.tasks.task import SPLITS

Question = Mapping[str, Any]
"""A row: `key`, `topic`, `options`, `answer`, `lure`, and `views`, the [option, advantage] pairs of each seat."""
Fact = tuple[str, str]

LETTERS = "ABCDEF"
_LINE = re.compile(r"^\W*([A-F])\W*:(.*)$", re.MULTILINE | re.IGNORECASE)
TOPICS = {
    "flat": (
        "balcony cellar garden lift garage fireplace terrace parquet alarm sauna bathtub pantry shutters attic carport "
        "skylight dishwasher wardrobe intercom playground courtyard workshop laundry insulation solar awning pool gym "
        "library veranda freezer curtains bicycle hammock fountain orchard"
    ),
    "hotel": (
        "breakfast beach shuttle spa casino minibar kitchenette babysitter marina tennis golf bakery bar bookshop "
        "concierge pharmacy jacuzzi karaoke museum nightclub observatory piano rooftop sailing snorkelling theatre "
        "trampoline view waterslide yoga zoo archery bowling cinema diving aquarium"
    ),
    "site": (
        "harbour railway motorway airport bridge tunnel canal quarry warehouse sawmill refinery laboratory university "
        "hospital stadium market bank depot reservoir windmill forest vineyard lighthouse crane foundry dairy brewery "
        "tannery archive courthouse consulate embassy barracks greenhouse nursery observatory"
    ),
}  # fmt: skip
"""Advantages by kind of option."""


def draw(rng: random.Random, seats: int, options: int) -> Question:
    """Draw a question."""
    letters = list(LETTERS[:options])
    topic = rng.choice(list(TOPICS))
    words = iter(rng.sample(TOPICS[topic].split(), len(TOPICS[topic].split())))
    lure, answer, *others = rng.sample(letters, options)
    held, own = rng.choice(((2, 2), (3, 2), (3, 3)))

    def take(option: str, n: int) -> list[Fact]:
        return [(option, next(words)) for _ in range(n)]

    shared = take(lure, held + 1) + [fact for other in others for fact in take(other, held)]
    shared += take(answer, held - own)
    return _question(rng, topic, letters, answer, lure, [shared + take(answer, own) for _ in range(seats)])


def _question(
    rng: random.Random, topic: str, letters: list[str], answer: str, lure: str, views: Sequence[Sequence[Fact]]
) -> Question:
    """Return a question with the facts of each seat in random order."""
    by_option = sorted(sorted(word for o, word in {f for v in views for f in v} if o == option) for option in letters)
    key = hashlib.sha256(json.dumps(by_option).encode()).hexdigest()[:16]
    shuffled = [[list(fact) for fact in rng.sample(list(view), len(view))] for view in views]
    return {"key": key, "topic": topic, "options": letters, "answer": answer, "lure": lure, "views": shuffled}


def with_answer(question: Question, seat: int, answer: str) -> Question:
    """Return a question with another answer that looks the same to a seat.

    Args:
        question: The question.
        seat: Seat whose view stays the same.
        answer: Any option but the lure.
    """
    old = question["answer"]
    swap = {old: answer, answer: old}
    views = [
        [fact if fact in question["views"][seat] else [swap.get(fact[0], fact[0]), fact[1]] for fact in view]
        for view in question["views"]
    ]
    if answer != old:  # the shared and private advantages of the two options change places
        ours = [fact for fact in question["views"][seat] if fact[0] == answer]
        before = [fact for fact in question["views"][seat] if fact[0] == old]
        private = [fact for fact in before if is_private(question, fact)]
        given = ours[: len(private)]
        for number, view in enumerate(views):
            if number != seat:
                view[:] = [fact for fact in view if fact not in given]
                view += private
    return {**question, "answer": answer, "views": views}


def is_private(question: Question, fact: Sequence[str]) -> bool:
    """Return whether only one seat holds a fact."""
    return sum(list(fact) in [list(one) for one in view] for view in question["views"]) == 1


def counts(facts: Iterable[Sequence[str]]) -> Counter[str]:
    """Return the number of different advantages of each option."""
    return Counter(option for option, _ in {tuple(fact) for fact in facts})


def favourites(facts: Iterable[Sequence[str]]) -> list[str]:
    """Return the options with the most advantages, several for a tie."""
    number = counts(facts)
    return sorted(option for option, n in number.items() if n == max(number.values()))


def everything(question: Question) -> list[list[str]]:
    """Return all facts once, in the order of the seats."""
    return [list(fact) for fact in dict.fromkeys(tuple(fact) for view in question["views"] for fact in view)]


def shared(question: Question) -> list[list[str]]:
    """Return the facts that all seats hold."""
    return [fact for fact in everything(question) if all(fact in view for view in question["views"])]


def unshared(question: Question, seat: int) -> list[list[str]]:
    """Return the facts that only one seat holds."""
    return [fact for fact in question["views"][seat] if is_private(question, fact)]


def mentioned(facts: Sequence[Sequence[str]], text: str) -> list[Sequence[str]]:
    """Return the facts whose advantage occurs as a word in a text, in any case."""
    words = set(re.findall(r"\w+", text.lower()))
    return [fact for fact in facts if fact[1] in words]


def listed(question: Question, text: str) -> set[Fact]:
    """Return the advantages in an answer's lines, such as `A: red, old = 2`.

    If several lines begin with an option, the last one counts.
    """
    known = set(TOPICS[question["topic"]].split())
    lines = {match[1].upper(): match[2] for match in _LINE.finditer(text)}
    return {
        (option, word) for option, line in lines.items() for word in re.findall(r"\w+", line.lower()) if word in known
    }


def pooled(question: Question, seat: int, text: str) -> float:
    """Return how well an answer's lists combine a seat's facts with those of the others.

    This is the share of the facts that the seat does not hold that are listed, times the share of listed advantages
    that are facts.
    """
    facts, held = {(o, word) for o, word in everything(question)}, {(o, word) for o, word in question["views"][seat]}
    given = listed(question, text)
    return len(given & (facts - held)) / len(facts - held) * len(given & facts) / max(len(given), 1)


@functools.lru_cache(maxsize=16)
def splits(seats: int, options: int, seed: int, n_train: int, n_validation: int, n_test: int) -> dict[str, Dataset]:
    """Return the train, validation and test questions, which have different facts.

    Args:
        seats: Number of seats, 2 to 4.
        options: Number of options, 3 to 6.
        seed: Random seed.
        n_train: Number of train questions.
        n_validation: Number of validation questions.
        n_test: Number of test questions.
    """
    rng, seen = random.Random(f"hidden profile {seed} {seats} {options}"), set()
    parts = {}
    for part, n in zip(SPLITS, (n_train, n_validation, n_test), strict=True):
        rows = []
        while len(rows) < n:
            question = draw(rng, seats, options)
            if question["key"] not in seen:
                seen.add(question["key"])
                rows.append(question)
        parts[part] = from_list(rows, f"hidden profiles, seed {seed} ({part})")
    return make_splits(**parts, key="key")
