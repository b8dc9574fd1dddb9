"""The process with the models: starts HTTP workers, answers their requests and stops them.

    serve(endpoint, "127.0.0.1", 8000, workers=4)        # returns after SIGTERM or Ctrl-C, once all is answered
    with in_thread(endpoint, workers=2) as url: ...      # on free ports of this machine

All workers listen on the address of the server, and the system distributes connections over them. Each worker also
listens on a separate port, where clients reach its sessions directly. This process answers for samplers, new weights
and the additional routes of the endpoint. If a worker dies, the server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import marl_jax
from marl_jax.errors import RunError
from marl_jax.serving.http import app, server
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.workers.forward import Address
from marl_jax.serving.workers.sampler_server import NumberedSamplers, SamplerServer
from marl_jax.serving.workers.shared_counters import SharedCounters
from marl_jax.serving.workers.spec import Spec

log = logging.getLogger(__name__)

WORKER = "marl_jax.serving.workers.process"
LOOK_SECONDS = 0.5  # seconds between checks that the samplers are running
END_SECONDS = 10  # seconds for a worker to end, in addition to the drain time
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def serve(
    endpoint: Endpoint, host: str, port: int, *, workers: int, drain_seconds: float = 30,
    on_ready: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Serve with `workers` HTTP processes; see `server.serve`."""

    def announce(url: str) -> None:
        log.info("listening on %s, %d processes", url, workers)
        if on_ready is not None:
            on_ready(url)

    async def run() -> None:
        pool = WorkerPool(endpoint, workers, drain_seconds)
        await server.until_signalled(pool.run(host, port, announce), pool.stop)

    asyncio.run(run())


@contextlib.contextmanager
def in_thread(endpoint: Endpoint, *, workers: int, drain_seconds: float = 5) -> Iterator[str]:
    """Serve in a thread with `workers` HTTP processes; see `server.in_thread`."""

    def start(on_ready: Callable[[str], None]) -> server.Started:
        pool = WorkerPool(endpoint, workers, drain_seconds)
        return pool.run("127.0.0.1", 0, on_ready), pool.stop

    with server.run_in_thread(start, drain_seconds + 2 * END_SECONDS) as url:
        yield url


@dataclasses.dataclass(eq=False)
class _Worker:
    """A worker process and the channel to it.

    `started` is done once the worker accepts requests.
    """

    number: int
    process: subprocess.Popen
    channel: SamplerServer
    started: asyncio.Future

    def describe(self) -> str:
        """Return which worker it is and how it ended."""
        code = self.process.returncode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with status {code}"
        return f"worker {self.number} (process {self.process.pid}) ended {how}"


