"""Citations in answers: `the river Esk [1][3]`, and their measures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from envs.tasks.search.scoring import mentions

_CITATION = re.compile(r"\[\s*(\d{1,6}(?:\s*,\s*\d{1,6})*)\s*\]")


class Cited(NamedTuple):
    """An answer and its citations.

    Attributes:
        answer: The answer without citations.
        numbers: Different numbers of cited passages, counted from 1.
    """

    answer: str
    numbers: tuple[int, ...]


def read_citations(text: str) -> Cited:
    """Separate an answer from its citations, such as `[2]` and `[1, 3]`."""
    numbers = [int(number) for group in _CITATION.findall(text) for number in group.split(",")]
    return Cited(" ".join(_CITATION.sub(" ", text).split()), tuple(dict.fromkeys(numbers)))


def measure(numbers: Sequence[int], passages: Sequence[str], golds: Sequence[str]) -> dict[str, float]:
    """Measure citations.

    Args:
        numbers: Numbers of cited passages.
        passages: Passages that the writer has seen; number 1 is the first one.
        golds: Gold answers.

    Returns:
        - `citations`: Number of citations.
        - `invented`: Number of citations of passages that do not exist.
        - `supported`: Share of citations whose passage contains a gold answer; 0 without citations.
    """
    real = [passages[n - 1] for n in numbers if 1 <= n <= len(passages)]
    supported = sum(mentions(passage, golds) for passage in real)
    return {
        "citations": float(len(numbers)),
        "invented": float(len(numbers) - len(real)),
        "supported": supported / len(numbers) if numbers else 0.0,
    }
