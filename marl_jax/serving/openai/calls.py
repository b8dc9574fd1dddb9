"""A call: one request for answers of one model, from its prompt to the choices that the client gets.

It runs as a task of its own. Those who wait for it attach and detach; when the last one has left before the end (it
hung up), the task is cancelled and its rows are freed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, cast

from envs.tasks.replies import Reply
from marl_jax.rollouts.host.conversation import Sampler, Speaker
from marl_jax.sampling.batcher_thread import BatcherClosed
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.requests import OnTokens
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.openai import requests, text, tool_calls
from marl_jax.serving.openai.json_output import JsonOutput
from marl_jax.serving.openai.prompts import SHORT, Renderer
from marl_jax.serving.openai.requests import CompletionRequest
from marl_jax.serving.sessions.traces import CallTrace, TraceError, TraceFile
from models.chat import ChatTemplateError


class ServingSampler(Sampler, Protocol):
    """A sampler that can stream tokens and report the most likely ones: a `BatcherThread`."""

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[Completion]:  # fmt: skip
        """See `BatcherThread.answer`."""
        ...

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int = 0, k: int = 5) -> list:
        """See `BatcherThread.top_logprobs`."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class ServedModel:
    """A model by the name that clients give: who answers for it, and how its prompts are written.

    speaker      its `sampling` has the budget of a request that names none
    json_output  makes its answers follow a schema
    """

    name: str
    speaker: Speaker
    renderer: Renderer
    json_output: JsonOutput

    @classmethod
    def of(cls, name: str, speaker: Speaker, vocab: int | None = None) -> ServedModel:
        """With the tokenizer and the template options of the speaker; `vocab`: V of the model, if it is larger."""
        tokenizer = speaker.tokenizer
        output = JsonOutput(tokenizer, vocab or tokenizer.vocab_size)
        return cls(name, speaker, Renderer(tokenizer, speaker.options), output)

    @property
    def sampler(self) -> ServingSampler:
        """Sampler of the speaker."""
        return cast(ServingSampler, self.speaker.sampler)


@dataclasses.dataclass(frozen=True)
class CompletionChoice:
    """One answer as the client sees it.

    text    without stop strings and without the calls of tools
    ids     of the calls of tools
    finish  "stop", "length" or "tool_calls"
    """

    text: str
    calls: tuple[tool_calls.ToolCall, ...]
    ids: tuple[str, ...]
    finish: str

    def message(self) -> dict[str, Any]:
        """The message of the answer, in OpenAI's shape."""
        return requests.assistant(self.text, self.calls, self.ids)


