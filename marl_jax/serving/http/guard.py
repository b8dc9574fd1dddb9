"""ASGI middleware for request ids, keys, limits, metrics and error responses."""

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

from marl_jax.serving.http.errors import ApiError, ClientGone, shutting_down
from marl_jax.serving.http.keys import Keys, is_loopback
from marl_jax.serving.http.prometheus import ServerMetrics

log = logging.getLogger(__name__)

OPEN_PATHS = ("/health",)  # paths that never need a key
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")  # they change nothing
UNLIMITED_PATHS = ("/health", "/metrics")  # paths exempt from the limit on concurrent requests
EVENTS = b"text/event-stream"
SAFE_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on requests.

    Attributes:
        body_bytes: Maximum size of a request body; larger bodies get status 413.
        concurrent: Maximum number of concurrent requests; excess requests get status 429.
        seconds: Time limit for a response. After it the client gets status 504, or a stream that has begun ends.
        body_seconds: Time limit for the body to arrive; after it the client gets status 408.
        retry_after: Seconds that a client with status 429 should wait.
        completions: Maximum number of completions per request, prompts times n; more get status 413.
        messages: Maximum number of messages per conversation; more get status 413.
        request_tokens: Maximum number of tokens per request, prompts and completions together; more get status 413.
        image_hosts: Hosts from which images of messages may be fetched; () makes no outgoing requests.
    """

    body_bytes: int = 8 << 20
    concurrent: int = 256
    seconds: float = 600.0
    body_seconds: float = 30.0
    retry_after: int = 1
    completions: int = 4096
    messages: int = 4096
    request_tokens: int = 1 << 22
    image_hosts: tuple[str, ...] = ()

    def check(self, name: str, value: int, param: str | None = None) -> None:
        """Reject a request whose number of completions, messages or tokens exceeds the limit.

        Args:
            name: Name of the limit; "max_" and the name is the config field.
            value: Number in the request.
            param: Field of the request that is too large.
        """
        most, noun = getattr(self, name), name.rpartition("_")[2]
        if value > most:
            message = f"the request has {value} {noun}, but must have at most {most} (serve.max_{name}). Split it."
            raise ApiError(413, message, param=param, code="request_too_large")


class RequestGuard:
    """An ASGI application that protects the routes of a router with keys and limits."""

    def __init__(
        self, router: Router, keys: Keys, limits: Limits, metrics: ServerMetrics, open_paths: Iterable[str] = (),
        under_way: Gauge | None = None,
    ):  # fmt: skip
        self.router, self.keys, self.limits, self.metrics = router, keys, limits, metrics
        self.open_paths = frozenset((*OPEN_PATHS, *open_paths))
        self.under_way = under_way or Gauge()
        metrics.gauge("http_requests_under_way", "Requests in progress.", lambda: self.under_way.own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope["app"] = self  # with an app in its scope, the router raises HTTPException for unknown paths
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
            if error is not None:
                await exchange.refuse(error, headers)
        except (ClientGone, ClientDisconnect):
            exchange.status = exchange.status or 499
        finally:
            self._measure(exchange, time.perf_counter() - began)

    async def _answer(self, exchange: _Exchange, headers: dict[bytes, bytes]) -> ApiError | None:
        """Run the handler and return the error that is still to be sent."""
        scope, limits = exchange.scope, self.limits
        try:
            if scope["path"] not in self.open_paths:
                scope["owner"] = self.keys.owner(headers.get(b"authorization", b""))
            if not self.keys.required:
                _check_host(headers.get(b"host", b""))
            if scope["method"] not in SAFE_METHODS:
                _check_type(headers, self.keys.required)
                if not self.keys.required:
                    _check_site(headers)
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
                return ApiError(504, f"no response within {limits.seconds:g} s", code="timeout")
            return self._failed(scope)
        except (ClientGone, ClientDisconnect):
            raise
        except asyncio.CancelledError:  # by the server, which shuts down
            return shutting_down()
        except Exception:
            return self._failed(scope)
        return None

    def _let_in(self, scope: Scope) -> int:
        """Count a request and reject it if there are too many.

        Returns 1, or 0 for a path without a limit.
        """
        if scope["path"] in UNLIMITED_PATHS:
            return 0
        if self.under_way.total >= self.limits.concurrent:
            message = f"{self.limits.concurrent} requests are already in progress; try again later"
            wait = {"Retry-After": str(self.limits.retry_after)}
            raise ApiError(429, message, code="rate_limit_exceeded", headers=wait)
        self.under_way.add(1)
        return 1

    def _failed(self, scope: Scope) -> ApiError:
        log.exception("%s %s failed, request %s", scope["method"], scope["path"], scope["request_id"])
        return ApiError(
            500, f"internal server error; see request {scope['request_id']} in the server log", code="internal_error"
        )

    def _measure(self, exchange: _Exchange, seconds: float) -> None:
        route = exchange.scope.get("route")  # unknown paths share one label, or a scanner would fill the metrics
        labels = dict(path=getattr(route, "path", "other"))
        self.metrics.count("http_requests_total", "Requests answered.", status=exchange.status, **labels)
        self.metrics.observe("http_request_seconds", "Seconds from request to response.", seconds, **labels)


class _Exchange:
    """One request and its response, between the server and the handler."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits):
        self.scope, self.limits = scope, limits
        self._receive, self._send = receive, send
        self.status = 0  # 0 until the response has begun
        self._streams = False  # whether a response of server-sent events has begun and not ended
        self._received, self._complete = 0, False
        self._deadline = asyncio.get_running_loop().time() + limits.body_seconds

    def too_large(self) -> ApiError:
        """Return the error for a body that exceeds the limit."""
        return ApiError(413, f"the body has more than {self.limits.body_bytes} bytes", code="body_too_large")

    async def receive(self) -> Message:
        """Return the client's next message and enforce the limits on the body."""
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
        """Send a message to the client and add the request id to the response headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = (b"x-request-id", self.scope["request_id"].encode())
            message = {**message, "headers": [*message.get("headers", ()), own]}
            self._streams = any(value.startswith(EVENTS) for _, value in message["headers"])
        elif not message.get("more_body", False):
            self._streams = False
        await self._send(message)

    async def refuse(self, error: ApiError, headers: dict[bytes, bytes]) -> None:
        """Send an error response, or the error as the last event of a stream.

        The rest of the body is read first, because clients send their body before they read the response.
        """
        if self.status:
            if self._streams:
                await self.send({"type": "http.response.body", "body": error.event(), "more_body": False})
            return
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
    """Return an error of the router in OpenAI's format."""
    path = scope["path"]
    message = {404: f"{path} does not exist", 405: f"{path} does not support {scope['method']}"}
    text = message.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, text, headers=error.headers)


