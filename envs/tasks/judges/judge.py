"""The interface of judges, comparisons in both orders, and rankings."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from envs.tasks.judges.cache import VerdictCache
from envs.tasks.replies import EpisodeError

Answer = TypeVar("Answer")

CRITERIA = {
    "fairness": "how fairly it treats everyone involved",
    "coherence": "how well its parts fit together and follow from each other",
    "creativity": "how original and imaginative it is",
    "relevance": "how directly it addresses the request",
    "correctness": "whether its statements and its final result are right",
}
"""Descriptions of what a judge compares, by name."""


class BadVerdict(EpisodeError):
    """A judge answered something that is not a verdict."""

    reason = "judge_nonsense"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of comparing two texts.

    Attributes:
        p: Probability that the first text is better; ½ for a tie.
        flipped: Whether the answer changed with the order, which makes it a tie.
        failed: Number of answers that were not verdicts, 0 to 2. Without any verdict, the result is a tie.
        forward: Probability that the text shown first is better, when the first text was shown first; None if it failed
            or was not asked.
        backward: The same when the second text was shown first.
    """

    p: float
    flipped: bool = False
    failed: int = 0
    forward: float | None = None
    backward: float | None = None

    @classmethod
    def of(cls, forward: float | None, backward: float | None) -> Verdict:
        """Combine the answers in both orders."""
        sides = [x for x in (forward, None if backward is None else 1.0 - backward) if x is not None]
        flipped = len(sides) == 2 and (sides[0] - 0.5) * (sides[1] - 0.5) < 0
        p = 0.5 if flipped or not sides else sum(sides) / len(sides)
        return cls(p, flipped, 2 - len(sides), forward, backward)


class Judge:
    """Base class of judges; subclasses implement `prefer`.

    Args:
        name: Name of the judge, for reports.
        version: Changes whenever the same texts may get another verdict, such as the step of a checkpoint.
        cache: Answers that are already known.
    """

    symmetric = False
    """Whether the order of the texts cannot matter, so that one order is enough."""

    def __init__(self, name: str, version: str = "", cache: VerdictCache | None = None):
        self.name, self.version, self.cache = name, version, cache

    async def prefer(self, prompt: str, first: str, second: str, criterion: str) -> float:
        """Return the probability that the first text is better, as asked in this order.

        Raises:
            BadVerdict: The judge answered something else.
        """
        raise NotImplementedError

    async def compare(self, prompt: str, first: str, second: str, criterion: str = "correctness") -> Verdict:
        """Compare two texts in both orders.

        Equal texts are a tie, and an empty text is worse than any other; the judge is not asked about them.
        """
        check_criterion(criterion)
        if first.strip() == second.strip():
            return Verdict(0.5)
        if not first.strip() or not second.strip():
            return Verdict(float(bool(first.strip())))
        if self.symmetric:
            forward = await self._answer(prompt, first, second, criterion)
            return Verdict.of(forward, None if forward is None else 1.0 - forward)
        return Verdict.of(
            *await asyncio.gather(
                self._answer(prompt, first, second, criterion), self._answer(prompt, second, first, criterion)
            )
        )

    async def rank(self, prompt: str, texts: Sequence[str], criterion: str = "correctness") -> list[float]:
        """Return the mean probability of each text to be better than the others."""
        pairs = list(itertools.combinations(range(len(texts)), 2))
        verdicts = await asyncio.gather(*(self.compare(prompt, texts[i], texts[j], criterion) for i, j in pairs))
        wins = [0.0] * len(texts)
        for (i, j), verdict in zip(pairs, verdicts, strict=True):
            wins[i] += verdict.p
            wins[j] += 1.0 - verdict.p
        return [win / max(len(texts) - 1, 1) for win in wins] if len(texts) > 1 else [0.5] * len(texts)

    async def _answer(self, prompt: str, first: str, second: str, criterion: str) -> float | None:
        """Return the answer in one order, or None if it is not a verdict."""
        p = await self.known((criterion, prompt, first, second), lambda: self.prefer(prompt, first, second, criterion))
        return p if p is not None and 0.0 <= p <= 1.0 else None

    async def known(self, key: Sequence[str], ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Return a cached answer, or ask for it; None if it is not a verdict."""
        key = (self.name, self.version, *key)
        if self.cache is not None and (stored := self.cache.get(key)) is not None:
            return stored
        try:
            answer = await ask()
        except BadVerdict:
            return None
        if self.cache is not None:
            self.cache.put(key, answer)
        return answer


def check_criterion(criterion: str) -> None:
    """Raise a ValueError if a criterion does not exist."""
    if criterion not in CRITERIA:
        raise ValueError(f"criterion is {criterion!r}, but must be one of: {', '.join(CRITERIA)}")
