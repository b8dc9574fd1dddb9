"""What stands around every request: its id, key, limits and metrics, and an answer whatever the handler raises."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from marl_jax.serving.http.errors import ApiError, ClientGone
from marl_jax.serving.http.keys import Keys, is_loopback
from marl_jax.serving.http.prometheus import ServerMetrics

log = logging.getLogger(__name__)

OPEN_PATHS = ("/health",)  # need no key, in every application
UNLIMITED_PATHS = ("/health", "/metrics")  # are answered also when too many requests are under way
SAFE_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a client may take.

    body_bytes    of a request; more is status 413
    concurrent    requests under way; more is status 429
    seconds       for an answer; then status 504, or the end of a stream that has begun
    body_seconds  for the body to arrive; then status 408
    retry_after   seconds that a client with status 429 is asked to wait
    """

    body_bytes: int = 8 << 20
    concurrent: int = 256
    seconds: float = 600.0
    body_seconds: float = 30.0
    retry_after: int = 1


class RequestGuard:
    """An ASGI application: a router's routes behind keys and limits."""

    def __init__(
        self, router: Router, keys: Keys, limits: Limits, metrics: ServerMetrics, open_paths: Iterable[str] = (),
        under_way: Gauge | None = None,
    ):  # fmt: skip
        self.router, self.keys, self.limits, self.metrics = router, keys, limits, metrics
        self.open_paths = frozenset((*OPEN_PATHS, *open_paths))
        self.under_way = under_way or Gauge()
        metrics.gauge("http_requests_under_way", "Requests not answered yet.", lambda: self.under_way.own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # a router within an application raises what it refuses
        if scope["type"] != "http":
            return await self.router(scope, receive, send)
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        scope["request_id"] = given if SAFE_ID.fullmatch(given) else f"req-{secrets.token_hex(16)}"
        scope["owner"] = None
        exchange = _Exchange(scope, receive, send, self.limits)
        began = time.perf_counter()
        try:
            error = await self._answer(exchange, headers)
            if error is not None and not exchange.status:
                await exchange.refuse(error, headers)
        except (ClientGone, ClientDisconnect):
            exchange.status = exchange.status or 499
        finally:
            self._measure(exchange, time.perf_counter() - began)

    async def _answer(self, exchange: _Exchange, headers: dict[bytes, bytes]) -> ApiError | None:
        """Lets the handler answer; an error that is still to be answered is returned."""
        scope, limits = exchange.scope, self.limits
        try:
            if scope["path"] not in self.open_paths:
                scope["owner"] = self.keys.owner(headers.get(b"authorization", b""))
            if not self.keys.required:
                _check_host(headers.get(b"host", b""))
            if int(headers.get(b"content-length", b"0")) > limits.body_bytes:
                raise exchange.too_large()
            counted = self._let_in(scope)
            try:
                async with asyncio.timeout(limits.seconds) as timer:
                    await self.router(scope, exchange.receive, exchange.send)
            finally:
                self.under_way.add(-counted)
        except ApiError as error:
            return error
        except HTTPException as error:
            await _no_route(scope, error).response()(scope, exchange.receive, exchange.send)
        except TimeoutError:
            if timer.expired():
                return ApiError(504, f"no answer within {limits.seconds:g} s", code="timeout")
            return self._failed(scope)
        except (ClientGone, ClientDisconnect):
            raise
        except Exception:
            return self._failed(scope)
        return None

    def _let_in(self, scope: Scope) -> int:
        """Counts a request, if it counts; one too many is refused."""
        if scope["path"] in UNLIMITED_PATHS:
            return 0
        if self.under_way.total >= self.limits.concurrent:
            message = f"{self.limits.concurrent} requests are under way; try again later"
            wait = {"Retry-After": str(self.limits.retry_after)}
            raise ApiError(429, message, code="rate_limit_exceeded", headers=wait)
        self.under_way.add(1)
        return 1

    def _failed(self, scope: Scope) -> ApiError:
        log.exception("%s %s failed, request %s", scope["method"], scope["path"], scope["request_id"])
        return ApiError(500, f"the server failed; its log has the request {scope['request_id']}", code="internal_error")

    def _measure(self, exchange: _Exchange, seconds: float) -> None:
        route = exchange.scope.get("route")  # unknown paths are one, or a scan would fill the metrics
        labels = dict(path=getattr(route, "path", "other"))
        self.metrics.count("http_requests_total", "Requests answered.", status=exchange.status, **labels)
        self.metrics.observe("http_request_seconds", "Seconds from request to answer.", seconds, **labels)


class _Exchange:
    """One request and its answer, seen from between server and handler."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits):
        self.scope, self.limits = scope, limits
        self._receive, self._send = receive, send
        self.status = 0  # 0: no answer has begun
        self._received, self._complete = 0, False
        self._deadline = asyncio.get_running_loop().time() + limits.body_seconds

    def too_large(self) -> ApiError:
        """The error of a body beyond the limit."""
        return ApiError(413, f"the body has more than {self.limits.body_bytes} bytes", code="body_too_large")

    async def receive(self) -> Message:
        """The next message from the client, a part of the body within its limits."""
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {self.limits.body_seconds:g} s") from None
        self._received += len(message.get("body", b""))
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        if self._received > self.limits.body_bytes:
            raise self.too_large()
        return message

    async def send(self, message: Message) -> None:
        """A message to the client; the head of the answer gets the id of the request."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = (b"x-request-id", self.scope["request_id"].encode())
            message = {**message, "headers": [*message.get("headers", ()), own]}
        await self._send(message)

    async def refuse(self, error: ApiError, headers: dict[bytes, bytes]) -> None:
        """Answers with an error; what is left of a body is read first, because clients send before they read."""
        rest = not self._complete and (b"content-length" in headers or b"transfer-encoding" in headers)
        if rest:
            error.headers["Connection"] = "close"
        if rest and error.status != 408 and b"expect" not in headers:
            await self._drain()
        await error.response()(self.scope, self._receive, self.send)

    async def _drain(self, seconds: float = 2.0) -> None:
        most = 4 * self.limits.body_bytes
        try:
            async with asyncio.timeout(seconds):
                while not self._complete and self._received < most:
                    message = await self._receive()
                    self._received += len(message.get("body", b""))
                    self._complete = not message.get("more_body", False)
        except TimeoutError:
            pass


def _no_route(scope: Scope, error: HTTPException) -> ApiError:
    """What the router refuses, in OpenAI's shape."""
    path = scope["path"]
    message = {404: f"there is no {path}", 405: f"{path} does not take {scope['method']}"}
    text = message.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, text, headers=error.headers)


