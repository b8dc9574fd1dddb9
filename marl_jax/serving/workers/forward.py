"""Forward requests to the process that has to answer them and stream its response back.

The key and id of a session begin with the number of the worker that owns it. A worker that receives a request for
another worker's session forwards it. Keys and limits are checked by the process that answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection, Sequence

import httptools
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.guard import RequestGuard
from marl_jax.serving.sessions.sessions import Session

Address = tuple[str, int]

FORWARDED = b"x-forwarded-by-worker"
"""Header of forwarded requests, which are never forwarded again."""

MOST_AHEAD = 4
"""Number of extra sessions that a worker may have before it forwards new ones to another worker."""

OPEN = "/v1/sessions"
KEY = re.compile(rb"sk-(\d{1,4})-")
SESSION = re.compile(r"/v1/sessions/sess-(\d{1,4})-")
OF_CONNECTION = {b"connection", b"keep-alive", b"transfer-encoding", b"expect", b"date", b"upgrade"}


def mark(worker: int) -> str:
    """Return the prefix of the ids and keys of a worker's sessions."""
    return f"{worker}-"


class Forwarding:
    """The application of a worker, which forwards requests for other workers' sessions.

    Args:
        app: Application of this worker.
        worker: Index of this worker.
        addresses: Addresses of all workers.
        sessions: Returns the number of open sessions of each worker.
    """

    def __init__(
        self, app: RequestGuard, worker: int, addresses: Sequence[Address], sessions: Callable[[], Sequence[int]]
    ):
        self._app, self._worker, self._addresses = app, worker, list(addresses)
        self._sessions, self._given = sessions, [0] * len(addresses)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or forward a request (ASGI)."""
        opens, owner = False, None
        if scope["type"] == "http" and FORWARDED not in (headers := dict(scope["headers"])):
            opens = scope["path"] == OPEN and scope["method"] == "POST"
            owner = self._least_busy() if opens else None
            owner = self._owner(scope["path"], headers.get(b"authorization", b""), owner)
        if owner is None or owner == self._worker or not 0 <= owner < len(self._addresses):
            return await self._app(scope, receive, send)
        self._given[owner] += opens
        try:
            await forward(self._addresses[owner], scope, receive, send)
        finally:
            self._given[owner] -= opens

    def _owner(self, path: str, authorization: bytes, otherwise: int | None) -> int | None:
        """Return the worker that owns the session of a request, or `otherwise` without a session."""
        scheme, _, key = authorization.partition(b" ")
        of_key = KEY.match(key.strip()) if scheme.lower() == b"bearer" else None
        if of_key is not None:
            whose = self._app.keys.find(key.strip())
            if whose is None or isinstance(whose, Session):  # not the key of the server, which may have the same form
                return int(of_key[1])
        of_path = SESSION.match(path)
        return otherwise if of_path is None else int(of_path[1])

    def _least_busy(self) -> int:
        """Return the worker for a new session.

        It is this worker, unless it has many more sessions than another. A client may open all its sessions on one
        connection, which belongs to one worker.
        """
        counts = [a + b for a, b in zip(self._sessions(), self._given, strict=True)]
        least = min(range(len(counts)), key=counts.__getitem__)
        return least if counts[self._worker] - counts[least] > MOST_AHEAD else self._worker


class Forwarded(Response):
    """The response of another process."""

    def __init__(self, address: Address):
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request."""
        await forward(self._address, scope, receive, send)


async def forward(address: Address, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a request to another process and stream its response back.

    If the client disconnects, the connection to the other process is closed too.
    """
    try:
        reader, writer = await asyncio.open_connection(*address)
    except OSError:
        return await _unreachable().response()(scope, receive, send)
    head, chunked = _head(scope)
    writer.write(head)
    sending = asyncio.ensure_future(_send_body(receive, writer, chunked))
    own = {b"x-request-id"} if "request_id" in scope else set()  # already set by the guard around a route
    answer = _Answer(scope["method"], OF_CONNECTION | own)
    try:
        with scope["hang_up"].calls(writer.close):
            await _pass_on(reader, answer, send)
        if not answer.begun and not scope["hang_up"].happened:
            await _unreachable().response()(scope, receive, send)
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await sending
        writer.close()


async def _pass_on(reader: asyncio.StreamReader, answer: _Answer, send: Send) -> None:
    """Pass on the response until it is complete or the connection ends."""
    parser = httptools.HttpResponseParser(answer)
    answer.status = parser.get_status_code
    while not answer.complete:
        try:
            data = await reader.read(1 << 16)
        except OSError:
            data = b""
        if not data:
            break
        parser.feed_data(data)
        for message in answer.take():
            await send(message)
    if answer.begun and answer.bodiless and not answer.complete:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_body(receive: Receive, writer: asyncio.StreamWriter, chunked: bool | None) -> None:
    """Pass on the body of a request as it arrives."""
    more = chunked is not None
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if chunked and body:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        writer.write(body + (b"0\r\n\r\n" if chunked and not more else b""))
        await writer.drain()


def _head(scope: Scope) -> tuple[bytes, bool | None]:
    """Return the head of the forwarded request, and whether its body is chunked.

    The second value is None if the request has no body.
    """
    target = scope.get("raw_path") or scope["path"].encode()
    target += b"?" + scope["query_string"] if scope["query_string"] else b""
    names = {name for name, _ in scope["headers"]}
    chunked = True if b"transfer-encoding" in names else False if b"content-length" in names else None
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target)]
    dropped = OF_CONNECTION | ({b"content-length"} if chunked else set())
    lines += [b"%b: %b" % pair for pair in scope["headers"] if pair[0] not in dropped]
    lines += [FORWARDED + b": 1", b"connection: close"] + ([b"transfer-encoding: chunked"] if chunked else [])
    return b"\r\n".join(lines) + b"\r\n\r\n", chunked


class _Answer:
    """Callbacks for httptools that convert a response to ASGI messages."""

    def __init__(self, method: str, dropped: Collection[bytes]):
        self._dropped = dropped
        self.begun = self.complete = False
        self.bodiless = method == "HEAD"
        self.status: Callable[[], int] = lambda: 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[dict] = []

    def take(self) -> list[dict]:
        """Return the new messages."""
        messages, self._messages = self._messages, []
        return messages

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the response."""
        if name.lower() not in self._dropped:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin the response."""
        self.begun = True
        self._messages.append({"type": "http.response.start", "status": self.status(), "headers": self._headers})

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        """End the response."""
        self.complete = True
        self._messages.append({"type": "http.response.body", "body": b"", "more_body": False})


def _unreachable() -> ApiError:
    return ApiError(503, "the process that handles this request cannot be reached", code="worker_unreachable")
