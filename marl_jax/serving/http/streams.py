"""A streamed answer: server-sent events that leave as the tokens come, in as few writes as possible."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.protocol import HangUp
from marl_jax.serving.openai import requests
from marl_jax.serving.openai.calls import Call
from marl_jax.serving.openai.choices import Pieces

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(Response):
    """The events of a call; all that can be shown at a moment is one write.

    tops        of an answered call, the likeliest tokens, or None
    first_shown  called when the first piece with text is about to leave, with the call
    answered     called when all is there, with the call

    What is wrong with a request is an error of its own, not one inside of a stream: `begin` comes before the response
    is handed to the server. A client that hangs up lets go of the call.
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
        """Returns when sampling has begun, or raises why it does not."""
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
        """Sends the events."""
        with self._attached, scope["hang_up"].calls(self._call.changed):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_events(send, scope["hang_up"])

    async def _send_events(self, send: Send, hang_up: HangUp) -> None:
        call, pieces, first = self._call, Pieces(self._call), True
        data = b"".join(pieces.begin())
        try:
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
        except ApiError as error:  # the status is out already
            found = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
            data += requests.event({"error": found})
        await send({"type": "http.response.body", "body": data, "more_body": False})
