"""One worker: an endpoint whose samplers are in the process that started it.

    python -m marl_jax.serving.workers.process NUMBER FDS        # started by `pool`, never by hand

It ends when that process calls `stop` or is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from marl_jax.sampling.batcher_thread import SWITCH
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.guard import Peer
from marl_jax.serving.http.server import Server
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.sessions.admin import check_admin
from marl_jax.serving.sessions.traces import TraceFile
from marl_jax.serving.workers.forward import Forwarded, Forwarding, mark
from marl_jax.serving.workers.remote_sampler import SamplerChannel, WorkerSampler
from marl_jax.serving.workers.shared_counters import SharedCounters
from marl_jax.serving.workers.spec import Spec
from models.tokenizers.byte import drop_cache

log = logging.getLogger(__name__)

END_SECONDS = 2.0  # time for clients to receive their errors


class Worker:
    """The endpoint of one worker, connected to the process with the models.

    Args:
        number: Index of the worker.
        spec: Settings that all workers receive.
        counters: Counters that all workers share.
    """

    def __init__(self, number: int, spec: Spec, counters: SharedCounters):
        self.number, self.spec, self.counters, self.status = number, spec, counters, 0
        self.samplers: dict[int, WorkerSampler] = {}
        self.server: Server  # set by `run`, like `channel` and `endpoint`

    async def run(self, connection: socket.socket, *listeners: socket.socket) -> int:
        """Serve until the other process calls `stop`; return the exit status."""
        handlers = {"stop": self._stop, "metrics": self._metrics, "sampler_ended": self._sampler_ended}
        self.channel = SamplerChannel(handlers)
        traces = TraceFile(self.spec.traces, shared=True)
        self.endpoint = self._endpoint(traces)
        app = Forwarding(
            self.endpoint.application(), self.number, self.spec.addresses, lambda: self.counters.each("sessions")
        )
        self.server = Server(app, self.spec.drain_seconds, self._ready)
        await self.channel.open(connection)
        watching = asyncio.ensure_future(self._watch())
        with contextlib.closing(traces):
            await self.server.run_on(*listeners)
        watching.cancel()
        return self.status

    def _endpoint(self, traces: TraceFile) -> Endpoint:
        spec, shared = self.spec, self.counters
        peer = Peer(
            mark(self.number), spec.addresses[self.number][1], shared.count(self.number, "requests"),
            shared.count(self.number, "sessions"), lambda: self.channel.call("metrics"),
        )  # fmt: skip
        routes = [Route(path, self._to_main, methods=methods) for path, methods in spec.routes]
        endpoint = Endpoint(
            self._models(), keys=spec.keys, limits=spec.limits, traces=traces, peer=peer,
            reload=self._reload if spec.reloads else None, control=_Control(self.channel) if spec.controls else None,
            session_idle=spec.session_idle, routes=routes, open_paths=spec.open_paths,
        )  # fmt: skip
        endpoint.created = spec.created
        return endpoint

    def _models(self) -> Mapping[str, ServedModel]:
        models = {}
        for name, speaker, vocab in self.spec.models:
            number = cast(int, speaker.sampler)  # see `Spec.models`
            sampler = self.samplers.setdefault(number, WorkerSampler(self.channel, number))
            drop_cache(speaker.tokenizer)
            models[name] = ServedModel.of(name, dataclasses.replace(speaker, sampler=sampler), vocab)
        return models

    async def _to_main(self, request: Request) -> Response:
        check_admin(request)
        return Forwarded(self.spec.main)

    async def _reload(self, model: str, step: str) -> int:
        return await self.channel.call("reload", model, step)

    def _ready(self, url: str) -> None:
        self._calling = asyncio.ensure_future(self.channel.call("ready"))

    async def _watch(self) -> None:
        """Stop the server when the process with the models is gone."""
        await self.channel.lost
        if not self.server.should_exit:
            log.error("worker %d: the process with the models is gone", self.number)
            self.status = 1
        self.server.should_exit = True
        await asyncio.sleep(END_SECONDS)
        self.server.force_exit = True

    # Functions for the process with the models

    async def _stop(self) -> None:
        self.server.stop()

    async def _metrics(self) -> list[dict[str, Any]]:
        return self.endpoint.metrics.snapshot()

    async def _sampler_ended(self, number: int) -> None:
        self.samplers[number].running = False


class _Control:
    """Control over the samplers of the other process."""

    def __init__(self, channel: SamplerChannel):
        self._channel = channel

    def pause(self) -> None:
        """See `BatcherThread.pause`."""
        self._channel.call_in_thread("control", "pause")

    def resume(self) -> None:
        """See `BatcherThread.resume`."""
        self._channel.call_in_thread("control", "resume")

    def drain(self) -> None:
        """See `BatcherThread.drain`."""
        self._channel.call_in_thread("control", "drain")


def main(number: int, fds: Mapping[str, Any]) -> int:
    """Run a worker; `fds` are the file descriptors that it has inherited, by name."""
    for one in (signal.SIGINT, signal.SIGTERM):  # a terminal or a supervisor may send them to all processes
        signal.signal(one, signal.SIG_IGN)
    size = os.fstat(fds["spec"]).st_size
    spec = pickle.loads(os.pread(fds["spec"], size, 0))  # written by the process that started this one
    os.close(fds["spec"])
    logging.basicConfig(format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("marl_jax").setLevel(spec.log_level)
    sys.setswitchinterval(SWITCH)  # streamed tokens wait for the thread that writes traces
    worker = Worker(number, spec, SharedCounters(len(spec.addresses), fds["counters"]))
    sockets = [socket.socket(fileno=fds[name]) for name in ("channel", "own", "shared")]
    return asyncio.run(worker.run(*sockets))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2])))
