"""Chats as token ids: completions stay as sampled, and only new text is tokenized.

With a system text S, task texts U and V, and a completion A, the ids of a chat are

    encode(system_open S system_close user_open U user_close_and_reply)  A  encode(reply_close_and_user V …)

where the names are those of `models.chat.ChatParts`. With tools, the opening and the text around the results of tools
are rendered by the chat template (`models.renderer`). The ids of A are the sampled ones without the stop token, which
is replaced by the end of turn of the template. Reasoning in earlier completions stays in the chat, even if a template
would drop it (Qwen3), so that the policy continues from the tokens that it sampled.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from envs.tasks.chat import Chat
from envs.tasks.replies import ChatFull, EpisodeError, Reply, TaskError, ToolCall
from marl_jax.errors import RunError
from marl_jax.sampling.settings import Sampling
from models import chat as templates
from models.renderer import Renderer
from models.tokenizers import Tokenizer

OPTIONS = ("max_new_tokens", "stop_strings")
"""Sampling options that a task may change. The others belong to the policy, because the learner needs them."""

REPLY = "reply "
"""Start of the journal keys of completions by remote models."""

OPENINGS = 4096
"""Number of chat openings whose ids are cached."""

CHARACTERS = 16
"""Maximum number of characters per token of a shortened text; the rest is not tokenized."""


class AnswerLost(EpisodeError):
    """An error for a completion that cannot be used: not finite, or aborted."""

    reason = "answer_lost"


class RemoteLost(EpisodeError):
    """A remote model returned no completion, so the episode fails."""

    reason = "remote_failed"


class SamplerError(RunError):
    """A failure of the sampler, which ends the run."""


class Sampler(Protocol):
    """Interface of samplers, such as `BatcherThread`."""

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None
    ) -> list[Any]:
        """Return `n` completions with `tokens`, `logps`, `finish` and `versions`."""
        ...

    def set_weights(self, policy: int, weights: Any, version: int) -> None:
        """Set the weights of a policy."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Speaker:
    """A policy as seen by episodes.

    Attributes:
        sampler: Sampler of the policy.
        tokenizer: Tokenizer of its model.
        sampling: Temperature and token budget; stop ids and seeds are filled in.
        max_length: Maximum number of tokens of a chat, including completions.
        policy: Number of the policy in the sampler.
        backbone: Name of the model whose weights the sampler uses.
        number: Number of the policy in `Samples`; -1 if it does not learn.
        options: Options of the chat template, such as enable_thinking.
        remote: Whether completions come from outside the run. They are journaled, and not given to the learner.
        tool_format: Format of the tool calls, one of `models.tool_calls.FORMATS`.
    """

    sampler: Sampler
    tokenizer: Tokenizer
    sampling: Sampling
    max_length: int
    policy: int = 0
    backbone: str = "policy"
    number: int = 0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    remote: bool = False
    tool_format: str = "auto"

    @functools.cached_property
    def parts(self) -> templates.ChatParts:
        """Fixed strings of the chat template."""
        return templates.chat_parts(self.tokenizer, **self.options)

    @functools.cached_property
    def renderer(self) -> Renderer:
        """Renderer of conversations with tools, with the parser of the calls."""
        return Renderer(self.tokenizer, self.options, self.tool_format)

    def opening(self, system: str | None, text: str, tools: str = "") -> list[int]:
        """Return the ids of a chat up to its first completion.

        Special tokens in the texts are removed, so that no text can forge a turn.

        Args:
            system: System message.
            text: First user message.
            tools: Schemas of the tools as a JSON list, or "".
        """
        return list(self._openings(system, text, tools))  # cached, because all episodes of an example start with it

    @functools.cached_property
    def _openings(self):
        return functools.lru_cache(OPENINGS)(self._encode_opening)

    def _encode_opening(self, system: str | None, text: str, tools: str) -> list[int]:
        clean = self.tokenizer.strip_special
        if tools and self.remote:
            raise RunError(
                f"the remote model {self.backbone} plays a role with tools, but only policies can call tools"
            )
        if tools:
            user = {"role": "user", "content": clean(text)}
            messages = [user] if system is None else [{"role": "system", "content": clean(system)}, user]
            return self._rendered(self.renderer.opening, messages, json.loads(tools))
        return self.tokenizer.encode(self.parts.opening(None if system is None else clean(system), clean(text)))

    def continuation(self, text: str) -> list[int]:
        """Return the ids between a completion and the next one."""
        return self.tokenizer.encode(self.parts.continuation(self.tokenizer.strip_special(text)))

    def results(self, texts: Sequence[str]) -> list[int]:
        """Return the ids between a completion with tool calls and the next one."""
        return self._rendered(self.renderer.results, [self.tokenizer.strip_special(text) for text in texts])

    def _rendered(self, render: Callable[..., list[int]], *args: Any) -> list[int]:
        try:
            return render(*args)
        except templates.ChatTemplateError as error:  # it would fail in every episode
            raise RunError(f"the chat template of {self.tokenizer.name} cannot render tools: {error}") from error

    def shorten(self, text: str, tokens: int) -> str:
        """Return the beginning of a text, with at most this number of tokens."""
        text = self.tokenizer.strip_special(text[: tokens * CHARACTERS])
        ids = self.tokenizer.encode(text)
        return text if len(ids) <= tokens else self.tokenizer.decode(ids[:tokens]).rstrip("\ufffd")

    def calls(self, ids: list[int]) -> list[ToolCall]:
        """Return the tool calls in the ids of a completion."""
        calls = (attempt.call for attempt in self.renderer.parser.attempts(self.tokenizer.decode(ids)))
        return [ToolCall(call.name, call.arguments, call.problem) for call in calls]

    def content(self, ids: list[int]) -> list[int]:
        """Return the ids of a completion without the stop token at its end."""
        return ids[:-1] if ids and ids[-1] in self.tokenizer.stop_ids else ids


