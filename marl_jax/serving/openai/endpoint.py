"""The OpenAI-compatible endpoint: chat and text completions of served models, and sessions.

    POST /v1/chat/completions    POST /v1/completions    GET /v1/models    GET /health    GET /metrics

Calls with a session's key belong to the session. See `admin.py` for the routes of sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from marl_jax.serving.http import app as http
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.guard import Limits, Peer, RequestGuard
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.http.prometheus import ServerMetrics
from marl_jax.serving.http.streams import EventStream
from marl_jax.serving.openai import calls, choices, requests
from marl_jax.serving.openai.calls import Call, ServedModel
from marl_jax.serving.openai.requests import CompletionRequest
from marl_jax.serving.sessions.admin import Admin, Control
from marl_jax.serving.sessions.sessions import Session, Sessions, unknown_model
from marl_jax.serving.sessions.traces import TraceFile

RETRY = "x-stainless-retry-count"
AT_ONCE = 16  # calls that one request starts before other requests get their turn


class Endpoint:
    """An OpenAI-compatible endpoint for some models.

    Args:
        models: Models by the names that clients use.
        keys: Keys that clients may use; sessions add their own. None requires no key.
        limits: Limits on requests; None uses the defaults.
        traces: File that sessions are recorded in; None records nothing.
        reload: See `Admin`.
        control: See `Admin`.
        session_idle: Seconds after which an unused session is ended; None never ends one.
        routes: Additional routes, such as those of the web page.
        open_paths: Paths of `routes` that need no key.
        peer: This process among those that serve together; None if it serves alone.
    """

    def __init__(
        self, models: Mapping[str, ServedModel], *, keys: Keys | None = None, limits: Limits | None = None,
        traces: TraceFile | None = None, reload: Callable[[str, str], Awaitable[int]] | None = None,
        control: Control | None = None, session_idle: float | None = None, routes: Sequence[Route] = (),
        open_paths: Sequence[str] = (), peer: Peer | None = None,
    ):  # fmt: skip
        self.models, self.keys, self.peer = dict(models), keys or Keys(required=False), peer or Peer()
        self.metrics, self.sessions = ServerMetrics(), Sessions(models, traces, self.keys, self.peer)
        self.limits, self.reload, self.control = limits or Limits(), reload, control
        self.routes, self.open_paths = tuple(routes), tuple(open_paths)
        self.created, self.session_idle = int(time.time()), session_idle
        open_sessions = self.sessions.open_sessions
        self.metrics.gauge("serving_open_sessions", "Open sessions.", lambda: len(open_sessions))

    def application(self) -> RequestGuard:
        """Return the application with its routes, keys and limits."""
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completion, methods=["POST"]),
            Route("/v1/models", self._list_models),
            Route("/v1/models/{model:path}", self._show_model),
            *Admin(self.sessions, self.reload, self.control).routes(),
            *self.routes,
        ]
        return http.application(
            routes, keys=self.keys, limits=self.limits, metrics=self.metrics, health=self._health,
            lifespan=self._lifespan, open_paths=self.open_paths, peer=self.peer,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: RequestGuard) -> AsyncIterator[None]:
        """End idle sessions while the server runs."""

        async def watch(seconds: float) -> None:
            while True:
                await asyncio.sleep(min(seconds / 2, 60.0))
                await self.sessions.end_idle(seconds)

        watching = None if self.session_idle is None else asyncio.ensure_future(watch(self.session_idle))
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()

    # Completions

    async def _chat(self, request: Request) -> Response:
        body = await http.read_json(request)
        parsed = requests.read_chat(body, self.limits)
        calls.check_tokens(self._model_of(request, parsed), parsed, self.limits)
        call = self._begin(request, parsed, await self._digest(request))
        if parsed.stream:
            return await self._streamed(call)
        await http.unless_gone(request, call.wait())
        self._count(call)
        return JSONResponse(choices.chat_completion(call, await self._tops(call)))

    async def _completion(self, request: Request) -> Response:
        body = await http.read_json(request)
        parsed = requests.read_completion(body, self.limits)
        if parsed.echo and (parsed.logprobs or parsed.stream):
            raise ApiError(400, "echo is true, but must be false with logprobs or stream", param="echo")
        if parsed.stream and len(parsed.prompts) > 1:
            raise ApiError(400, "prompt is a list of prompts, but must be one prompt with stream", param="prompt")
        model = self._model_of(request, parsed)
        parsed = await calls.encode_prompts(model, parsed)
        calls.check_tokens(model, parsed, self.limits)
        begun, digest = [], await self._digest(request)
        with contextlib.ExitStack() as attached:
            for number, one in enumerate(_one_by_one(parsed)):
                begun.append(self._begin(request, one, f"{digest}-{number}"))
                attached.enter_context(begun[-1].attached())
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)  # other requests get their turn
            if parsed.stream:
                return await self._streamed(begun[0])
            await http.unless_gone(request, asyncio.gather(*(call.result() for call in begun)))
        for call in begun:
            self._count(call)
        return JSONResponse(choices.completion(begun, [await self._tops(call) for call in begun]))

    def _model_of(self, request: Request, parsed: CompletionRequest) -> ServedModel:
        """Return the model of a request, if the request has access to it."""
        models = owner.models if isinstance(owner := http.owner(request), Session) else self.models
        if parsed.model not in models:
            raise unknown_model(parsed.model, models)
        return models[parsed.model]

    async def _digest(self, request: Request) -> str:
        """Return a digest by which a session recognizes a retry, or "" without a session."""
        if not isinstance(http.owner(request), Session):
            return ""
        return hashlib.sha256(request.scope["path"].encode() + b"\0" + await request.body()).hexdigest()

    def _begin(self, request: Request, parsed: CompletionRequest, digest: str) -> Call:
        """Start the call of a request, in the session of its key if any."""
        owner = http.owner(request)
        if isinstance(owner, Session):
            retried = request.headers.get(RETRY, "0") not in ("", "0")
            return owner.call(parsed, digest if retried else None, digest)
        call = Call(self._model_of(request, parsed), parsed)
        call.start(calls.answer_alone(call))
        return call

    async def _streamed(self, call: Call) -> Response:
        stream = EventStream(call, tops=self._tops, first_shown=self._observe_first, answered=self._count)
        return await stream.begin()

    async def _tops(self, call: Call) -> list[list] | None:
        """Return the most likely tokens at each token of each completion, if requested."""
        speaker, sampler, k = call.model.speaker, call.model.sampler, call.asked.top_logprobs
        if not k:
            return None
        assert call.sampling is not None
        rows = [call.ids + content for content in call.contents]
        return [
            await asyncio.to_thread(sampler.top_logprobs, row, len(call.ids), call.sampling, speaker.policy, k)
            for row in rows
        ]

    # Models

    async def _list_models(self, request: Request) -> Response:
        names = http.owner(request).models if isinstance(http.owner(request), Session) else self.models
        return JSONResponse({"object": "list", "data": [self._model(name) for name in names]})

    async def _show_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self.models:
            raise unknown_model(name, self.models)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        limit = self.models[name].speaker.max_length
        return {"id": name, "object": "model", "created": self.created, "owned_by": "marl_jax", "max_model_len": limit}

    # Health and metrics

    def failed_models(self) -> list[str]:
        """Return the names of models whose sampler has stopped."""
        return [name for name, model in self.models.items() if not getattr(model.speaker.sampler, "running", True)]

    def _health(self) -> dict[str, Any]:
        failed = self.failed_models()
        health = {"models": list(self.models), "sessions": self.peer.sessions.total}
        return health | ({"status": "failed", "failed": failed} if failed else {})

    def _count(self, call: Call) -> None:
        """Count the tokens of an answered call."""
        figures, name = choices.total([call]), call.model.name
        self.metrics.count("serving_prompt_tokens_total", "Prompt tokens.", figures["prompt_tokens"], model=name)
        self.metrics.count(
            "serving_completion_tokens_total", "Completion tokens.", figures["completion_tokens"], model=name
        )
        if isinstance(call.fork, str) or call.after is not None:
            kind = call.fork or "continued"
            self.metrics.count("serving_continuations_total", "Session calls with a history, by outcome.",
                               kind=kind, model=name)  # fmt: skip

    def _observe_first(self, call: Call) -> None:
        """Record how long a client waited for the first text of a stream."""
        seconds, name = time.monotonic() - call.began, call.model.name
        self.metrics.observe("serving_first_token_seconds", "Seconds from request to first text.", seconds, model=name)


def _one_by_one(request: CompletionRequest) -> list[CompletionRequest]:
    """Split a completion request with several prompts into requests with one prompt."""
    return [dataclasses.replace(request, prompts=(prompt,)) for prompt in request.prompts]
