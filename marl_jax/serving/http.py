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
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from marl_jax.serving.errors import ApiError, ClientGone
from marl_jax.serving.guard import Guard, Limits
from marl_jax.serving.keys import Keys, check_address
from marl_jax.serving.prometheus import CONTENT_TYPE, Metrics

T = TypeVar("T")


def application(
    routes: Iterable[BaseRoute],
    *,
    keys: Keys,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    health: Callable[[], dict[str, Any]] = dict,
    lifespan: Callable | None = None,
    open_paths: Iterable[str] = (),
) -> Starlette:
    """Routes behind keys and limits, with GET /health (open to all) and GET /metrics.

    `health` returns what /health shows besides {"status": "ok"}; with another "status" it is answered with 503.
    `lifespan` is Starlette's: an async context manager of the application, which is open while the server runs.
    `open_paths` are answered without a key, as /health is.
    """
    limits, metrics = limits or Limits(), metrics or Metrics()

    async def get_health(request: Request) -> Response:
        found = {"status": "ok", **health()}
        return JSONResponse(found, 200 if found["status"] == "ok" else 503)

    async def get_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    async def refuse(request: Request, error: HTTPException) -> Response:
        message = {404: f"there is no {request.url.path}", 405: f"{request.url.path} does not take {request.method}"}
        text = message.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, text, headers=error.headers).response()

    own = [Route("/health", get_health), Route("/metrics", get_metrics)]
    app = Starlette(
        routes=[*routes, *own],
        middleware=[Middleware(Guard, keys=keys, limits=limits, metrics=metrics, open_paths=tuple(open_paths))],
        exception_handlers={HTTPException: refuse},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would send the body, and the key, once more
    return app


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
        value = json.loads(body, parse_constant=_refuse_constant)
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


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled when the client hangs up; the body must have been read before."""

    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, listening = asyncio.ensure_future(work), asyncio.ensure_future(hung_up())
    try:
        await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, listening):
            task.cancel()
        await asyncio.gather(working, listening, return_exceptions=True)
