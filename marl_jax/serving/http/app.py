"""What every HTTP server here shares: an application behind keys and limits, with health and metrics.

    app = application([Route("/predict", predict, methods=["POST"])], keys=Keys.of(key), health=lambda: {"model": "…"})
    server.serve(app, "127.0.0.1", 8000)

A handler raises `ApiError` for what the client did wrong; anything else it raises is logged with the id of the request
and answered with status 500 and no details.
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
    """Starlette's route without its handling of exceptions, which costs each piece of an answer and is the guard's."""

    def __init__(self, path: str, handler: Handler, methods: Iterable[str] = ("GET",)):
        super().__init__(path, _Handled(handler), methods=list(methods))


class _Handled:
    """A handler as an ASGI application."""

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
    """Routes behind keys and limits, with GET /health (open to all) and GET /metrics.

    `health` returns what /health shows besides {"status": "ok"}; with another "status" it is answered with 503.
    `lifespan` makes an async context manager from the application, which is open while the server runs.
    `open_paths` are answered without a key, as /health is.
    `peer` is this process among those that serve together; None: it serves alone.
    """
    limits, metrics, peer = limits or Limits(), metrics or ServerMetrics(), peer or Peer()

    async def get_health(request: Request) -> Response:
        found = {"status": "ok", **health()}
        return JSONResponse(found, 200 if found["status"] == "ok" else 503)

    async def get_metrics(request: Request) -> Response:
        text = metrics.text() if peer.snapshots is None else text_of(await peer.snapshots())
        return Response(text, media_type=CONTENT_TYPE)

    own = [Route("/health", get_health), Route("/metrics", get_metrics)]
    # A redirect to a path with or without a slash would send the body, and the key, once more.
    router = routing.Router([*routes, *own], redirect_slashes=False, lifespan=lifespan)
    return RequestGuard(router, keys, limits, metrics, open_paths, peer.requests)


def read_settings(settings: ConfigDict) -> tuple[Keys, Limits]:
    """The keys and limits of `config.serve`; the key itself stands in the environment, never in a config."""
    keys = Keys.of(os.environ.get(settings.key_env, ""))
    check_address(settings.host, keys, f"a key in the environment variable {settings.key_env}")
    limits = Limits(
        body_bytes=int(settings.max_body * (1 << 20)), concurrent=settings.max_requests, seconds=settings.time_limit
    )
    return keys, limits


# ---------------------------------------------------------------------------------------------------- for handlers


def owner(request: Request) -> Any:
    """Whom the key of a request belongs to; None without a key."""
    return request.scope["owner"]


def request_id(request: Request) -> str:
    """The id of a request: the client's own X-Request-Id, or a new one."""
    return request.scope["request_id"]


async def read_json(request: Request) -> dict[str, Any]:
    """The body, a JSON object."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which a page in a browser cannot send to another site without asking
        raise ApiError(415, f"Content-Type is {kind or 'missing'}; expected application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not accepted")
    body = await request.body()
    try:
        value = _decode(body.decode(json.detect_encoding(body), "surrogatepass"))
        if b"\\u" in body:  # escapes can spell half of a surrogate pair, which is no text
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is a JSON {type(value).__name__}; expected an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled when the client hangs up."""
    working, hang_up = asyncio.ensure_future(work), request.scope["hang_up"]
    try:
        with hang_up.calls(working.cancel):
            return await working
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if hang_up.happened and not (task and task.cancelling()):
            raise ClientGone from None
        raise
