"""Chats: conversations with one seat that grow by one reply at a time.

If a turn has several candidates, the chat continues with the one that is kept.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.replies import Candidates, Reply, TaskError


class Chat(abc.ABC):
    """A conversation with one seat.

    Subclasses store the messages and produce the replies.

    Attributes:
        seat: Index of the seat.
        path: Identifies the chat among those of the seat in an episode: its number, and for a fork the numbers of the
            forks it came from.
        turn: Number of replies so far, including those before a fork.
        schemas: Schemas of the tools that the seat may call, in OpenAI's format.
    """

    def __init__(self, seat: int, path: tuple[int, ...] = (0,), schemas: Sequence[Mapping[str, Any]] = ()):
        self.seat, self.path, self.turn, self.schemas = seat, path, 0, tuple(schemas)
        self._last: Reply | None = None
        self._open: Candidates | None = None  # candidates of the last turn, until one of them is kept
        self._busy = False
        self._forks = 0

    async def say(
        self, text: str, n: int = 1, sampling: Mapping[str, Any] | None = None, label: str | None = None
    ) -> Reply:
        """Add a user message and return the seat's reply, or `n` candidates for it.

        Args:
            text: The user message.
            n: Number of candidates. If there are several, call `keep` before the next message.
            sampling: `max_new_tokens` and `stop_strings` of this reply, if they differ from the policy's.
            label: Kind of reply, such as a phase or a tool call. Replies are compared within a label.
        """
        if not isinstance(text, str):
            raise TaskError(f"say: text is {text!r}, but must be a string")
        return await self._turn("say", text, n, sampling, label)

    async def results(
        self, texts: Sequence[str], n: int = 1, sampling: Mapping[str, Any] | None = None, label: str | None = None
    ) -> Reply:
        """Add the results of the last reply's tool calls and return the next reply.

        They become tool messages, which are never trained on.

        Args:
            texts: Results in the order of the calls. Several calls may share one result.
            n: See `say`.
            sampling: See `say`.
            label: See `say`. It must not depend on the tool that was called, which the policy chose: replies would be
                compared with a baseline that depends on the action.
        """
        if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
            raise TaskError(f"results: texts is {texts!r:.200}, but must be a list of at least one string")
        self._check_settled("results")
        calls = 0 if self._last is None else len(self._last.calls)
        if len(texts) > calls:
            raise TaskError(f"results: there are {len(texts)} texts, but the last reply has {calls} tool calls")
        return await self._turn("results", tuple(texts), n, sampling, label)

    async def _turn(
        self, what: str, text: str | tuple[str, ...], n: int, sampling: Mapping[str, Any] | None, label: str | None
    ) -> Reply:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise TaskError(f"{what}: n is {n!r}, but must be an integer >= 1")
        if label is not None and not isinstance(label, str):
            raise TaskError(f"{what}: label is {label!r}, but must be a string or None")
        self._check_settled(what)
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
        """Continue the chat with candidate `k` of the last reply, and return it."""
        if self._open is None:
            raise TaskError("keep: there are no candidates to choose from; " + (
                "no message was sent yet" if self._last is None
                else "the last reply has one candidate, which is kept automatically" if len(self._last.replies) == 1
                else "a candidate of the last reply was already kept"
            ))  # fmt: skip
        if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < len(self._open.replies):
            raise TaskError(f"keep: k is {k!r}, but must be 0 to {len(self._open.replies) - 1}")
        kept = self._open.kept = self._open.replies[k]
        self._open = None
        self._keep(k)
        return kept

    def fork(self) -> Chat:
        """Return another chat with the same history, which continues independently."""
        self._check_settled("fork")
        other = self._copy((*self.path, self.turn, self._forks))
        self._forks += 1
        other.turn, other._last = self.turn, self._last
        return other

    def _check_settled(self, what: str) -> None:
        if self._busy:
            raise TaskError(f"{what}: the chat is waiting for a reply; await it first, or fork the chat earlier")
        if self._open is not None:
            raise TaskError(f"{what}: the last reply has {len(self._open.replies)} candidates; call keep(k) first")

    @abc.abstractmethod
    def shorten(self, text: str, tokens: int) -> str:
        """Return the beginning of a text, with at most this number of tokens."""

    @abc.abstractmethod
    async def _answer(
        self, text: str | tuple[str, ...], n: int, sampling: dict[str, Any], label: str | None
    ) -> Sequence[Reply]:
        """Return `n` replies to the conversation followed by a text or by tool results."""

    @abc.abstractmethod
    def _keep(self, k: int) -> None:
        """Append reply `k` of the last turn to the chat."""

    @abc.abstractmethod
    def _copy(self, path: tuple[int, ...]) -> Chat:
        """Return a chat with the same content."""


CONTINUATIONS = ("best", "random", "first")


def keep_one(ask, chat: Chat, reply: Reply, how: str) -> Reply:
    """Keep one of several candidates and return it.

    Args:
        ask: The episode.
        chat: The chat with the candidates.
        reply: The last reply of the chat.
        how: "best" keeps the candidate with the highest total reward (the first of equals), "random" a random one and
            "first" the first one.
    """
    if how not in CONTINUATIONS:
        raise ValueError(f"continuation is {how!r}, but must be one of: {', '.join(CONTINUATIONS)}")
    if len(reply.replies) == 1:
        return reply.replies[0]
    totals = [r.rewards.team + r.rewards.agent + r.rewards.process for r in reply.replies]
    k = {"best": totals.index(max(totals)), "random": ask.random.randrange(len(totals)), "first": 0}[how]
    return chat.keep(k)
