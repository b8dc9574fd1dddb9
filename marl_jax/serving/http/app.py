"""Application shared by all HTTP servers: routes with keys, limits, health and metrics.

    app = application([Route("/predict", predict, methods=["POST"])], keys=Keys.of(key), health=lambda: {"model": "…"})
    server.serve(app, "127.0.0.1", 8000)

Handlers raise `ApiError` for client errors. Any other exception is logged with the request id and answered with status
500 and no details.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from ml_collections import ConfigDict
from starlette import routing
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from marl_jax.serving.http.errors import ApiError, ClientGone
from marl_jax.serving.http.guard import Limits, Peer, RequestGuard
from marl_jax.serving.http.keys import Keys, check_address
from marl_jax.serving.http.prometheus import CONTENT_TYPE, ServerMetrics, text_of

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class Route(routing.Route):
    """A Starlette route without Starlette's exception handling.

    `RequestGuard` handles exceptions, and Starlette's wrapper would cost time on every chunk of a response.
    """

    def __init__(self, path: str, handler: Handler, methods: Iterable[str] = ("GET",)):
        super().__init__(path, _Handled(handler), methods=list(methods))


class _Handled:
    """ASGI application that calls a handler."""

    def __init__(self, handler: Handler):
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(Request(scope, receive, send))
        await response(scope, receive, send)


def application(
    routes: Iterable[Route],
    *,
    keys: Keys,
    limits: Limits | None = None,
    metrics: ServerMetrics | None = None,
    health: Callable[[], dict[str, Any]] = dict,
    lifespan: Callable | None = None,
    open_paths: Iterable[str] = (),
    peer: Peer | None = None,
) -> RequestGuard:
    """Build an application with keys, limits, GET /health (no key needed) and GET /metrics.

    Args:
        routes: Routes of the application.
        keys: Keys that clients may use.
        limits: Limits on requests; None uses the defaults.
        metrics: Metrics that GET /metrics reports; None creates new ones.
        health: Returns the fields that /health shows in addition to {"status": "ok"}. If it returns another "status",
            /health answers with 503.
        lifespan: Maps the application to an async context manager that is open while the server runs.
        open_paths: Paths that need no key, like /health.
        peer: This process among those that serve together; None if it serves alone.
    """
    limits, metrics, peer = limits or Limits(), metrics or ServerMetrics(), peer or Peer()

    async def get_health(request: Request) -> Response:
        status = {"status": "ok", **health()}
        return JSONResponse(status, 200 if status["status"] == "ok" else 503)

    async def get_metrics(request: Request) -> Response:
        text = metrics.text() if peer.snapshots is None else text_of(await peer.snapshots())
        return Response(text, media_type=CONTENT_TYPE)

    own = [Route("/health", get_health), Route("/metrics", get_metrics)]
    # A redirect that adds or removes a slash would make the client send the body and the key twice.
    router = routing.Router([*routes, *own], redirect_slashes=False, lifespan=lifespan)
    return RequestGuard(router, keys, limits, metrics, open_paths, peer.requests)


def read_settings(settings: ConfigDict) -> tuple[Keys, Limits]:
    """Return the keys and limits of `config.serve`.

    The key itself is read from the environment. It is never part of a config.
    """
    keys = Keys.of(os.environ.get(settings.key_env, ""))
    check_address(settings.host, keys, f"set a key in the environment variable {settings.key_env}")
    limits = Limits(
        body_bytes=int(settings.max_body * (1 << 20)), concurrent=settings.max_requests, seconds=settings.time_limit,
        completions=settings.max_completions, messages=settings.max_messages,
        request_tokens=settings.max_request_tokens, image_hosts=tuple(settings.image_hosts),
    )  # fmt: skip
    return keys, limits


# -------------------------------------------------------------------------------------------------------- handlers


def owner(request: Request) -> Any:
    """Return the owner of the request's key, or None without a key."""
    return request.scope["owner"]


def request_id(request: Request) -> str:
    """Return the id of a request: the client's X-Request-Id, or a new one."""
    return request.scope["request_id"]


async def read_json(request: Request) -> dict[str, Any]:
    """Return the request body, which must be a JSON object."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "Content-Encoding is set, but compressed bodies are not supported")
    body = await request.body()
    try:
        value = _decode(body.decode(json.detect_encoding(body), "surrogatepass"))
        if b"\\u" in body:  # escapes can contain lone surrogates, which are not valid text
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is a JSON {type(value).__name__}, but must be an object")
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_decode = json.JSONDecoder(parse_constant=_reject_constant).decode


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`, which is cancelled if the client disconnects."""
    working, hang_up = asyncio.ensure_future(work), request.scope["hang_up"]
    try:
        with hang_up.calls(working.cancel):
            return await working
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if hang_up.happened and not (task and task.cancelling()):
            raise ClientGone from None
        raise
