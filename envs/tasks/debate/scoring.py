"""Where the scores of answers come from: the known answer, or a verifier behind the protocol `Scorer`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from envs.tasks.replies import EpisodeError, TaskError
from envs.tasks.task import Ask

GOLD = "gold"
URLS = ("http://", "https://")

Chats = list[list[dict[str, str]]]
"""Conversations as lists of {"role", "content"}; each ends with the answer to be scored."""


@runtime_checkable
class Scorer(Protocol):
    """A verifier: how likely each answer is right."""

    async def score(self, chats: Chats) -> list[float]:
        """A number from 0 to 1 for each conversation's last answer."""
        ...


class ScoreMissing(EpisodeError):
    """A verifier gave no usable scores; it costs the episode."""

    reason = "score_missing"


def check_scorer(scorer: Any) -> None:
    """Refuses what is no scorer."""
    if isinstance(scorer, str) and (scorer == GOLD or scorer.startswith(URLS)):
        return
    if isinstance(scorer, str) or not isinstance(scorer, Scorer):
        raise ValueError(f"scorer is {scorer!r}; accepted: {GOLD!r}, or the http:// or https:// address of a verifier")


def make_scorer(scorer: str | Scorer, version: str, limit: float) -> Scorer | None:
    """The verifier of a task's `scorer`; None where the known answer scores.

    version  that a server must have; "" is any
    limit    seconds in which it must have answered
    """
    check_scorer(scorer)
    if scorer == GOLD:
        return None
    if not isinstance(scorer, str):
        return scorer
    from envs.tasks.scorer_client import ScorerClient

    # Its own error, which says more than that time is up, comes first.
    return ScorerClient(scorer, version=version, deadline=0.9 * limit)


async def ask_scores(ask: Ask, scorer: Scorer, name: str, chats: Chats, limit: float) -> list[float]:
    """The scores of some answers, written down under `name`. Raises `ScoreMissing`."""
    try:
        found = await ask.record(name, scorer.score(chats), limit=limit)
    except TaskError:
        raise
    except EpisodeError as error:
        raise ScoreMissing(f"{name}: {error}") from error
    if problem := _problem(found, len(chats)):
        raise ScoreMissing(f"{name}: {problem}")
    return [float(score) for score in found]


def _problem(found: Any, n: int) -> str | None:
    """What is wrong with an answer of a verifier, or None."""
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != n:
        return f"the verifier returned {found!r:.80}; expected a list of {n} numbers"
    for score in found:
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            return f"the verifier returned the score {score!r:.80}; expected a number"
        if not 0 <= score <= 1:
            return f"the verifier returned the score {score!r:.80}; expected 0 to 1"
    return None
