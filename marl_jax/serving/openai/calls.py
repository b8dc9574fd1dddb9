"""Calls: requests for completions of one model, from the prompt to the client's choices.

A call runs as a separate task. Clients attach to it and detach from it. When the last client detaches before the end,
because it disconnected, the task is cancelled and its rows are freed.
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
from marl_jax.sampling.requests import ImagesInUse, OnTokens
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.errors import ApiError, shutting_down
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.openai import images, requests, text
from marl_jax.serving.openai.json_output import JsonOutput, SchemaConstraints
from marl_jax.serving.openai.requests import CompletionRequest
from marl_jax.serving.sessions.traces import CallTrace, TraceError, TraceFile
from models import tool_calls
from models.chat import ChatTemplateError
from models.config import VisionConfig
from models.renderer import FEW, LONGEST_TOKEN, SHORT, Renderer


class ServingSampler(Sampler, Protocol):
    """A sampler that can stream tokens and report the most likely ones, such as `BatcherThread`."""

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[Completion]:  # fmt: skip
        """See `BatcherThread.answer`."""
        ...

    def hold_image(self, image: Any, policy: int = 0) -> tuple[list[int], Callable[[], None]]:
        """See `BatcherThread.hold_image`."""
        ...

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int = 0, k: int = 5) -> list:
        """See `BatcherThread.top_logprobs`."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under the name that clients use.

    Attributes:
        name: Name of the model.
        speaker: Policy that generates the completions. Its `sampling` sets the budget of a request without one.
        renderer: Renders the prompts.
        json_output: Constrains completions to a JSON schema.
        image_ids: Token ids of an image: the placeholder, with those before and after it; () for a model of text.
        placeholder: Token id of the placeholder; -1 for a model of text.
    """

    name: str
    speaker: Speaker
    renderer: Renderer
    json_output: JsonOutput
    image_ids: tuple[int, ...] = ()
    placeholder: int = -1

    @classmethod
    def of(
        cls, name: str, speaker: Speaker, vocab: int | None = None, vision: VisionConfig | None = None
    ) -> ServedModel:
        """Create a model with the speaker's tokenizer and chat template options.

        Args:
            name: Name of the model.
            speaker: Policy that generates the completions.
            vocab: Vocabulary size of the model, if it is larger than the tokenizer's.
            vision: Encoder of images of the model, if it has one.
        """
        tokenizer = speaker.tokenizer
        output = JsonOutput(tokenizer, vocab or tokenizer.vocab_size)
        if vision is None:
            return cls(name, speaker, speaker.renderer, output)
        ids = tuple(i for i in (vision.start_id, vision.image_id, vision.end_id) if i is not None)
        return cls(name, speaker, speaker.renderer, output, ids, vision.image_id)

    @property
    def vocab(self) -> int:
        """Vocabulary size of the model."""
        return self.json_output.vocab

    @property
    def sampler(self) -> ServingSampler:
        """Sampler of the speaker."""
        return cast(ServingSampler, self.speaker.sampler)


@dataclasses.dataclass(frozen=True)
class CompletionChoice:
    """One completion as the client sees it.

    Attributes:
        text: Text without stop strings and tool calls.
        calls: Tool calls.
        ids: Ids of the tool calls.
        finish: "stop", "length" or "tool_calls".
    """

    text: str
    calls: tuple[tool_calls.ToolCall, ...]
    ids: tuple[str, ...]
    finish: str

    def message(self) -> dict[str, Any]:
        """Return the assistant message in OpenAI's format."""
        return requests.assistant(self.text, self.calls, self.ids)


