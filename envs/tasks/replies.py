"""Replies of policies in an episode, their rewards, and the errors that end an episode."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NotRequired, TypedDict


class EpisodeError(Exception):
    """Ends an episode, not the run; `reason` is the name under which such episodes are counted."""

    reason = "error"


class TaskError(EpisodeError):
    """The task used a chat or a reply in a way that has no meaning."""

    reason = "misuse"


class ChatFull(EpisodeError):
    """The conversation leaves no room for another answer."""

    reason = "too_long"


class CallTimeout(EpisodeError):
    """A call of `ask.verify` or `ask.record` ran into its time limit."""

    reason = "call_timeout"


class CallFailed(EpisodeError):
    """A call of `ask.verify` or `ask.record` raised; the message has the type and the text of the error."""

    reason = "call_failed"


@dataclasses.dataclass
class Rewards:
    """Rewards of one reply: `team` for every seat, `agent` and `process` for the seat that replied."""

    team: float = 0.0
    agent: float = 0.0
    process: float = 0.0


class Verdict(TypedDict):
    """What a verifier says of one reply, a JSON value: how right it is, the answer that was read in it, and why.

    Where a model has judged it as well, `score` is how likely that thinks it right.
    """

    right: float
    answer: str | None
    reason: str
    score: NotRequired[float]


class Reply:
    """One answer of a seat.

    text     without the token that ended it and without other special tokens
    tokens   the ids as they were sampled
    finish   "stop", or "length" where the budget ended it
    rewards  what `reward` has added up
    verdict  what `judge` said of it, or None
    """

    def __init__(self, text: str, tokens: Sequence[int] = (), finish: str = "stop"):
        self._text, self._tokens, self._finish = text, tuple(tokens), finish
        self.rewards = Rewards()
        self.verdict: Verdict | None = None

    @property
    def text(self) -> str:
        return self._text

    @property
    def tokens(self) -> tuple[int, ...]:
        return self._tokens

    @property
    def finish(self) -> str:
        return self._finish

    @property
    def replies(self) -> tuple[Reply, ...]:
        """The candidates, of which this reply is the only one."""
        return (self,)

    def reward(self, *, team: float = 0.0, agent: float = 0.0, process: float = 0.0) -> None:
        """Adds to the rewards of this reply; all of them are finite numbers."""
        for level, amount in (("team", team), ("agent", agent), ("process", process)):
            if isinstance(amount, str) or not math.isfinite(amount):
                raise TaskError(f"reward({level}={amount!r}): expected a finite number")
            setattr(self.rewards, level, getattr(self.rewards, level) + float(amount))

    def judge(self, right: float, answer: str | None = None, reason: str = "", score: float | None = None) -> None:
        """Notes how good this reply is by itself, for evaluations; it pays nothing.

        right   0 to 1; a bool will do
        answer  what was read in the text; None where nothing could be read
        reason  why it is right or wrong, in a few words
        score   how likely a model thinks it right; None where none was asked
        """
        self.verdict = Verdict(right=float(right), answer=None if answer is None else str(answer), reason=reason)
        if score is not None:
            self.verdict["score"] = float(score)

    def __repr__(self) -> str:
        return f"Reply({self.text!r}, finish={self.finish!r})"


class Candidates(Reply):
    """The reply to `say(…, n=K)`: the K candidates in `replies`; after `chat.keep(k)` it reads as the k-th of them."""

    def __init__(self, replies: Sequence[Reply]):
        self._replies = tuple(replies)
        self.kept: Reply | None = None

    @property
    def replies(self) -> tuple[Reply, ...]:
        return self._replies

    @property
    def text(self) -> str:
        return self._chosen("text").text

    @property
    def tokens(self) -> tuple[int, ...]:
        return self._chosen("tokens").tokens

    @property
    def finish(self) -> str:
        return self._chosen("finish").finish

    @property
    def rewards(self) -> Rewards:
        return self._chosen("rewards").rewards

    def reward(self, **levels: float) -> None:
        """Adds to the rewards of the candidate that was kept."""
        self._chosen("reward").reward(**levels)

    @property
    def verdict(self) -> Verdict | None:
        return self._chosen("verdict").verdict

    def judge(self, right: float, answer: str | None = None, reason: str = "", score: float | None = None) -> None:
        """Notes how good the candidate is that was kept."""
        self._chosen("judge").judge(right, answer, reason, score)

    def _chosen(self, what: str) -> Reply:
        if self.kept is None:
            raise TaskError(
                f"{what} of a reply with {len(self._replies)} candidates: take one of reply.replies, or call "
                "chat.keep(k) first"
            )
        return self.kept

    def __repr__(self) -> str:
        return f"Candidates({list(self._replies)!r})"
