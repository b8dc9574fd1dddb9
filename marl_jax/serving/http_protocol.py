"""HTTP/1.1 for uvicorn: usual requests are read and answered here, at a third of what h11 costs; others go through h11.

Usual is what clients send: GET or POST, a head that arrives as a whole and has nothing special about how the body comes
or the connection goes on. Anything else, wrong requests included, is left to `H11Protocol`, which is strict and slow.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import unquote

import h11
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

HEAD_SECONDS = 10.0  # for the head of a request to arrive
MOST_HEAD = 1 << 14  # bytes of a usual head
HEAD = re.compile(
    rb"(GET|POST) (/[!-~]*) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*)\r\n"
)  # fmt: skip
UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"connection", b"te", b"trailer"))
NO_BODY = (204, 304)

Head = tuple[str, bytes, list[tuple[bytes, bytes]], int]
"""Method, target, headers in lower case, and the length of the body."""


def read_head(data: bytes) -> Head | None:
    """The head of a usual request that ends with these bytes; None for any other."""
    found = HEAD.fullmatch(data)
    if found is None:
        return None
    headers, lengths, hosts = [], [], 0
    for line in found[3].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name in UNUSUAL and (name, value.lower()) != (b"connection", b"keep-alive"):
            return None
        if name == b"content-length":
            lengths.append(value)
        hosts += name == b"host"
        headers.append((name, value))
    method = found[1].decode()
    if hosts != 1 or len(lengths) != (method == "POST"):
        return None
    if lengths and not (lengths[0].isdigit() and len(lengths[0]) < 16):
        return None
    return method, found[2], headers, int(lengths[0]) if lengths else 0


class Protocol(H11Protocol):
    """One connection. Those on which no request arrives are closed, which uvicorn keeps open for ever."""

    _deadline: asyncio.TimerHandle | None = None
    _last_cycle = None
    _usual: UsualCycle | None = None  # a usual request, until it is answered and its body is here
    _missing = 0  # bytes of its body
    _later = b""  # what has come behind it

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Starts to watch the connection."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Watches no more. Timers end also after an error, where uvicorn's would keep the connection's objects."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._check)

    def _check(self) -> None:
        idle = self.conn.their_state is h11.IDLE and self._usual is None and self.timeout_keep_alive_task is None
        if idle and self.cycle is self._last_cycle:  # no head of a request since the last check
            self.transport.close()
            return
        self._last_cycle = self.cycle
        self._watch()

    # Usual requests

    def data_received(self, data: bytes) -> None:
        """Takes a usual request, or more of its body; all else is h11's."""
        if self._usual is not None:
            self._unset_keepalive_if_required()
            self._take_body(data)
            return
        end = data.find(b"\r\n\r\n", 0, MOST_HEAD) + 4
        head = read_head(data[:end]) if end >= 4 and self._between_requests() else None
        if head is None:
            super().data_received(data)
            return
        self._unset_keepalive_if_required()
        self._begin(*head)
        self._take_body(data[end:])

    def _between_requests(self) -> bool:
        full = self.limit_concurrency is not None and (
            max(len(self.connections), len(self.tasks)) >= self.limit_concurrency
        )  # h11 answers with 503
        conn = self.conn
        return not full and conn.their_state is conn.our_state is h11.IDLE and not conn.trailing_data[0]

    def _begin(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], length: int) -> None:
        raw_path, _, query = target.partition(b"?")
        self.headers = headers
        self.scope = {
            "type": "http", "asgi": {"version": self.config.asgi_version, "spec_version": "2.3"}, "http_version": "1.1",
            "server": self.server, "client": self.client, "scheme": self.scheme, "method": method,
            "root_path": self.root_path, "path": self.root_path + unquote(raw_path.decode("ascii")),
            "raw_path": self.root_path.encode("ascii") + raw_path, "query_string": query, "headers": headers,
            "state": self.app_state.copy(),
        }  # fmt: skip
        self.cycle = self._usual = UsualCycle(
            scope=self.scope, conn=self.conn, transport=self.transport, flow=self.flow, logger=self.logger,
            access_logger=self.access_logger, access_log=self.access_log,
            default_headers=self.server_state.default_headers, message_event=asyncio.Event(),
            on_response=self._answered,
        )  # fmt: skip
        self._missing = length
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _take_body(self, data: bytes) -> None:
        cycle, own = self._usual, data[: self._missing]
        self._missing -= len(own)
        if not cycle.response_complete:
            cycle.body += own
            cycle.more_body = self._missing > 0
            cycle.message_event.set()
        if len(data) > len(own):
            self._later += data[len(own) :]
        if len(cycle.body) > HIGH_WATER_LIMIT or self._later:
            self.flow.pause_reading()
        if cycle.response_complete and not self._missing:
            self._next()

    def _answered(self) -> None:
        self.on_response_complete()
        if not self._missing:  # else the rest of the body is dropped as it comes
            self._next()

    def _next(self) -> None:
        self._usual, later, self._later = None, self._later, b""
        if later and not self.transport.is_closing():
            self.data_received(later)


class UsualCycle(RequestResponseCycle):
    """A usual request and its answer. The head leaves with the first part of the body, in one write."""

    _head = b""
    _left: int | None = None  # bytes of the body that are announced and have not been sent; None: it is chunked

    async def send(self, message: Any) -> None:
        """Sends a part of the answer."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError(f"{message['type']!r} came after the answer was complete")
        expected = "http.response.body" if self.response_started else "http.response.start"
        if message["type"] != expected:
            raise RuntimeError(f"{message['type']!r} came; expected {expected!r}")
        if not self.response_started:
            self._start(message["status"], [*self.default_headers, *message.get("headers", ())])
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._left is None:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            data += b"" if more else b"0\r\n\r\n"
        else:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body has another length than its head says")
            data = body
        self.transport.write(self._head + data)
        self._head = b""
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Writes the head of the answer, which waits for the first part of its body."""
        self.response_started, self._left = True, 0 if status in NO_BODY else None
        lines = [b"HTTP/1.1 %d %b" % (status, STATUS_PHRASES[status])]
        for name, value in headers:
            if b"\r" in value or b"\n" in value:
                raise RuntimeError(f"the header {name!r} has a line break")
            name = name.lower()
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keep_alive = False
            lines.append(b"%b: %b" % (name, value))
        if self._left is None:
            lines.append(b"transfer-encoding: chunked")
        self._head = b"\r\n".join((*lines, b"\r\n"))