def _check_host(header: bytes) -> None:
    """Without keys only names of this machine are accepted, so that no web page reaches it under a name of its own."""
    name = re.sub(r":\d*$", "", header.decode("latin-1"))
    if name and not is_loopback(name):
        raise ApiError(403, f"Host is {name[:100]!r}; without a key, expected localhost or 127.0.0.1")


class Gauge:
    """How many there are of something, in this process and in all."""

    def __init__(self):
        self.own = 0

    def add(self, by: int) -> None:
        """More or, with a negative number, fewer in this process."""
        self.own += by

    @property
    def total(self) -> int:
        """In all processes."""
        return self.own


@dataclasses.dataclass(frozen=True)
class Peer:
    """One of the processes that answer the requests of one server.

    mark       stands in the ids and keys of its sessions, so that others know whose they are
    port       on which it alone listens; None where it serves alone
    requests   under way
    sessions   that have not ended
    snapshots  the metrics of all processes (`ServerMetrics.snapshot`); None where it serves alone
    """

    mark: str = ""
    port: int | None = None
    requests: Gauge = dataclasses.field(default_factory=Gauge)
    sessions: Gauge = dataclasses.field(default_factory=Gauge)
    snapshots: Callable[[], Awaitable[list[list[dict[str, Any]]]]] | None = None