class Call:
    """One request and its progress.

    Attributes:
        ids: Token ids of the prompt and of `prefix`.
        prefix: Text with which a completion is forced to begin.
        sampling: Settings of the sampler; None until sampling begins.
        round: One more than the round of the latest call that was answered when this one began.
        after: Call and choice index that this call continues, or None.
        fork: Reason why it does not continue the last assistant message of its conversation, or None.
        shown: Pieces of each completion that may be shown by now.
        answers: Completions of the sampler; None until all are finished.
        choices: Completions as the client sees them.
        contents: Token ids of the completions without the stop token.
        replies: Completions with their rewards.
        changes: Number of times that there was something new for followers.
    """

    def __init__(self, model: ServedModel, request: CompletionRequest, round_: int = 0):
        self.id = requests.new_id("chatcmpl" if request.messages else "cmpl")
        self.model, self.asked, self.round = model, request, round_
        self.ids: list[int] = []
        self.prefix: str = ""
        self.sampling: Sampling | None = None
        self.after: tuple[Call, int] | None = None
        self.fork: str | None = None
        self.shown: list[list[Completion]] = [[] for _ in range(request.n)]
        self.answers: list[Completion] | None = None
        self.choices: list[CompletionChoice] = []
        self.contents: list[list[int]] = []
        self.replies: list[Reply] = []
        self.task: asyncio.Task[None]  # set by `start`
        self.began, self.created = time.monotonic(), int(time.time())
        self.changes = self._attached = 0
        self._following: list[asyncio.Future] = []

    # Waiting

    def start(self, work: Awaitable[None]) -> None:
        """Start working on the completions."""
        self.task = asyncio.ensure_future(work)
        self.task.add_done_callback(self._ended)

    async def wait(self) -> Call:
        """Wait until all completions are finished, or raise the error."""
        with self.attached():
            await self.result()
        return self

    async def next_change(self, since: int) -> None:
        """Wait until `changes` differs from `since`, which also happens at the end."""
        if self.changes == since:
            self._following.append(asyncio.get_running_loop().create_future())
            await self._following[-1]

    @property
    def failed(self) -> bool:
        """Whether it has ended without completions or is being cancelled."""
        return self.answers is None and (self.task.done() or self.task.cancelling() > 0)

    async def result(self) -> None:
        """Wait until all completions are finished, or raise the error.

        Must be called while attached.
        """
        try:
            await asyncio.shield(self.task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self.task.cancelled() and not (current and current.cancelling()):
                raise ApiError(403, "this session has ended", code="session_ended") from None
            raise

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Keep the call running while the context is open."""
        self._attached += 1
        try:
            yield
        finally:
            self._attached -= 1
            if not self._attached and not self.task.done():
                self.task.cancel()

    def _ended(self, task: asyncio.Task) -> None:
        if not task.cancelled():
            task.exception()  # mark it as retrieved, since there may be no waiter
        self.changed()

    def changed(self) -> None:
        """Wake up the followers."""
        self.changes += 1
        following, self._following = self._following, []
        for waiter in following:
            if not waiter.done():
                waiter.set_result(None)

    def show(self, k: int, new: Completion) -> None:
        """Add tokens that may be shown to completion k."""
        self.shown[k].append(new)
        self.changed()


# ---------------------------------------------------------------------------------------------------------- answering


def prefix_of(model: ServedModel, request: CompletionRequest) -> str:
    """Return the text that a completion must begin with to call a required tool."""
    return "" if request.forced is None else model.renderer.parser.prefix(request.forced or None)


async def opening(model: ServedModel, request: CompletionRequest) -> list[int]:
    """Return the token ids of a request without any history."""
    if request.prompts:
        return cast(list[int], (await encode_prompts(model, request)).prompts[0])
    check_characters(model, sum(len(message["content"]) for message in request.messages), "messages")
    try:
        image = "".join(map(model.speaker.tokenizer.token, model.image_ids)) if request.images else ""
        return await render(request, functools.partial(model.renderer.opening, image=image))
    except ChatTemplateError as error:  # without the file name, which clients should not see
        raise ApiError(400, error.problem[:500], param="messages") from None
    except ValueError as error:
        raise ApiError(400, str(error)[:500], param="messages") from None


async def encode_prompts(model: ServedModel, request: CompletionRequest) -> CompletionRequest:
    """Return a text completion request with token ids as prompts.

    Long texts are tokenized in a thread.
    """
    if beyond := next(
        (i for ids in request.prompts if not isinstance(ids, str) for i in ids if i >= model.vocab), None
    ):
        # Larger ids refer to images, which may be those of other clients.
        raise ApiError(
            400, f"prompt has the token id {beyond}, but must have ids from 0 to {model.vocab - 1}", param="prompt"
        )
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    if not texts:
        return request
    check_characters(model, max(map(len, texts)), "prompt")

    def encode() -> CompletionRequest:
        tokenize = model.speaker.tokenizer.encode
        return dataclasses.replace(
            request, prompts=tuple(tokenize(one) if isinstance(one, str) else one for one in request.prompts)
        )

    return encode() if sum(map(len, texts)) <= SHORT else await asyncio.to_thread(encode)


def check_characters(model: ServedModel, characters: int, param: str) -> None:
    """Reject a text that cannot fit into the context, before it is tokenized."""
    limit = model.speaker.max_length
    if characters > limit * LONGEST_TOKEN:
        message = f"the prompt has {characters} characters, but {model.name} supports at most {limit} tokens"
        raise ApiError(400, message, param=param, code="context_length_exceeded")


def check_tokens(model: ServedModel, request: CompletionRequest, limits: Limits) -> None:
    """Reject a request whose prompts and completions may have too many tokens together."""
    most = model.speaker.max_length
    new = min(request.max_tokens or model.speaker.sampling.max_new_tokens, most)
    tokens = sum(map(len, request.prompts)) + max(len(request.prompts), 1) * request.n * new
    limits.check("request_tokens", tokens, "prompt" if request.prompts else "n")


async def render(request: CompletionRequest, function: Callable[..., list[int]], *args: Any) -> list[int]:
    """Return the token ids of a request's messages from a function of the renderer.

    Long messages are rendered in a thread.
    """
    length = sum(len(message["content"]) for message in request.messages)
    short = not request.tools and len(request.messages) <= FEW and length <= SHORT
    args = (request.messages, *args, request.tools, request.template)
    return function(*args) if short else await asyncio.to_thread(function, *args)


def budget(model: ServedModel, request: CompletionRequest, length: int) -> int:
    """Return the maximum number of tokens of a completion."""
    limit = model.speaker.max_length
    room = limit - length
    if room < 1:
        message = f"the prompt has {length} tokens, but {model.name} supports at most {limit} including the completion"
        raise ApiError(400, message, param="messages" if request.messages else "prompt", code="context_length_exceeded")
    return min(request.max_tokens or model.speaker.sampling.max_new_tokens, room)


async def constraint_of(call: Call) -> SchemaConstraints | None:
    """Compile the JSON schema of a call in a thread, if it has one."""
    schema = call.asked.schema
    return None if schema is None else await asyncio.to_thread(call.model.json_output.constraint, schema)


def sampling_of(call: Call, seed: int, constraint: SchemaConstraints | None = None) -> Sampling:
    """Return the sampler's settings for a call whose `ids` are set."""
    model, request = call.model, call.asked
    tokens = budget(model, request, len(call.ids))
    return request.sampling(seed, tokens, model.speaker.tokenizer.stop_ids, constraint)


async def answer_alone(call: Call) -> None:
    """Answer a call without a session; nothing is remembered."""
    model, request = call.model, call.asked
    if request.images and not model.image_ids:
        raise ApiError(400, f"messages have images, but {model.name} reads text only", param="messages")
    call.prefix = prefix_of(model, request)
    ids = await opening(model, request)
    with contextlib.ExitStack() as held:
        if request.images:
            ids = await asyncio.to_thread(with_images, model, ids, request.images, held)
        call.ids = ids + (model.speaker.tokenizer.encode(call.prefix) if call.prefix else [])
        seed = secrets.randbits(32) if request.seed is None else request.seed
        call.sampling = sampling_of(call, seed, await constraint_of(call))
        await answer(call, CallTrace(TraceFile(None), "", call.id), request.stream)


def with_images(model: ServedModel, ids: list[int], urls: Sequence[str], held: contextlib.ExitStack) -> list[int]:
    """Replace the placeholders of a prompt by the ids of its images.

    Blocks while it reads and encodes the images, which are kept until `held` is closed.
    """
    places = [i for i, token in enumerate(ids) if token == model.placeholder]
    if len(places) != len(urls):  # a chat template may drop or repeat messages
        message = f"the prompt has {len(places)} image placeholders, but must have {len(urls)}, the number of images"
        raise ApiError(400, message, param="messages")
    parts, start = [], 0
    for place, pixels in zip(places, images.read(urls), strict=True):
        try:
            own, release = model.sampler.hold_image(pixels, model.speaker.policy)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages", code="invalid_image") from None
        except ImagesInUse as error:
            raise ApiError(429, str(error), param="messages", code="images_in_use") from None
        held.callback(release)
        parts += [*ids[start:place], *own]
        start = place + 1
    return parts + ids[start:]


async def answer(call: Call, trace: CallTrace, streamed: bool) -> None:
    """Sample the completions of a call whose `ids` and `sampling` are set.

    Each completion is recorded in the trace before a client can see it.
    """
    assert call.sampling is not None
    speaker, sampler = call.model.speaker, call.model.sampler
    more: dict[str, Any] = {}
    if streamed:

        def on_tokens(k: int, new: Completion) -> None:
            with contextlib.suppress(TraceError):  # writing the completions will fail too and report the error
                trace.add_tokens(k, new, functools.partial(call.show, k, new))

        more = {"on_tokens": on_tokens}
    call.changed()
    try:
        answers = await sampler.answer(call.ids, call.sampling, policy=speaker.policy, n=call.asked.n, **more)
    except ValueError as error:  # rejected by the sampler, for example ids outside the vocabulary
        raise ApiError(400, str(error), param="messages" if call.asked.messages else "prompt") from None
    except BatcherClosed:
        raise shutting_down() from None
    if wrong := next((a.finish for a in answers if a.finish not in ("stop", "length")), None):
        raise ApiError(500, f"the model did not finish its completion ({wrong})", code="answer_lost")
    written = [a.tokens.tolist() for a in answers]
    call.contents = [call.model.renderer.content(tokens) for tokens in written]
    choices = [choice(call, content, a.finish) for content, a in zip(call.contents, answers, strict=True)]
    await trace.write_answers(answers, [one.text for one in choices])
    call.choices, call.answers = choices, list(answers)
    call.replies = [Reply(c.text, t, a.finish) for c, t, a in zip(choices, written, answers, strict=True)]


def choice(call: Call, content: list[int], finish: str) -> CompletionChoice:
    """Return a completion as the client sees it."""
    request, parser = call.asked, call.model.renderer.parser
    words = text.visible(call.model.speaker.tokenizer, content, request.stops)
    names = {tool["function"]["name"] for tool in request.tools}
    calls: list[tool_calls.ToolCall] = []
    if request.forced:
        words, calls = "", [tool_calls.forced(parser, request.forced, words)]
    elif names:
        words, calls = parser.parse(call.prefix + words, names)
    ids = tuple(requests.new_id("call") for _ in calls)
    return CompletionChoice(words, tuple(calls), ids, "tool_calls" if calls and finish == "stop" else finish)
