"""Scores of answers, from the known answer or from a verifier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from envs.tasks.replies import EpisodeError, TaskError
from envs.tasks.task import Ask

GOLD = "gold"
URLS = ("http://", "https://")

Chats = list[list[dict[str, str]]]
"""Conversations as lists of {"role", "content"}; each ends with the answer to score."""


@runtime_checkable
class Scorer(Protocol):
    """A verifier, which estimates how likely each answer is right."""

    async def score(self, chats: Chats) -> list[float]:
        """Return a number from 0 to 1 for the last message of each conversation."""
        ...


class ScoreMissing(EpisodeError):
    """A verifier returned no usable scores."""

    reason = "score_missing"


def check_scorer(scorer: Any) -> None:
    """Raise a ValueError if `scorer` is not a scorer."""
    if isinstance(scorer, str) and (scorer == GOLD or scorer.startswith(URLS)):
        return
    if isinstance(scorer, str) or not isinstance(scorer, Scorer):
        raise ValueError(f"scorer is {scorer!r}, but must be {GOLD!r} or the http:// or https:// address of a verifier")


def make_scorer(scorer: str | Scorer, version: str, limit: float) -> Scorer | None:
    """Create the verifier of a task, or return None for the known answer.

    Args:
        scorer: The task's setting.
        version: Version that a server must have; "" accepts any.
        limit: Time limit in seconds.
    """
    check_scorer(scorer)
    if scorer == GOLD:
        return None
    if not isinstance(scorer, str):
        return scorer
    from envs.tasks.scorer_client import ScorerClient

    # The client's own error is more informative than a timeout, so its deadline is earlier.
    return ScorerClient(scorer, version=version, deadline=0.9 * limit)


async def ask_scores(ask: Ask, scorer: Scorer, name: str, chats: Chats, limit: float) -> list[float]:
    """Return the scores of some answers and record them under `name`.

    Raises:
        ScoreMissing: The verifier returned no usable scores.
    """
    try:
        scores = await ask.record(name, scorer.score(chats), limit=limit)
    except TaskError:
        raise
    except EpisodeError as error:
        raise ScoreMissing(f"{name}: {error}") from error
    if problem := _problem(scores, len(chats)):
        raise ScoreMissing(f"{name}: {problem}")
    return [float(score) for score in scores]


def _problem(scores: Any, n: int) -> str | None:
    """Return a description of the first problem with a verifier's response, or None."""
    if not isinstance(scores, Sequence) or isinstance(scores, str) or len(scores) != n:
        return f"the verifier returned {scores!r:.80}, but must return a list of {n} numbers"
    for score in scores:
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            return f"the verifier returned the score {score!r:.80}, but must return numbers"
        if not 0 <= score <= 1:
            return f"the verifier returned the score {score!r:.80}, but scores must be 0 to 1"
    return None
