"""Exchange of bounded messages between seats that hold different information, before they answer.

Seats speak in rounds. All speakers of a round write at the same time and read the messages of earlier rounds. After the
last round the answering seats answer. Every completion is a new conversation, whose prompt has all messages so far, so
that candidates can be continued side by side.

A message cannot be judged by itself: it is worth what its readers make of it. If the algorithm wants K candidates
(AT-GRPO), the k-th candidates of all speakers of a round form history k, and each message is rewarded with the mean
quality of the answers that the other seats give after its history. In the last round, every answering seat samples K
answers after each of the K histories, and all of them learn. In earlier rounds, each history is continued to the end
with one completion per turn, and one history is kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from envs.tasks.chat import CONTINUATIONS
from envs.tasks.replies import Reply
from envs.tasks.task import Ask

SENT, EMPTY, TOO_LONG = "sent", "empty", "too_long"


@dataclasses.dataclass(frozen=True)
class Message:
    """A message as its readers see it.

    Attributes:
        text: The message, or a note that it was not delivered.
        kind: SENT, EMPTY or TOO_LONG.
    """

    text: str
    kind: str = SENT


def read_message(text: str, limit: int) -> Message:
    """Return a message of at most `limit` characters, or a note that there is none."""
    text = text.strip()
    if not text:
        return Message("(The message was empty.)", EMPTY)
    if len(text) > limit:
        return Message(f"(The message had {len(text)} characters, but at most {limit} are delivered.)", TOO_LONG)
    return Message(text)


History = tuple[Mapping[int, Message], ...]
"""Messages of each round by speaker."""


class Judged(Protocol):
    """Verdict on an answer."""

    @property
    def quality(self) -> float:
        """Quality of the answer, 0 to 1."""
        ...


Verdict = TypeVar("Verdict", bound=Judged)


@dataclasses.dataclass(frozen=True)
class Exchanged(Generic[Verdict]):
    """An exchange that was played to the end.

    Attributes:
        history: All messages.
        answers: Verdicts on the candidates of each answering seat.
    """

    history: History
    answers: Mapping[int, Sequence[Verdict]]

    def value(self, speaker: int) -> float:
        """Return the mean quality of the other seats' answers, or of all answers without others."""
        readers = [seat for seat in self.answers if seat != speaker] or list(self.answers)
        return _mean([answer.quality for seat in readers for answer in self.answers[seat]])

    def share(self, kind: str) -> float:
        """Return the share of messages of a kind."""
        return _mean([message.kind == kind for messages in self.history for message in messages.values()])


@dataclasses.dataclass(frozen=True)
class Exchange(Generic[Verdict]):
    """Rules of an exchange.

    Attributes:
        ask: The episode.
        rounds: Speakers of each round.
        answering: Seats that answer after the last round.
        limit: Maximum number of characters of a message.
        penalty: Amount subtracted for a message that is not delivered.
        continuation: History to keep in rounds before the last: "best", "random" or "first".
        system: Returns the system prompt of a seat.
        request: Returns the prompt of a seat after a history, for the answer if the flag is True.
        judge: Rewards an answer of a seat and returns its verdict. The last argument is a name that differs
            from those of concurrent answers.
    """

    ask: Ask
    rounds: Sequence[Sequence[int]]
    answering: Sequence[int]
    limit: int
    penalty: float
    continuation: str
    system: Callable[[int], str]
    request: Callable[[int, History, bool], str]
    judge: Callable[[int, Reply, str], Awaitable[Verdict]]

    def __post_init__(self):
        if self.continuation not in CONTINUATIONS:
            raise ValueError(f"continuation is {self.continuation!r}, but must be one of: {', '.join(CONTINUATIONS)}")

    async def play(self) -> list[Exchanged[Verdict]]:
        """Play all rounds and return the exchanges after each candidate of the last round."""
        n, history, last = self.ask.candidates, (), len(self.rounds) - 1
        spoken: list[tuple[int, int, Reply, Message]] = []  # seat, candidate, completion, message
        exchanged = await self._answers([history], n) if not self.rounds else []
        for number, speakers in enumerate(self.rounds):
            replies = await self._say([(seat, history) for seat in speakers], n, number)
            said = [
                (seat, k, candidate, read_message(candidate.text, self.limit))
                for seat, reply in zip(speakers, replies, strict=True)
                for k, candidate in enumerate(reply.replies)
            ]
            histories = [(*history, {seat: message for seat, j, _, message in said if j == k}) for k in range(n)]
            spoken = [*spoken, *said] if n == 1 else said
            if n > 1 or number == last:
                exchanged = await self._continued(histories, number + 1, n if number == last else 1)
                for seat, k, candidate, message in spoken:
                    lost = message.kind != SENT
                    candidate.reward(team=exchanged[k].value(seat), process=-self.penalty * lost)
            history = histories[0] if number == last else histories[self._kept(exchanged, speakers)]
        return exchanged

    def _kept(self, exchanged: Sequence[Exchanged[Verdict]], speakers: Sequence[int]) -> int:
        """Return the history that continues; the first one if there is no choice."""
        if len(exchanged) < 2 or self.continuation == "first":
            return 0
        if self.continuation == "random":
            return self.ask.random.randrange(len(exchanged))
        values = [_mean([one.value(seat) for seat in speakers]) for one in exchanged]
        return values.index(max(values))

    async def _continued(self, histories: Sequence[History], number: int, n: int) -> list[Exchanged[Verdict]]:
        """Play the remaining rounds with one completion per turn, then sample `n` answers per seat."""
        for later, speakers in enumerate(self.rounds[number:], number):
            turns = [(seat, history) for history in histories for seat in speakers]
            replies = iter(await self._say(turns, 1, later))
            histories = [
                (*history, {seat: read_message(next(replies).text, self.limit) for seat in speakers})
                for history in histories
            ]
        return await self._answers(histories, n)

    async def _answers(self, histories: Sequence[History], n: int) -> list[Exchanged[Verdict]]:
        turns = [(h, seat) for h in range(len(histories)) for seat in self.answering]
        replies = await self._say([(seat, histories[h]) for h, seat in turns], n, None)
        judged = [
            asyncio.gather(*(self.judge(seat, one, f"{seat}_{h}_{k}") for k, one in enumerate(reply.replies)))
            for (h, seat), reply in zip(turns, replies, strict=True)
        ]
        verdicts = dict(zip(turns, await asyncio.gather(*judged), strict=True))
        return [
            Exchanged(history, {seat: verdicts[h, seat] for seat in self.answering})
            for h, history in enumerate(histories)
        ]

    async def _say(self, turns: Sequence[tuple[int, History]], n: int, number: int | None) -> list[Reply]:
        """Sample `n` messages of a round, or `n` answers, of each seat after its history."""
        label = "answer" if number is None else f"message_{number + 1}"
        chats = [self.ask.chat(seat, system=self.system(seat)) for seat, _ in turns]  # opened before the first await
        texts = [self.request(seat, history, number is None) for seat, history in turns]
        return list(await asyncio.gather(*(c.say(t, n=n, label=label) for c, t in zip(chats, texts, strict=True))))


def quoted(name: str, message: Message) -> str:
    """Quote a message for its reader."""
    return f"{name} wrote:\n{message.text}\n\n"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
