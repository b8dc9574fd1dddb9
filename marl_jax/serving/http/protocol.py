"""HTTP/1.1 by httptools, with two limits that uvicorn has not: the time a request's head may take, and its size."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0  # for the head of a request to arrive
MOST_HEAD = 1 << 16  # bytes of it


class HangUp:
    """Whether the client of a connection has hung up; every request has it in its scope, as "hang_up".

    ASGI's way to hear of it is a task for each request that waits for a message.
    """

    def __init__(self):
        self.happened = False
        self._callbacks: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def calls(self, callback: Callable[[], object]) -> Iterator[None]:
        """Within it, the callback is called when the client hangs up, or at once where it has."""
        self._callbacks.append(callback)
        try:
            if self.happened:
                callback()
            yield
        finally:
            self._callbacks.remove(callback)

    def happen(self) -> None:
        """The connection is lost."""
        self.happened = True
        for callback in list(self._callbacks):
            callback()


class Protocol(HttpToolsProtocol):
    """One connection. Those on which no request arrives are closed, which uvicorn keeps open for ever."""

    _deadline: asyncio.TimerHandle | None = None
    _last_cycle = None
    _in_head, _head = False, 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Starts to watch the connection."""
        super().connection_made(transport)
        self._hang_up = HangUp()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Watches no more. Timers end also after an error, where uvicorn's would keep the connection's objects."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._hang_up.happen()

    def data_received(self, data: bytes) -> None:
        """Refuses a head that does not end."""
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > MOST_HEAD and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head, self._head = True, 0
        super().on_message_begin()
        self.scope["hang_up"] = self._hang_up  # pyright: ignore[reportGeneralTypeIssues]  ASGI allows extra keys

    def on_headers_complete(self) -> None:
        """It has ended."""
        self._in_head = False
        super().on_headers_complete()

    def _watch(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._check)

    def _check(self) -> None:
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self.cycle is self._last_cycle and self.timeout_keep_alive_task is None:
            self.transport.close()  # no head of a request since the last check
            return
        self._last_cycle = self.cycle
        self._watch()
