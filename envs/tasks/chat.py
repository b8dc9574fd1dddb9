"""The rules of a chat: it only grows, one answer at a time, and of several candidates one is kept."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.replies import Candidates, Reply, TaskError


class Chat(abc.ABC):
    """A conversation with one seat. Subclasses hold its content and get the answers.

    turn   answers so far, those before a fork included
    path   tells the chats of a seat in an episode apart: its number, and for a fork those of the forks it came from
    """

    def __init__(self, seat: int, path: tuple[int, ...] = (0,)):
        self.seat, self.path, self.turn = seat, path, 0
        self._last: Reply | None = None
        self._open: Candidates | None = None  # candidates of which none is kept yet
        self._busy = False
        self._forks = 0

    async def say(
        self, text: str, n: int = 1, sampling: Mapping[str, Any] | None = None, label: str | None = None
    ) -> Reply:
        """Adds a user's text and returns the seat's answer, or `n` candidates for it.

        sampling  `max_new_tokens` and `stop_strings` of this answer, where they differ from the policy's
        label     what kind of answer it is, such as a phase or a tool call; answers are compared within a label
        """
        if not isinstance(text, str):
            raise TaskError(f"say({text!r}): expected a text")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise TaskError(f"say(n={n!r}): expected 1 or more candidates")
        if label is not None and not isinstance(label, str):
            raise TaskError(f"say(label={label!r}): expected a text or None")
        self._check_settled("say")
        self._busy = True
        try:
            replies = await self._answer(text, n, dict(sampling or {}), label)
        finally:
            self._busy = False
        self.turn += 1
        if n == 1:
            self._last = replies[0]
            self._keep(0)
            return self._last
        self._last = self._open = Candidates(replies)
        return self._open

    def keep(self, k: int) -> Reply:
        """Continues the chat with candidate `k` of the last answer, and returns it."""
        if self._open is None:
            raise TaskError("keep: there is nothing to choose from; " + (
                "nothing was said yet" if self._last is None
                else "the last answer has one candidate, which is kept by itself" if len(self._last.replies) == 1
                else "a candidate of the last answer was kept already"
            ))  # fmt: skip
        if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < len(self._open.replies):
            raise TaskError(f"keep({k!r}): expected 0 to {len(self._open.replies) - 1}")
        kept = self._open.kept = self._open.replies[k]
        self._open = None
        self._keep(k)
        return kept

    def fork(self) -> Chat:
        """Another chat with the same past, which continues on its own."""
        self._check_settled("fork")
        other = self._copy((*self.path, self.turn, self._forks))
        self._forks += 1
        other.turn, other._last = self.turn, self._last
        return other

    def _check_settled(self, what: str) -> None:
        if self._busy:
            raise TaskError(f"{what}: the chat is waiting for an answer; await it first, or fork the chat before")
        if self._open is not None:
            raise TaskError(f"{what}: the last answer has {len(self._open.replies)} candidates; call keep(k) first")

    @abc.abstractmethod
    async def _answer(self, text: str, n: int, sampling: dict[str, Any], label: str | None) -> Sequence[Reply]:
        """`n` answers to what was said so far and `text`."""

    @abc.abstractmethod
    def _keep(self, k: int) -> None:
        """Makes answer `k` of the last turn part of the chat."""

    @abc.abstractmethod
    def _copy(self, path: tuple[int, ...]) -> Chat:
        """A chat with the same content."""


CONTINUATIONS = ("best", "random", "first")


def keep_one(ask, chat: Chat, reply: Reply, how: str) -> Reply:
    """Keeps the candidate with the highest reward ("best", the first of equals), a random one or the first one."""
    if how not in CONTINUATIONS:
        raise ValueError(f"continuation is {how!r}, but must be one of: {', '.join(CONTINUATIONS)}")
    if len(reply.replies) == 1:
        return reply.replies[0]
    totals = [r.rewards.team + r.rewards.agent + r.rewards.process for r in reply.replies]
    k = {"best": totals.index(max(totals)), "random": ask.random.randrange(len(totals)), "first": 0}[how]
    return chat.keep(k)