def _check_host(header: bytes) -> None:
    """Reject host names other than this machine's when no key is required.

    This prevents DNS rebinding, where a web page reaches the server under the page's own host name.
    """
    name = re.sub(r":\d*$", "", header.decode("latin-1"))
    if name and not is_loopback(name):
        raise ApiError(403, f"Host is {name[:100]!r}, but must be localhost or 127.0.0.1 when no key is set")


def _check_type(headers: dict[bytes, bytes], key_required: bool) -> None:
    """Reject bodies that are not JSON.

    Forms and scripts of any web page can send other types to this machine without a preflight request, which would tell
    the browser that the server does not accept them. Without a key, an empty body must not have such a type either.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    body = headers.get(b"content-length", b"0").strip(b"0") or b"transfer-encoding" in headers
    if kind != "application/json" and (body or kind and not key_required):
        raise ApiError(415, f"Content-Type is {kind[:100] or 'missing'}, but must be application/json")


def _check_site(headers: dict[bytes, bytes]) -> None:
    """Reject requests that a browser sends for another site when no key is required."""
    origin, site = headers.get(b"origin", b"").lower(), headers.get(b"sec-fetch-site", b"").lower()
    other_origin = bool(origin) and origin.partition(b"://")[2] != headers.get(b"host", b"").lower()
    if other_origin or site not in (b"", b"same-origin", b"none"):
        name = origin.decode("latin-1")[:100] or "another site"
        raise ApiError(403, f"Origin is {name!r}, but must be this server when no key is set", code="cross_site")


class Gauge:
    """A counter for this process with a total over all processes."""

    def __init__(self):
        self.own = 0

    def add(self, by: int) -> None:
        """Add a number, which may be negative, to the count of this process."""
        self.own += by

    @property
    def total(self) -> int:
        """Sum over all processes."""
        return self.own


@dataclasses.dataclass(frozen=True)
class Peer:
    """One of the processes that serve the same address.

    Attributes:
        mark: Prefix of the ids and keys of its sessions, by which other processes recognize their owner.
        port: Port on which only this process listens; None if it serves alone.
        requests: Number of requests in progress.
        sessions: Number of open sessions.
        snapshots: Returns the metrics of all processes (`ServerMetrics.snapshot`); None if it serves alone.
    """

    mark: str = ""
    port: int | None = None
    requests: Gauge = dataclasses.field(default_factory=Gauge)
    sessions: Gauge = dataclasses.field(default_factory=Gauge)
    snapshots: Callable[[], Awaitable[list[list[dict[str, Any]]]]] | None = None
