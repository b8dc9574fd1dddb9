"""Streamed responses: server-sent events sent as tokens arrive, in as few writes as possible."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from marl_jax.serving.http.protocol import HangUp
from marl_jax.serving.openai.calls import Call
from marl_jax.serving.openai.choices import Pieces

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(Response):
    """The server-sent events of a call.

    Everything that can be shown at one time is sent in one write. `begin` runs before the response is given to the
    server, so an invalid request gets an error response instead of an error inside a stream. A client that disconnects
    detaches from the call. `RequestGuard` sends an error as the last event.

    Args:
        call: Call to stream.
        tops: Returns the most likely tokens of an answered call, or None.
        first_shown: Called with the call when the first piece of text is about to be sent.
        answered: Called with the call when all completions are finished.
    """

    media_type = "text/event-stream"

    def __init__(
        self, call: Call, *, tops: Callable[[Call], Awaitable[Any]], first_shown: Callable[[Call], None],
        answered: Callable[[Call], None],
    ):  # fmt: skip
        self._call, self._tops, self._first_shown, self._answered = call, tops, first_shown, answered
        self._attached = contextlib.ExitStack()
        self.status_code, self.background = 200, None
        self.init_headers(HEADERS)

    async def begin(self) -> EventStream:
        """Wait until sampling has begun, or raise the reason why it cannot."""
        call = self._call
        self._attached.enter_context(call.attached())
        try:
            while call.sampling is None and not call.task.done():
                await call.next_change(call.changes)
            if call.task.done():
                await call.result()
        except BaseException:
            self._attached.close()
            raise
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        with self._attached, scope["hang_up"].calls(self._call.changed):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_events(send, scope["hang_up"])

    async def _send_events(self, send: Send, hang_up: HangUp) -> None:
        call, pieces, first = self._call, Pieces(self._call), True
        data = b"".join(pieces.begin())
        while not call.task.done():
            changes = call.changes
            more = b"".join(pieces.more())
            if more and first:
                self._first_shown(call)
                first = False
            if data or more:
                await send({"type": "http.response.body", "body": data + more, "more_body": True})
                data = b""
            await call.next_change(changes)
            if hang_up.happened:
                return
        await call.result()
        if first:
            self._first_shown(call)
        self._answered(call)
        data += b"".join(pieces.end(await self._tops(call)))
        await send({"type": "http.response.body", "body": data, "more_body": False})
