"""Chats as token ids: what was sampled stays as it is, and only what is new is tokenised.

With a system text S, texts U, V of the task and an answer A the ids of a chat are

    encode(system_open S system_close user_open U user_close_and_reply)  A  encode(reply_close_and_user V …)

in the words of `models.chat.ChatParts`. A's ids are those that were sampled, less the stop token, in whose place stands
what the template closes a reply with. Reasoning in earlier answers stays in the chat, also where a template would drop
it (Qwen3): the next answer is given to what was really written.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envs.tasks.chat import Chat
from envs.tasks.replies import ChatFull, EpisodeError, Reply, TaskError
from marl_jax.errors import RunError
from marl_jax.sampling.settings import Sampling
from models import chat as templates
from models.tokenizers import Tokenizer

OPTIONS = ("max_new_tokens", "stop_strings")
"""What a task may change for one answer. Temperature and the like are the policy's: the learner needs them too."""

OPENINGS = 4096
"""Beginnings of chats whose ids are remembered."""


class AnswerLost(EpisodeError):
    """The sampler gave no usable answer: logits that are not finite, or a request that was ended."""

    reason = "answer_lost"


class SamplerError(RunError):
    """The sampler itself failed, which ends the run."""


class Sampler(Protocol):
    """What answers requests: a `BatcherThread`."""

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None
    ) -> list[Any]:
        """`n` answers with `tokens`, `logps`, `finish` and `versions`."""
        ...

    def set_weights(self, policy: int, weights: Any, version: int) -> None:
        """New weights of a policy."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Speaker:
    """A policy as episodes reach it.

    sampler     answers for it
    tokenizer   of its model
    sampling    temperature and budget; stop ids and seeds are filled in
    max_length  tokens a chat may have, answers included
    policy      its number at the sampler
    backbone    name of the model, whose weights go to the sampler
    number      its number in `Samples`; -1 if it does not learn
    options     of the chat template, such as enable_thinking
    """

    sampler: Sampler
    tokenizer: Tokenizer
    sampling: Sampling
    max_length: int
    policy: int = 0
    backbone: str = "policy"
    number: int = 0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def parts(self) -> templates.ChatParts:
        """The fixed strings of the chat template."""
        return templates.chat_parts(self.tokenizer, **self.options)

    def opening(self, system: str | None, text: str) -> list[int]:
        """The ids of a chat up to its first answer. Special tokens in texts are dropped: no text can forge a turn."""
        return list(self._openings(system, text))  # the episodes of an example all begin alike

    @functools.cached_property
    def _openings(self):
        return functools.lru_cache(OPENINGS)(self._encode_opening)

    def _encode_opening(self, system: str | None, text: str) -> list[int]:
        clean = self.tokenizer.strip_special
        return self.tokenizer.encode(self.parts.opening(None if system is None else clean(system), clean(text)))

    def continuation(self, text: str) -> list[int]:
        """The ids between an answer and the next one."""
        return self.tokenizer.encode(self.parts.continuation(self.tokenizer.strip_special(text)))

    def content(self, ids: list[int]) -> list[int]:
        """The ids of an answer without the stop token at its end."""
        return ids[:-1] if ids and ids[-1] in self.tokenizer.stop_ids else ids


@dataclasses.dataclass
class Said:
    """One turn of a chat.

    start     tokens of the chat before the answer
    answers   of the sampler, one for each candidate
    contents  their ids without the stop token
    kept      the candidate that the chat continues with; None while it is open
    text      what the task said before the answer
    """

    start: int
    turn: int
    label: str | None
    speaker: Speaker
    answers: list[Any]
    contents: list[list[int]]
    replies: list[Reply]
    kept: int | None = None
    text: str = ""


class TokenChat(Chat):
    """A chat whose content is token ids.

    tokens   of everything said so far, answers without their stop tokens
    said     turns of this chat; those before a fork belong to the chat it came from
    prompt_len  tokens before the first answer, of a fork too
    """

    def __init__(self, ask, seat: int, system: str | None, path: tuple[int, ...]):
        super().__init__(seat, path)
        self.system, self.tokens, self.said, self.prompt_len = system, [], [], 0
        self._ask, self._tokenizer = ask, None
        ask.chats.append(self)

    async def _answer(self, text, n, sampling, label):
        speaker, before = self._ask.speaker(self.seat, self.turn), self._tokenizer
        if before not in (None, speaker.tokenizer) and before.fingerprint != speaker.tokenizer.fingerprint:
            raise ValueError(
                f"seat {self.seat} changes from the tokenizer {before.name} to {speaker.tokenizer.name} at "
                f"turn {self.turn}; policies that answer in one chat need the same tokenizer"
            )
        ids = self.tokens + (speaker.continuation(text) if self.tokens else speaker.opening(self.system, text))
        request = self._request(speaker, len(ids), sampling)
        try:
            answers = await speaker.sampler.answer(ids, request, policy=speaker.policy, n=n)
        except (EpisodeError, RunError, ValueError):
            raise
        except Exception as error:  # nobody will be answered any more
            raise SamplerError(f"the sampler failed: {type(error).__name__}: {error}") from error
        for answer in answers:
            if answer.finish not in ("stop", "length"):
                raise AnswerLost(f"the sampler ended an answer of seat {self.seat} with {answer.finish!r}")
        written = [answer.tokens.tolist() for answer in answers]
        contents = [speaker.content(tokens) for tokens in written]
        replies = [
            Reply(speaker.tokenizer.decode(content, skip_special=True), tokens, answer.finish)
            for content, tokens, answer in zip(contents, written, answers, strict=True)
        ]
        self.prompt_len = self.prompt_len or len(ids)
        self.tokens, self._tokenizer = ids, speaker.tokenizer
        self.said.append(Said(len(ids), self.turn, label, speaker, list(answers), contents, replies, text=text))
        return replies

    def _keep(self, k):
        self.said[-1].kept = k
        self.tokens = self.tokens + self.said[-1].contents[k]

    def _copy(self, path):
        other = TokenChat(self._ask, self.seat, self.system, path)
        other.tokens, other.prompt_len, other._tokenizer = self.tokens, self.prompt_len, self._tokenizer
        return other

    def _request(self, speaker: Speaker, length: int, options: dict[str, Any]) -> Sampling:
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise TaskError(f"say(sampling={{{unknown[0]!r}: …}}): accepted: {', '.join(OPTIONS)}")
        room = speaker.max_length - length
        if room < 1:
            raise ChatFull(f"a chat of seat {self.seat} has {length} tokens; {speaker.max_length} is the limit")
        usual = speaker.sampling
        return dataclasses.replace(
            usual,
            max_new_tokens=min(options.get("max_new_tokens", usual.max_new_tokens), room),
            stop_ids=speaker.tokenizer.stop_ids,
            stop_strings=tuple(options.get("stop_strings", usual.stop_strings)),
            seed=self._ask.seed("answer", self.seat, *self.path, self.turn),
        )


def derive_seed(*parts: Any) -> int:
    """A seed of 32 bits that depends on all parts and on nothing else."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")
