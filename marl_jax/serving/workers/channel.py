"""A socket between two processes of a server: messages and function calls in both directions."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from marl_jax.sampling.batcher_thread import BatcherClosed
from marl_jax.serving.workers import serialization

log = logging.getLogger(__name__)

Handlers = Mapping[str, Callable[..., Awaitable[Any]]]


class Channel(asyncio.Protocol):
    """One end of a channel, in the event loop that opened it.

    Messages sent in one iteration of the event loop are combined into one write.

    Attributes:
        handlers: Functions that the other end may call. Arguments and results are JSON values.
        lost: Done when the other end is gone or has sent invalid data.
    """

    def __init__(self, handlers: Handlers):
        self.handlers, self.loop = handlers, asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self._messages, self._out, self._numbers = serialization.Messages(), [], itertools.count(1)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future] = {}
        self._handling: set[asyncio.Task] = set()

    async def open(self, connection: socket.socket) -> Channel:
        """Take over one end of a socket pair."""
        await self.loop.create_unix_connection(lambda: self, sock=connection)
        return self

    def close(self) -> None:
        """Close the channel; pending calls raise `BatcherClosed`."""
        if self._transport is not None:
            self._transport.close()

    # Requests

    async def call(self, name: str, *args: Any) -> Any:
        """Call a function of the other end and return its result."""
        number, answered = self.expect()
        self.send(serialization.json_message(serialization.CALL, number, [name, args]))
        try:
            return await answered
        finally:
            self._waiting.pop(number, None)

    def call_in_thread(self, name: str, *args: Any) -> Any:
        """Call a function of the other end from another thread, which blocks."""
        return asyncio.run_coroutine_threadsafe(self.call(name, *args), self.loop).result()

    def expect(self) -> tuple[int, asyncio.Future]:
        """Return a number for a request and the future of its answer."""
        if self.lost.done():
            raise self._closed()
        number, answered = next(self._numbers), self.loop.create_future()
        self._waiting[number] = answered
        return number, answered

    def forget(self, number: int) -> None:
        """Drop the future of a request."""
        self._waiting.pop(number, None)

    def send(self, data: bytes) -> None:
        """Send a message."""
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(data)

    def settle(self, number: int, value: Any) -> None:
        """Set the result of a request; an exception is raised by its future."""
        answered = self._waiting.pop(number, None)
        if answered is None or answered.done():
            return
        if isinstance(value, Exception):
            answered.set_exception(value)
        else:
            answered.set_result(value)

    def received(self, kind: int, payload: bytes) -> None:
        """Handle a message of a kind that only one of the two ends understands."""
        raise serialization.WireError(f"the message has kind {kind}, which this end does not handle")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Store the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Handle all complete messages."""
        try:
            for kind, payload in self._messages.feed(data):
                self._handle(kind, payload)
        except Exception:  # after invalid data nothing can be trusted
            log.exception("invalid message between the processes of the server")
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all pending requests, because the other end is gone."""
        if not self.lost.done():
            self.lost.set_result(None)
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_exception(self._closed())
        for task in list(self._handling):
            task.cancel()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind == serialization.VALUE:
            self.settle(*serialization.read_json(payload))
        elif kind == serialization.FAILED:
            number, value = serialization.read_json(payload)
            self.settle(number, serialization.read_error(value))
        elif kind == serialization.CALL:
            number, (name, args) = serialization.read_json(payload)
            self.handle(number, self._return, name, args)
        else:
            self.received(kind, payload)

    def handle(self, number: int, work: Callable[..., Awaitable[None]], *args: Any) -> asyncio.Task:
        """Run the work that a message requests, and send its exception as the answer.

        The work is cancelled if the channel is lost.
        """

        async def run() -> None:
            try:
                await work(number, *args)
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current and current.cancelling():
                    raise
                self.send(
                    serialization.json_message(serialization.FAILED, number, serialization.error_value(self._closed()))
                )
            except Exception as error:
                value = serialization.error_value(error)
                if value[0] == "other":
                    log.exception("a request from another process of the server failed")
                self.send(serialization.json_message(serialization.FAILED, number, value))

        task = asyncio.ensure_future(run())
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        return task

    async def _return(self, number: int, name: str, args: list[Any]) -> None:
        self.send(serialization.json_message(serialization.VALUE, number, await self.handlers[name](*args)))

    def _closed(self) -> BatcherClosed:
        return BatcherClosed("the other process of the server is gone")
