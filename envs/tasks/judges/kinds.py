"""Judges by rule, by scores and by a language model."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import math
import re
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from envs.tasks.judges.cache import VerdictCache
from envs.tasks.judges.judge import CRITERIA, BadVerdict, Judge, check_criterion
from envs.tasks.scorer_client import BadScores, ScorerClient

SYSTEM = "You compare two answers to the same request. You are impartial, and the order of the answers means nothing."
PROMPT = """Request:
{prompt}

Answer A:
{first}

Answer B:
{second}

Compare the answers by {criterion}: {description}. Longer is not better. Reply with one line, "Verdict: A", \
"Verdict: B" or "Verdict: tie"."""
RANKING_PROMPT = """Request:
{prompt}

{answers}

Compare the answers by {criterion}: {description}. Longer is not better. Reply with one line that orders all of \
them from best to worst, such as "Ranking: {example}"."""
VERDICT = re.compile(r"verdict\W*(A|B|tie)\b", re.IGNORECASE)
ALONE = re.compile(r"\W*(A|B|tie)\W*", re.IGNORECASE)
PROBABILITY = {"a": 1.0, "b": 0.0, "tie": 0.5}
EDGE = 1e-6
"""Distance of scores from 0 and 1, whose log-odds are infinite."""

Messages = Sequence[Mapping[str, str]]


class RuleJudge(Judge):
    """The truth of a task: the text with the higher score is better.

    Args:
        score: Maps (prompt, text) to a number; sync or async.
        name: Name of the judge.
        version: Version of the rule.
    """

    symmetric = True

    def __init__(self, score: Callable[[str, str], Any], name: str = "rule", version: str = ""):
        super().__init__(name, version)
        self._score = score

    async def prefer(self, prompt: str, first: str, second: str, criterion: str) -> float:
        """Return 1, ½ or 0."""
        a, b = [await self._value(prompt, text) for text in (first, second)]
        return 0.5 if a == b else float(a > b)

    async def _value(self, prompt: str, text: str) -> float:
        value = self._score(prompt, text)
        value = await value if inspect.isawaitable(value) else value
        if not math.isfinite(value):
            raise BadVerdict(f"the rule returned {value!r}, but must return a finite number")
        return value


class Scorer(Protocol):
    """Maps conversations to the probability that their last message is good, such as a `ScorerClient`."""

    async def score(self, chats: Sequence[Messages]) -> list[float]:
        """Return one probability per conversation."""
        ...


class ScoreJudge(Judge):
    """A reward model: the difference of log-odds decides (Bradley–Terry).

    Args:
        scorer: Scores conversations.
        name: Name of the judge.
        version: Version of the reward model.
        cache: Answers that are already known.
    """

    symmetric = True

    def __init__(
        self, scorer: Scorer, name: str = "reward_model", version: str = "", cache: VerdictCache | None = None
    ):
        super().__init__(name, version, cache)
        self._scorer = scorer

    async def prefer(self, prompt: str, first: str, second: str, criterion: str) -> float:
        """Return the sigmoid of the difference of the scores' log-odds."""
        user = {"role": "user", "content": prompt}
        chats = [[user, {"role": "assistant", "content": text}] for text in (first, second)]
        a, b = (min(max(score, EDGE), 1.0 - EDGE) for score in await self._scorer.score(chats))
        odds = a * (1.0 - b) / ((1.0 - a) * b)
        return odds / (1.0 + odds)


