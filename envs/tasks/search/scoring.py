"""Exact match and F1 of answers, as in the official scripts of SQuAD and HotpotQA."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)
_CLOSED = ("yes", "no", "noanswer")


def normalize(text: str) -> str:
    """Return a text in lower case without punctuation, articles and extra spaces."""
    kept = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def exact(answer: str, golds: Sequence[str]) -> bool:
    """Return whether an answer equals one of the gold answers."""
    return any(normalize(answer) == normalize(gold) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """Return the best F1 of the words of an answer over the gold answers.

    As in HotpotQA's script, a yes or no must be equal: it shares no words with other answers.
    """
    return max(_f1(normalize(answer), normalize(gold)) for gold in golds)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _CLOSED or gold in _CLOSED):
        return 0.0
    words, expected = answer.split(), gold.split()
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected)) if common else 0.0


def mentions(text: str, golds: Sequence[str]) -> bool:
    """Return whether a text contains one of the gold answers as whole words."""
    inside = f" {normalize(text)} "
    return any(f" {gold} " in inside for gold in map(normalize, golds) if gold)
