"""Replies of policies in an episode, their rewards, and errors that end an episode."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NotRequired, TypedDict


class EpisodeError(Exception):
    """An error that ends an episode, but not the run.

    Attributes:
        reason: Name under which such episodes are counted.
    """

    reason = "error"


class TaskError(EpisodeError):
    """A task used a chat or a reply incorrectly."""

    reason = "misuse"


class ChatFull(EpisodeError):
    """The conversation has no room for another reply."""

    reason = "too_long"


class CallTimeout(EpisodeError):
    """A call of `ask.verify` or `ask.record` exceeded its time limit."""

    reason = "call_timeout"


class CallFailed(EpisodeError):
    """A call of `ask.verify` or `ask.record` raised an error, which the message describes."""

    reason = "call_failed"


MAX_REWARD = 1e9
"""Largest magnitude of a reward: the learner sums and squares rewards in float32."""


@dataclasses.dataclass
class Rewards:
    """Rewards of one reply.

    Attributes:
        team: Reward of every seat.
        agent: Reward of the seat that replied.
        process: Process reward of the seat that replied.
    """

    team: float = 0.0
    agent: float = 0.0
    process: float = 0.0


class Verdict(TypedDict):
    """A verifier's judgement of one reply, as a JSON value.

    Attributes:
        right: Correctness from 0 to 1.
        answer: The answer that was read from the reply, or None.
        reason: Short explanation.
        score: Probability of being correct, if a model judged the reply as well.
    """

    right: float
    answer: str | None
    reason: str
    score: NotRequired[float]


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A tool call in a reply.

    Attributes:
        name: Name of the tool, or "" if it cannot be read.
        arguments: Arguments as a JSON object. If they cannot be read, the text that the model wrote.
        problem: Reason why the call cannot be read, or "".
    """

    name: str
    arguments: str
    problem: str = ""


class Reply:
    """One completion of a seat.

    Attributes:
        rewards: Sum of the amounts given to `reward`.
        verdict: Judgement given to `judge`, or None.
    """

    def __init__(
        self, text: str, tokens: Sequence[int] = (), finish: str = "stop", calls: Sequence[ToolCall] = ()
    ):  # fmt: skip
        self._text, self._tokens, self._finish, self._calls = text, tuple(tokens), finish, tuple(calls)
        self.rewards = Rewards()
        self.verdict: Verdict | None = None

    @property
    def text(self) -> str:
        """Text without the end token and other special tokens."""
        return self._text

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids as they were sampled."""
        return self._tokens

    @property
    def finish(self) -> str:
        """Reason why the completion ended: "stop", or "length" at the token limit."""
        return self._finish

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls, including those that cannot be read; () in a chat without tools."""
        return self._calls

    @property
    def replies(self) -> tuple[Reply, ...]:
        """Candidates of the turn; here only this reply."""
        return (self,)

    def reward(self, *, team: float = 0.0, agent: float = 0.0, process: float = 0.0) -> None:
        """Add amounts to the rewards of this reply; their sums must be within `MAX_REWARD`."""
        sums = Rewards()
        for level, amount in (("team", team), ("agent", agent), ("process", process)):
            if isinstance(amount, str) or not math.isfinite(amount):
                raise TaskError(f"reward: {level} is {amount!r}, but must be a finite number")
            total = getattr(self.rewards, level) + float(amount)
            if abs(total) > MAX_REWARD:
                raise TaskError(f"reward: the sum of {level} is {total!r}, but must be within ±{MAX_REWARD:g}")
            setattr(sums, level, total)
        self.rewards = sums

    def judge(self, right: float, answer: str | None = None, reason: str = "", score: float | None = None) -> None:
        """Record the quality of this reply for evaluations. This does not reward it.

        Args:
            right: Correctness from 0 to 1; a bool also works.
            answer: The answer that was read from the text, or None.
            reason: Short explanation.
            score: Probability of being correct according to a model, or None.
        """
        self.verdict = Verdict(right=float(right), answer=None if answer is None else str(answer), reason=reason)
        if score is not None:
            self.verdict["score"] = float(score)

    def __repr__(self) -> str:
        return f"Reply({self.text!r}, finish={self.finish!r})"


class Candidates(Reply):
    """Reply to `say(…, n=K)` with K candidates in `replies`.

    After `chat.keep(k)`, it behaves like the k-th candidate.
    """

    def __init__(self, replies: Sequence[Reply]):
        self._replies = tuple(replies)
        self.kept: Reply | None = None

    @property
    def replies(self) -> tuple[Reply, ...]:
        """All candidates."""
        return self._replies

    @property
    def text(self) -> str:
        """Text of the kept candidate."""
        return self._chosen("text").text

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids of the kept candidate."""
        return self._chosen("tokens").tokens

    @property
    def finish(self) -> str:
        """Reason why the kept candidate ended."""
        return self._chosen("finish").finish

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls of the kept candidate."""
        return self._chosen("calls").calls

    @property
    def rewards(self) -> Rewards:
        """Rewards of the kept candidate."""
        return self._chosen("rewards").rewards

    def reward(self, **levels: float) -> None:
        """Add to the rewards of the kept candidate."""
        self._chosen("reward").reward(**levels)

    @property
    def verdict(self) -> Verdict | None:
        """Judgement of the kept candidate, or None."""
        return self._chosen("verdict").verdict

    def judge(self, right: float, answer: str | None = None, reason: str = "", score: float | None = None) -> None:
        """Record the quality of the kept candidate."""
        self._chosen("judge").judge(right, answer, reason, score)

    def _chosen(self, what: str) -> Reply:
        if self.kept is None:
            raise TaskError(
                f"{what}: the reply has {len(self._replies)} candidates; use one of reply.replies, or call "
                "chat.keep(k) first"
            )
        return self.kept

    def __repr__(self) -> str:
        return f"Candidates({list(self._replies)!r})"