class LanguageJudge(Judge):
    """A language model that is asked which answer is better.

    Args:
        ask: Maps messages to the model's reply, such as a `ChatClient` or a function over a frozen model.
        name: Name of the judge.
        version: Version of the model.
        cache: Answers that are already known.
        listwise: Whether `rank` shows all texts at once, in both directions, instead of every pair.
    """

    def __init__(
        self,
        ask: Callable[[Messages], Awaitable[str]],
        name: str = "language_model",
        version: str = "",
        cache: VerdictCache | None = None,
        listwise: bool = False,
    ):
        super().__init__(name, version, cache)
        self._ask, self._listwise = ask, listwise

    async def prefer(self, prompt: str, first: str, second: str, criterion: str) -> float:
        """Ask the model and read its verdict."""
        text = PROMPT.format(
            prompt=prompt, first=first, second=second, criterion=criterion, description=CRITERIA[criterion]
        )
        return read_verdict(await self._reply(text))

    async def rank(self, prompt: str, texts: Sequence[str], criterion: str = "correctness") -> list[float]:
        """Return the mean probability of each text to be better than the others.

        A listwise judge sees all texts at once, in both directions. Two texts that change places are tied.
        """
        if not self._listwise or len(texts) < 2:
            return await super().rank(prompt, texts, criterion)
        forward, backward = await asyncio.gather(
            self._places(prompt, texts, criterion), self._places(prompt, texts[::-1], criterion)
        )
        orders = [order for order in (forward, backward and backward[::-1]) if order]

        def wins(i: int) -> float:
            won = [order[i] < order[j] for order in orders for j in range(len(texts)) if j != i]
            return sum(won) / len(won) if won else 0.5

        return [wins(i) for i in range(len(texts))]

    async def _places(self, prompt: str, texts: Sequence[str], criterion: str) -> list[int] | None:
        """Return the place of each text in the model's ranking, 0 for the best."""
        letters = string.ascii_uppercase[: len(texts)]
        if len(letters) < len(texts):
            raise ValueError(f"there are {len(texts)} texts, but a ranking must have at most {len(letters)}")
        check_criterion(criterion)
        text = RANKING_PROMPT.format(
            prompt=prompt,
            answers="\n\n".join(f"Answer {letter}:\n{text}" for letter, text in zip(letters, texts, strict=True)),
            criterion=criterion,
            description=CRITERIA[criterion],
            example=" > ".join(reversed(letters)),
        )
        return await self.known(("ranking", criterion, prompt, *texts), lambda: self._ranking(text, letters))

    async def _ranking(self, text: str, letters: str) -> list[int]:
        order = read_ranking(await self._reply(text), letters)
        return [order.index(letter) for letter in letters]

    async def _reply(self, text: str) -> str:
        return await self._ask([{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}])


def read_verdict(reply: str) -> float:
    """Return the probability that a reply gives to answer A.

    The last verdict counts, because a model may first repeat the instruction.

    Raises:
        BadVerdict: The reply has no verdict.
    """
    alone = ALONE.fullmatch(reply)
    verdicts = VERDICT.findall(reply) or ([alone.group(1)] if alone else [])
    if not verdicts:
        raise BadVerdict(f"the judge replied {reply[:80]!r}, but must reply with a verdict")
    return PROBABILITY[verdicts[-1].lower()]


def read_ranking(reply: str, letters: str) -> str:
    """Return the letters in the order of a reply such as "Ranking: B > A".

    Raises:
        BadVerdict: The reply does not order all letters.
    """
    for line in reversed(reply.splitlines()):
        order = "".join(re.findall(r"\b[A-Z]\b", line.rpartition(":")[2]))
        if sorted(order) == sorted(letters):
            return order
    raise BadVerdict(f"the judge replied {reply[:80]!r}, but must order {', '.join(letters)}")


@dataclasses.dataclass(frozen=True)
class ChatClient(ScorerClient):
    """A model at an OpenAI-compatible endpoint, as a function from messages to a reply.

    It has the retries, limits and errors of `ScorerClient`.

    Attributes:
        url: Address of the API with its version, such as http://127.0.0.1:8000/v1.
        model: Name of the model.
        max_tokens: Maximum number of tokens of a reply.
    """

    key_env: str = "OPENAI_API_KEY"
    model: str = ""
    max_tokens: int = 64

    @classmethod
    def parse(cls, place: str, **settings: Any) -> ChatClient:
        """Create a client from URL#MODEL."""
        url, _, model = place.partition("#")
        if not model:
            raise ValueError(f"the endpoint is {place!r}, but must be http://HOST:PORT/v1#MODEL")
        return cls(url.rstrip("/"), model=model, **settings)

    async def __call__(self, messages: Messages) -> str:
        """Return the greedy reply to a conversation."""
        body = {
            "model": self.model, "messages": [dict(m) for m in messages], "temperature": 0.0,
            "max_tokens": self.max_tokens,
        }  # fmt: skip
        answer = await self.request(body)
        try:
            return answer["choices"][0]["message"]["content"] or ""
        except (LookupError, TypeError) as error:
            raise BadScores(f"{self.url} returned no reply: {str(answer)[:80]!r}") from error

    async def request(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response to a request of chat completions."""
        return await self._call("POST", "/chat/completions", json.dumps(body).encode())

    async def models(self) -> list[str]:
        """Return the names of the models that the endpoint serves."""
        answer = await self._call("GET", "/models", b"")
        try:
            return [str(model["id"]) for model in answer["data"]]
        except (LookupError, TypeError) as error:
            raise BadScores(f"{self.url} returned no list of models: {str(answer)[:80]!r}") from error