class Call:
    """One request and what has become of it.

    ids       of the prompt, and of `prefix`, the text with which an answer is made to begin
    round     one more than that of the latest answer that was there when it began
    after     the call and the number of its answer that this one continues, or None
    fork      why it does not continue the last answer in its messages, or None
    shown     ids of each answer that may be shown by now
    answers   of the sampler; None until all are there
    choices   the same as the client sees them
    contents  their ids without the stop token
    replies   the same with their rewards
    changes   how often there was something new for those who follow
    """

    def __init__(self, model: ServedModel, asked: CompletionRequest, round_: int = 0):
        self.id = requests.new_id("chatcmpl" if asked.messages else "cmpl")
        self.model, self.asked, self.round = model, asked, round_
        self.ids: list[int] = []
        self.prefix: str = ""
        self.sampling: Sampling | None = None
        self.after: tuple[Call, int] | None = None
        self.fork: str | None = None
        self.shown: list[list[Completion]] = [[] for _ in range(asked.n)]
        self.answers: list[Completion] | None = None
        self.choices: list[CompletionChoice] = []
        self.contents: list[list[int]] = []
        self.replies: list[Reply] = []
        self.task: asyncio.Task[None]  # set by `start`
        self.began, self.created = time.monotonic(), int(time.time())
        self.changes = self._attached = 0
        self._following: list[asyncio.Future] = []

    # For those who wait

    def start(self, work: Awaitable[None]) -> None:
        """Begins to work on the answers."""
        self.task = asyncio.ensure_future(work)
        self.task.add_done_callback(self._ended)

    async def wait(self) -> Call:
        """Returns when all answers are there, or raises what went wrong."""
        with self.attached():
            await self.result()
        return self

    async def next_change(self, since: int) -> None:
        """Returns when `changes` is no longer `since`: there is more to show, or the task is done."""
        if self.changes == since:
            self._following.append(asyncio.get_running_loop().create_future())
            await self._following[-1]

    @property
    def failed(self) -> bool:
        """Whether it has ended without answers, or is about to."""
        return self.answers is None and (self.task.done() or self.task.cancelling() > 0)

    async def result(self) -> None:
        """Returns when all answers are there, or raises what went wrong; only for those who are attached."""
        try:
            await asyncio.shield(self.task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self.task.cancelled() and not (current and current.cancelling()):
                raise ApiError(403, "this session has ended", code="session_ended") from None
            raise

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Around whatever waits for it."""
        self._attached += 1
        try:
            yield
        finally:
            self._attached -= 1
            if not self._attached and not self.task.done():
                self.task.cancel()

    def _ended(self, task: asyncio.Task) -> None:
        if not task.cancelled():
            task.exception()  # whoever waits gets it; nobody may be waiting
        self.changed()

    def changed(self) -> None:
        """Wakes those who follow."""
        self.changes += 1
        following, self._following = self._following, []
        for waiter in following:
            if not waiter.done():
                waiter.set_result(None)

    def show(self, k: int, new: Completion) -> None:
        """More of answer k may be shown."""
        self.shown[k].append(new)
        self.changed()


# ---------------------------------------------------------------------------------------------------------- answering


def prefix_of(model: ServedModel, asked: CompletionRequest) -> str:
    """How the answer has to begin, where the request demands the call of a tool."""
    return "" if asked.forced is None else model.renderer.parser.prefix(asked.forced or None)


async def opening(model: ServedModel, asked: CompletionRequest) -> list[int]:
    """The ids of a request as it stands, without any history."""
    if asked.prompts:
        (prompt,) = asked.prompts
        return model.speaker.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    try:
        return await render(asked, model.renderer.opening)
    except ChatTemplateError as error:  # without the name of the file, which is no client's business
        raise ApiError(400, error.problem[:500], param="messages") from None
    except ValueError as error:
        raise ApiError(400, str(error)[:500], param="messages") from None


async def render(asked: CompletionRequest, function: Callable[..., list[int]], *args: Any) -> list[int]:
    """Ids of the messages from a function of the renderer; where they are long, in a thread."""
    short = not asked.tools and sum(len(message["content"]) for message in asked.messages) <= SHORT
    args = (asked.messages, *args, asked.tools, asked.template)
    return function(*args) if short else await asyncio.to_thread(function, *args)


def budget(model: ServedModel, asked: CompletionRequest, length: int) -> int:
    """Tokens that the answer may have."""
    limit = model.speaker.max_length
    room = limit - length
    if room < 1:
        message = f"the prompt has {length} tokens; with an answer, {model.name} takes at most {limit}"
        raise ApiError(400, message, param="messages" if asked.messages else "prompt", code="context_length_exceeded")
    return min(asked.max_tokens or model.speaker.sampling.max_new_tokens, room)


def sampling_of(call: Call, seed: int) -> Sampling:
    """The settings of the sampler for a call whose `ids` are set."""
    model, asked = call.model, call.asked
    tokens = budget(model, asked, len(call.ids))
    constraint = None if asked.schema is None else model.json_output.constraint(asked.schema)
    return asked.sampling(seed, tokens, model.speaker.tokenizer.stop_ids, constraint)


async def answer_alone(call: Call) -> None:
    """Answers a call that belongs to no session: nothing is remembered."""

    model, asked = call.model, call.asked
    call.prefix = prefix_of(model, asked)
    call.ids = await opening(model, asked) + (model.speaker.tokenizer.encode(call.prefix) if call.prefix else [])
    call.sampling = sampling_of(call, secrets.randbits(32) if asked.seed is None else asked.seed)
    await answer(call, CallTrace(TraceFile(None), "", call.id), asked.stream)


async def answer(call: Call, trace: CallTrace, streamed: bool) -> None:
    """Gets the answers to a call whose `ids` and `sampling` are set; each is recorded before it can be seen."""
    assert call.sampling is not None
    speaker, sampler = call.model.speaker, call.model.sampler
    more: dict[str, Any] = {}
    if streamed:

        def on_tokens(k: int, new: Completion) -> None:
            with contextlib.suppress(TraceError):  # the answers themselves cannot be written either
                trace.add_tokens(k, new, functools.partial(call.show, k, new))

        more = {"on_tokens": on_tokens}
    call.changed()
    try:
        answers = await sampler.answer(call.ids, call.sampling, policy=speaker.policy, n=call.asked.n, **more)
    except ValueError as error:  # refused by the sampler, such as ids beyond the vocabulary
        raise ApiError(400, str(error), param="messages" if call.asked.messages else "prompt") from None
    except BatcherClosed:
        raise ApiError(503, "the server is ending", code="server_ending") from None
    if wrong := next((a.finish for a in answers if a.finish not in ("stop", "length")), None):
        raise ApiError(500, f"the model gave no answer ({wrong})", code="answer_lost")
    written = [a.tokens.tolist() for a in answers]
    call.contents = [call.model.renderer.content(tokens) for tokens in written]
    choices = [choice(call, content, a.finish) for content, a in zip(call.contents, answers, strict=True)]
    await trace.write_answers(answers, [one.text for one in choices])
    call.choices, call.answers = choices, list(answers)
    call.replies = [Reply(c.text, t, a.finish) for c, t, a in zip(choices, written, answers, strict=True)]


def choice(call: Call, content: list[int], finish: str) -> CompletionChoice:
    """An answer as the client sees it."""
    asked, parser = call.asked, call.model.renderer.parser
    words = text.visible(call.model.speaker.tokenizer, content, asked.stops)
    names = {tool["function"]["name"] for tool in asked.tools}
    calls: list[tool_calls.ToolCall] = []
    if asked.forced:
        words, calls = "", [tool_calls.forced(parser, asked.forced, words)]
    elif names:
        words, calls = parser.parse(call.prefix + words, names)
    ids = tuple(requests.new_id("call") for _ in calls)
    return CompletionChoice(words, tuple(calls), ids, "tool_calls" if calls and finish == "stop" else finish)
