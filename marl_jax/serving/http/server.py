"""Run an application until a signal, in a thread, or in an existing event loop.

Usage:

    serve(app, "127.0.0.1", 8000)         # returns after SIGTERM or Ctrl-C, once all requests are answered
    with in_thread(app) as url: ...       # on a free port of this machine
    async with in_loop(app) as url: ...   # the same in the running event loop
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
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

IDLE_SECONDS = 30  # time that an idle connection is kept open
MAX_CONNECTIONS = 4096  # above this, or the system's limit, uvicorn answers 503
BACKLOG = 2048
END_SECONDS = 5.0  # time for clients to receive their errors

Started = tuple[Awaitable[None], Callable[[], None]]
"""(awaitable that runs the server, function that stops it)"""


def serve(
    app: ASGIApp, host: str, port: int, *, drain_seconds: float = 30, on_ready: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests in progress.

    A second signal stops the server immediately. Must be called from the main thread.

    Args:
        app: Application to serve.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        drain_seconds: Time that requests in progress have to finish.
        on_ready: Called with the URL once the server accepts requests.
    """

    def announce(url: str) -> None:
        log.info("listening on %s", url)
        if on_ready is not None:
            on_ready(url)

    server = Server(app, drain_seconds, announce)
    asyncio.run(until_signalled(server.run_on(listen(host, port)), server.stop))


async def until_signalled(work: Awaitable[None], stop: Callable[[], None]) -> None:
    """Wait for a server and call `stop` on SIGTERM and Ctrl-C."""
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
    """Serve in a thread while the context is open and yield the URL."""
    listener = listen(host, port)

    def start(on_ready: Callable[[str], None]) -> Started:
        server = Server(app, drain_seconds, on_ready)
        return server.run_on(listener), server.stop

    with run_in_thread(start, drain_seconds + 10) as url:
        yield url


@contextlib.contextmanager
def run_in_thread(start: Callable[[Callable[[str], None]], Started], end_seconds: float) -> Iterator[str]:
    """Run a server in a thread while the context is open and yield its URL.

    Args:
        start: Starts the server in the thread's event loop. It receives a function to call with the URL once the server
            accepts requests.
        end_seconds: Time that the server has to stop.
    """
    started, failure, urls, stops = threading.Event(), [], [], []

    def on_ready(url: str) -> None:
        urls.append(url)
        started.set()

    async def main() -> None:
        work, stop = start(on_ready)
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
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            for stop in stops:
                stop()
        thread.join(end_seconds)
    if failure:
        raise failure[0]


@contextlib.asynccontextmanager
async def in_loop(app: ASGIApp, host: str = "127.0.0.1", port: int = 0, drain_seconds: float = 5) -> AsyncIterator[str]:
    """Serve in the running event loop while the context is open and yield the URL.

    Other tasks in the loop can access the application's objects directly.
    """
    started = asyncio.Event()
    server = Server(app, drain_seconds, lambda _: started.set())
    serving = asyncio.ensure_future(server.run_on(listen(host, port)))
    waiting = asyncio.ensure_future(started.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not started.is_set():
            await serving  # raises the error
        yield server.url
    finally:
        waiting.cancel()
        server.stop()
        await serving


def listen(host: str, port: int, reuse_port: bool = False) -> socket.socket:
    """Return a socket bound to an address; raise `RunError` if that is not possible.

    Args:
        host: Address to bind to.
        port: Port to bind to; 0 picks a free one.
        reuse_port: Whether several sockets may bind to the address and share its connections.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        address = (host.strip("[]"), port)
        listener = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=reuse_port)
        # Connections inherit it. Without it, a response body waits 40 ms for the client to acknowledge the head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise RunError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error


def url_of(listener: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _max_connections() -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, files - 128))


class Server(uvicorn.Server):
    """A uvicorn server without signal handling, which would end the process after a clean stop."""

    def __init__(self, app: ASGIApp, drain_seconds: float, on_ready: Callable[[str], None]):
        self._app, self._failure, self._ready, self.url = app, None, on_ready, ""
        self._drain_seconds = drain_seconds
        super().__init__(
            uvicorn.Config(
                self._watched,
                http=Protocol,
                ws="none",
                limit_concurrency=_max_connections(),
                backlog=BACKLOG,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=math.ceil(drain_seconds + END_SECONDS),
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
        """Do nothing; `serve` handles signals."""
        yield

    def stop(self) -> None:
        """Stop accepting requests and drain; a second call stops immediately."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def run_on(self, *listeners: socket.socket) -> None:
        """Serve on bound sockets and raise the error of an application that fails to start."""
        self.url = url_of(listeners[0])
        try:
            with rare_collections():
                await self.serve(sockets=list(listeners))
        except SystemExit:  # raised by uvicorn if the application does not start
            raise self._failure or RunError("the server did not start") from None
        finally:
            for listener in listeners:
                listener.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then report the URL."""
        await super().startup(sockets)
        self._ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for open requests; late ones are cancelled and get status 503."""
        ending = asyncio.get_running_loop().call_later(self._drain_seconds, self._cancel_requests)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    def _cancel_requests(self) -> None:
        late = list(self.server_state.tasks)
        if late:
            message = "%d requests did not finish within %g s (serve.drain) and were answered with status 503"
            log.warning(message, len(late), self._drain_seconds)
        for task in late:
            task.cancel()

    async def _watched(self, scope, receive, send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope["type"] == "lifespan":
                self._failure = error
            raise
