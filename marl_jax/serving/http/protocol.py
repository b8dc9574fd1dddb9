"""HTTP/1.1 connections with limits on the time and size of request heads, which uvicorn lacks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0  # time limit for the head of a request
MOST_HEAD = 1 << 16  # maximum size of the head, in bytes


class HangUp:
    """Notification that the client of a connection has disconnected.

    Every request has it in its scope as "hang_up". ASGI's own mechanism would need a task per request that waits for a
    message.
    """

    def __init__(self):
        self.happened = False
        self._callbacks: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def calls(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call the callback when the client disconnects, or at once if it already has."""
        self._callbacks.append(callback)
        try:
            if self.happened:
                callback()
            yield
        finally:
            self._callbacks.remove(callback)

    def happen(self) -> None:
        """Record the disconnect and run the callbacks."""
        self.happened = True
        for callback in list(self._callbacks):
            callback()


class Protocol(HttpToolsProtocol):
    """One connection. It is closed if no request arrives; uvicorn would keep it open forever."""

    _deadline: asyncio.TimerHandle | None = None
    _last_cycle = None
    _in_head, _head = False, 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start watching the connection."""
        super().connection_made(transport)
        self._hang_up = HangUp()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching the connection.

        Timers also end after an error. uvicorn's would keep the connection's objects alive.
        """
        if self._deadline is not None:
            self._deadline.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._hang_up.happen()

    def data_received(self, data: bytes) -> None:
        """Handle data and reject a request head that is too long."""
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > MOST_HEAD and not self.transport.is_closing():
                self.send_400_response("The request head is too long.")

    def on_message_begin(self) -> None:
        """Start counting the bytes of a request head."""
        self._in_head, self._head = True, 0
        super().on_message_begin()
        self.scope["hang_up"] = self._hang_up  # pyright: ignore[reportGeneralTypeIssues]  ASGI allows extra keys

    def on_headers_complete(self) -> None:
        """Stop counting the bytes of the request head."""
        self._in_head = False
        super().on_headers_complete()

    def _watch(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._check)

    def _check(self) -> None:
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self.cycle is self._last_cycle and self.timeout_keep_alive_task is None:
            self.transport.close()  # no request head since the last check
            return
        self._last_cycle = self.cycle
        self._watch()