@dataclasses.dataclass
class Said:
    """One turn of a chat.

    Attributes:
        start: Number of tokens of the chat before the completion.
        turn: Number of the turn.
        label: Label that groups completions across episodes, or None.
        speaker: Policy that sampled the completions.
        answers: Samples, one per candidate.
        contents: Ids of the candidates without the stop token.
        replies: Candidates as returned to the task.
        kept: Candidate that the chat continues with; None while it is undecided.
        text: Text of the task, or results of tools, before the completion.
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
    """A chat stored as token ids.

    Attributes:
        tokens: Ids of the chat so far; completions are without their stop tokens.
        said: Turns of this chat. Turns before a fork belong to the original chat.
        prompt_len: Number of tokens before the first completion, also in a fork.
    """

    def __init__(
        self, ask, seat: int, system: str | None, path: tuple[int, ...], schemas: Sequence[Mapping[str, Any]] = ()
    ):  # fmt: skip
        super().__init__(seat, path, schemas)
        self.system, self.tokens, self.said, self.prompt_len = system, [], [], 0
        self._ask, self._tokenizer = ask, None
        ask.chats.append(self)

    async def _answer(self, text, n, sampling, label):
        speaker, before = self._ask.speaker(self.seat, self.turn), self._tokenizer
        if before not in (None, speaker.tokenizer) and before.fingerprint != speaker.tokenizer.fingerprint:
            raise ValueError(
                f"seat {self.seat} changes from the tokenizer {before.name} to {speaker.tokenizer.name} at "
                f"turn {self.turn}, but all policies of a chat need the same tokenizer"
            )
        ids = self.tokens + self._new_ids(speaker, text)
        request = self._request(speaker, len(ids), sampling)
        try:
            sampled = speaker.sampler.answer(ids, request, policy=speaker.policy, n=n)
            name = f"{REPLY}{self.seat}.{'.'.join(map(str, self.path))}.{self.turn}"
            answers = await (self._ask.remote_answers(name, sampled) if speaker.remote else sampled)
        except (EpisodeError, RunError, ValueError):
            raise
        except Exception as error:  # the sampler cannot serve any episode from now on
            raise SamplerError(f"the sampler failed: {type(error).__name__}: {error}") from error
        for answer in answers:
            if answer.finish not in ("stop", "length"):
                raise AnswerLost(f"the sampler ended a completion of seat {self.seat} with {answer.finish!r}")
        written = [answer.tokens.tolist() for answer in answers]
        contents = [speaker.content(tokens) for tokens in written]
        replies = [
            Reply(
                speaker.tokenizer.decode(content, skip_special=True), tokens, answer.finish,
                speaker.calls(content) if self.schemas else (),
            )
            for content, tokens, answer in zip(contents, written, answers, strict=True)
        ]  # fmt: skip
        self.prompt_len = self.prompt_len or len(ids)
        self.tokens, self._tokenizer = ids, speaker.tokenizer
        shown = text if isinstance(text, str) else "\n\n".join(text)
        self.said.append(Said(len(ids), self.turn, label, speaker, list(answers), contents, replies, text=shown))
        return replies

    def _new_ids(self, speaker: Speaker, text: str | tuple[str, ...]) -> list[int]:
        """Return the ids to append to the chat before the next completion."""
        if not isinstance(text, str):
            return speaker.results(text)
        if self.tokens:
            return speaker.continuation(text)
        return speaker.opening(self.system, text, json.dumps(self.schemas) if self.schemas else "")

    def shorten(self, text, tokens):
        """Return the beginning of a text, with at most this number of tokens."""
        return self._ask.speaker(self.seat, self.turn).shorten(text, tokens)

    def _keep(self, k):
        self.said[-1].kept = k
        self.tokens = self.tokens + self.said[-1].contents[k]

    def _copy(self, path):
        other = TokenChat(self._ask, self.seat, self.system, path, self.schemas)
        other.tokens, other.prompt_len, other._tokenizer = self.tokens, self.prompt_len, self._tokenizer
        return other

    def _request(self, speaker: Speaker, length: int, options: dict[str, Any]) -> Sampling:
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise TaskError(f"say(sampling={{{unknown[0]!r}: …}}): the option must be one of: {', '.join(OPTIONS)}")
        room = speaker.max_length - length
        if room < 1:
            raise ChatFull(f"a chat of seat {self.seat} has {length} tokens, but the limit is {speaker.max_length}")
        usual = speaker.sampling
        return dataclasses.replace(
            usual,
            max_new_tokens=min(options.get("max_new_tokens", usual.max_new_tokens), room),
            stop_ids=speaker.tokenizer.stop_ids,
            stop_strings=tuple(options.get("stop_strings", usual.stop_strings)),
            seed=self._ask.seed("answer", self.seat, *self.path, self.turn),
        )


def derive_seed(*parts: Any) -> int:
    """Return a 32-bit seed that depends only on the parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")
