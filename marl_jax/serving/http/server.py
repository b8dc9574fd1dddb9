"""Running an application: on an address until a signal comes, in a thread, or in an event loop beside other work.

serve(app, "127.0.0.1", 8000)                     # returns after SIGTERM or Ctrl-C, when all requests are answered
with in_thread(app) as url: ...                   # on a free port of this machine
async with in_loop(app) as url: ...               # the same in this event loop
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from marl_jax.errors import RunError
from marl_jax.running.garbage import rare_collections
from marl_jax.serving.http.protocol import Protocol

log = logging.getLogger(__name__)

IDLE_SECONDS = 30  # that a connection is kept open between requests
MAX_CONNECTIONS = 4096  # beyond them, or what the system allows, uvicorn answers 503
BACKLOG = 2048

Started = tuple[Awaitable[None], Callable[[], None]]
"""The work of a server, and what stops it."""


def serve(
    app: ASGIApp, host: str, port: int, *, drain_seconds: float = 30, ready: Callable[[str], None] | None = None
) -> None:
    """Serves until SIGTERM or Ctrl-C; then nothing new is accepted, and what is under way has `drain_seconds`.

    A second signal ends at once. `ready` is called with the address once the server answers. Main thread only.
    """

    def announce(url: str) -> None:
        log.info("listening on %s", url)
        if ready is not None:
            ready(url)

    server = Server(app, drain_seconds, announce)
    asyncio.run(until_signalled(server.run_on(listen(host, port)), server.stop))


async def until_signalled(work: Awaitable[None], stop: Callable[[], None]) -> None:
    """Awaits the work of a server, which SIGTERM and Ctrl-C stop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await work
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def in_thread(app: ASGIApp, host: str = "127.0.0.1", port: int = 0, drain_seconds: float = 5) -> Iterator[str]:
    """Serves in a thread while the context is open; gives the address."""
    listener = listen(host, port)

    def start(ready: Callable[[str], None]) -> Started:
        server = Server(app, drain_seconds, ready)
        return server.run_on(listener), server.stop

    with run_in_thread(start, drain_seconds + 10) as url:
        yield url


@contextlib.contextmanager
def run_in_thread(start: Callable[[Callable[[str], None]], Started], end_seconds: float) -> Iterator[str]:
    """Runs a server in a thread while the context is open; gives its address.

    start        begins in the thread's event loop, with what to call with the address once the server answers
    end_seconds  it has to end
    """
    started, failure, urls, stops = threading.Event(), [], [], []

    def ready(url: str) -> None:
        urls.append(url)
        started.set()

    async def main() -> None:
        work, stop = start(ready)
        stops.append(functools.partial(asyncio.get_running_loop().call_soon_threadsafe, stop))
        await work

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failure.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="http", daemon=True)
    thread.start()
    try:
        started.wait()
        if not failure:
            yield urls[0]
    finally:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            for stop in stops:
                stop()
        thread.join(end_seconds)
    if failure:
        raise failure[0]


@contextlib.asynccontextmanager
async def in_loop(app: ASGIApp, host: str = "127.0.0.1", port: int = 0, drain_seconds: float = 5) -> AsyncIterator[str]:
    """Serves in this event loop while the context is open, so that others in it reach the application's objects."""
    started = asyncio.Event()
    server = Server(app, drain_seconds, lambda _: started.set())
    serving = asyncio.ensure_future(server.run_on(listen(host, port)))
    waiting = asyncio.ensure_future(started.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not started.is_set():
            await serving  # raises what went wrong
        yield server.url
    finally:
        waiting.cancel()
        server.stop()
        await serving


def listen(host: str, port: int, reuse_port: bool = False) -> socket.socket:
    """A socket that is bound to an address; one that cannot be is a `RunError`.

    reuse_port  several sockets may have this address, and share its connections
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        address = (host.strip("[]"), port)
        found = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=reuse_port)
        # Connections inherit it. Without it, the body of an answer waits 40 ms for the client to confirm its head.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    except OSError as error:
        raise RunError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error


def url_of(listener: socket.socket) -> str:
    """The address of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _max_connections() -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, files - 128))


class Server(uvicorn.Server):
    """uvicorn without its handling of signals, which would end the process by the signal after a clean stop."""

    def __init__(self, app: ASGIApp, drain_seconds: float, ready: Callable[[str], None]):
        self._app, self._failure, self._ready, self.url = app, None, ready, ""
        super().__init__(
            uvicorn.Config(
                self._watched,
                http=Protocol,
                ws="none",
                limit_concurrency=_max_connections(),
                backlog=BACKLOG,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=drain_seconds,  # pyright: ignore[reportArgumentType]  a float works too
                lifespan="on",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: `serve` does it."""
        yield

    def stop(self) -> None:
        """Stops accepting and drains; called again, ends at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def run_on(self, *listeners: socket.socket) -> None:
        """Serves on bound sockets; what the application raised when it started is raised here."""
        self.url = url_of(listeners[0])
        try:
            with rare_collections():
                await self.serve(sockets=list(listeners))
        except SystemExit:  # uvicorn's answer to an application that does not start
            raise self._failure or RunError("the server did not start") from None
        finally:
            for listener in listeners:
                listener.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the application, then says that it is ready."""
        await super().startup(sockets)
        self._ready(self.url)

    async def _watched(self, scope, receive, send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope["type"] == "lifespan":
                self._failure = error
            raise