class WorkerPool:
    """The workers of one server. It belongs to the event loop that creates it."""

    def __init__(self, endpoint: Endpoint, workers: int, drain_seconds: float):
        self._endpoint, self._count, self._drain = endpoint, workers, drain_seconds
        self._samplers, self._workers = NumberedSamplers(endpoint.models), []
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Stop accepting requests and drain; a second call stops the workers immediately."""
        if self._stopped.done():
            self._tell(self._workers, "stop")
        else:
            self._stopped.set_result(None)

    async def run(self, host: str, port: int, on_ready: Callable[[str], None]) -> None:
        """Serve until `stop`; raise `RunError` if a worker ends before."""
        endpoint = self._endpoint
        own = app.application(
            endpoint.routes, keys=endpoint.keys, limits=endpoint.limits, open_paths=endpoint.open_paths
        )
        async with server.in_loop(own, drain_seconds=self._drain) as main:
            looking = asyncio.ensure_future(self._look_at_samplers())
            try:
                async with self._started(host, port, main) as url:
                    await self._until_stopped(url, on_ready)
            finally:
                looking.cancel()

    async def _until_stopped(self, url: str, on_ready: Callable[[str], None]) -> None:
        ends = [self._stopped, *(worker.channel.lost for worker in self._workers)]
        all_started = asyncio.ensure_future(asyncio.wait([worker.started for worker in self._workers]))
        await asyncio.wait([all_started, *ends], return_when=asyncio.FIRST_COMPLETED)
        if all_started.done():
            on_ready(url)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        all_started.cancel()
        dead = [worker for worker in self._workers if worker.channel.lost.done()]
        failed = dead and not self._stopped.done()
        for worker in dead:
            await self._ended(worker, 0)
        if failed:
            log.error("%s; the server is shutting down", dead[0].describe())
        living = [worker for worker in self._workers if worker not in dead]
        self._tell(living, "stop")
        await asyncio.gather(*(self._ended(worker, self._drain) for worker in living))
        if failed:
            raise RunError(f"{dead[0].describe()}, so the server was shut down")

    async def _ended(self, worker: _Worker, seconds: float) -> None:
        """Wait until a worker has ended and kill it after `seconds`."""
        await asyncio.wait([worker.channel.lost], timeout=seconds + END_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(worker.process.wait, END_SECONDS)
        if worker.process.poll() is None:
            log.warning("worker %d did not end in time and was killed", worker.number)
            worker.process.kill()
            worker.process.wait()

    def _tell(self, workers: list[_Worker], name: str, *args: Any) -> None:
        """Call a function of workers and ignore the result."""
        for worker in workers:
            if not worker.channel.lost.done():
                calling = asyncio.ensure_future(worker.channel.call(name, *args))
                calling.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _look_at_samplers(self) -> None:
        """Notify workers of samplers that have stopped."""
        running = set(range(len(self._samplers.all)))
        while True:
            for number in [i for i in running if not getattr(self._samplers.all[i], "running", True)]:
                running.remove(number)
                self._tell(self._workers, "sampler_ended", number)
            await asyncio.sleep(LOOK_SECONDS)

    # Functions for workers

    async def _control(self, name: str) -> None:
        await asyncio.to_thread(getattr(self._endpoint.control, name))

    async def _metrics(self) -> list[Any]:
        return await asyncio.gather(*(worker.channel.call("metrics") for worker in self._workers))

    # Processes

    @contextlib.asynccontextmanager
    async def _started(self, host: str, port: int, main: str) -> AsyncIterator[str]:
        """Start all workers and yield the URL of the server.

        No worker is left at the end, whatever happens.
        """
        shared, own = _listeners(host, port, self._count)
        url = server.url_of(shared[0])
        try:
            with contextlib.ExitStack() as files:  # the workers inherit these files
                for listener in (*shared, *own):
                    files.enter_context(listener)
                counters = files.enter_context(contextlib.closing(SharedCounters(self._count)))
                spec = files.enter_context(tempfile.TemporaryFile())
                spec.write(pickle.dumps(self._spec(own, main)))
                spec.flush()
                for number, pair in enumerate(zip(shared, own, strict=True)):
                    fds = dict(zip(("shared", "own"), (one.fileno() for one in pair), strict=True))
                    self._workers.append(
                        await self._start(number, fds | dict(counters=counters.fd, spec=spec.fileno()))
                    )
            yield url
        finally:
            for worker in self._workers:
                if worker.process.poll() is None:
                    worker.process.kill()
                worker.process.wait()
                worker.channel.close()

    async def _start(self, number: int, fds: dict[str, int]) -> _Worker:
        ours, inherited = socket.socketpair()
        root = str(Path(marl_jax.__file__).resolve().parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # Workers do not use JAX. If they import it indirectly, it must not allocate memory on an accelerator.
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
        with inherited:
            fds = fds | {"channel": inherited.fileno()}
            command = [sys.executable, "-m", WORKER, str(number), json.dumps(fds)]
            process = subprocess.Popen(command, pass_fds=list(fds.values()), env=environment, stdin=subprocess.DEVNULL)
        started = asyncio.get_running_loop().create_future()

        async def report_started() -> None:
            if not started.done():
                started.set_result(None)

        handlers = {
            "ready": report_started, "reload": self._endpoint.reload, "control": self._control,
            "metrics": self._metrics, "top_logprobs": self._samplers.top_logprobs,
        }  # fmt: skip
        channel = SamplerServer(self._samplers, handlers)
        await channel.open(ours)
        return _Worker(number, process, channel, started)

    def _spec(self, own: list[socket.socket], main: str) -> Spec:
        endpoint, traces = self._endpoint, self._endpoint.sessions.traces
        models = tuple(
            (name, dataclasses.replace(model.speaker, sampler=self._samplers.number(model.speaker.sampler)),
             model.json_output.vocab)
            for name, model in endpoint.models.items()
        )  # fmt: skip
        return Spec(
            models, endpoint.keys, endpoint.limits, None if traces.path is None else str(traces.path.absolute()),
            endpoint.session_idle, endpoint.created,
            tuple((route.path, tuple(sorted(route.methods or ()))) for route in endpoint.routes), endpoint.open_paths,
            _address(main), tuple(map(_reachable, own)),
            endpoint.reload is not None, endpoint.control is not None, self._drain,
            logging.getLogger("marl_jax").getEffectiveLevel(),
        )  # fmt: skip


def _listeners(host: str, port: int, workers: int) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return listeners on the server's address and on the workers' own ports.

    There is one of each for every worker. The workers' ports follow the server's.
    """
    if port:  # another server on this port would share its connections with this one
        server.listen(host, port).close()
    shared = [server.listen(host, port, reuse_port=True)]
    at = shared[0].getsockname()[1]
    shared += [server.listen(host, at, reuse_port=True) for _ in range(workers - 1)]
    return shared, [server.listen(host, port and port + 1 + number) for number in range(workers)]


def _address(url: str) -> Address:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


def _reachable(listener: socket.socket) -> Address:
    """Return the address at which other processes of this machine reach a listener."""
    address: Address = listener.getsockname()[:2]
    host, port = address
    return EVERYWHERE.get(host, host), port
