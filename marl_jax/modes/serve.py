"""`--mode=serve`: serve models through an OpenAI-compatible API, with a web page.

    python launch.py --mode=serve --workdir=runs/mine                       # the policies of a run
    python launch.py --mode=serve --config.serve.models="('qwen2.5-0.5b-instruct','mine=runs/mine@best')"
    python launch.py --mode=serve --config.serve.runs="('runs',)"           # no models, only the page

The page shows runs and lets users play (docs/page.md). The server listens on the loopback address. On other addresses
clients need the key in the environment variable named by `serve.key_env`. Sessions are written to `traces.jsonl` in the
folder of the run. See `marl_jax/setup/served_models.py` for the models that can be served.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from marl_jax.errors import ConfigError, RunError
from marl_jax.serving.http import app as http
from marl_jax.serving.http import server
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.sessions.traces import TraceFile
from marl_jax.serving.workers import pool
from marl_jax.setup.served_models import ModelSource, close_all, load_models
from marl_jax.web.page import Page
from marl_jax.web.page.folders import RunFolders
from marl_jax.web.page.lobby import GameLobby
from marl_jax.web.page.offers import find_offers

log = logging.getLogger(__name__)

TRACES = "traces.jsonl"


@dataclasses.dataclass(frozen=True)
class ServedSamplers:
    """All samplers of a server, which are paused and drained together."""

    sources: Sequence[ModelSource]

    def pause(self) -> None:
        """Pause all samplers; see `BatcherThread.pause`."""
        self._each("pause")

    def resume(self) -> None:
        """Resume all samplers; see `BatcherThread.resume`."""
        self._each("resume")

    def drain(self) -> None:
        """Drain all samplers; see `BatcherThread.drain`."""
        self._each("drain")

    def _each(self, name: str) -> None:
        for source in self.sources:
            getattr(source.sampler, name)()


def main(config: ConfigDict, workdir: Path) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish running requests."""
    keys, limits = http.read_settings(config.serve)  # invalid settings fail before models are loaded
    folders = RunFolders([*([workdir] if (workdir / "config.json").is_file() else []), *config.serve.runs])
    if not serves_models(config, workdir):
        if config.serve.workers:
            raise ConfigError([f"config.serve.workers is {config.serve.workers}, but must be 0 without models"])
        page = Page(folders, GameLobby(find_offers({}, [])))
        app = http.application(page.routes(), keys=keys, limits=limits, open_paths=page.open_paths)
        return server.serve(app, **_settings(config))
    traces = None
    if config.serve.traces:
        traces = TraceFile(workdir / TRACES)
    sources = load_models(config, workdir)
    with contextlib.ExitStack() as stack:
        stack.callback(close_all, sources)
        if traces is not None:
            stack.callback(traces.close)
        endpoint = make_endpoint(sources, keys, limits, traces, folders, config.serve.session_idle)
        log.info("models: %s", ", ".join(endpoint.models))
        if config.serve.workers:
            pool.serve(endpoint, workers=config.serve.workers, **_settings(config))
        else:
            server.serve(endpoint.application(), **_settings(config))


def serves_models(config: ConfigDict, workdir: Path) -> bool:
    """Return whether there are models to serve, rather than only runs to show."""
    return bool(config.serve.models) or not config.serve.runs or (workdir / "config.json").is_file()


def _settings(config: ConfigDict) -> dict[str, Any]:
    """Return the address, the drain time and the startup callback of the server."""

    def log_page(url: str) -> None:
        log.info("page: %s/page/", url)

    return dict(host=config.serve.host, port=config.serve.port, drain_seconds=config.serve.drain, on_ready=log_page)


def make_endpoint(
    sources: Sequence[ModelSource],
    keys: Keys,
    limits: Limits,
    traces: TraceFile | None,
    folders: RunFolders | None = None,
    session_idle: float | None = None,
) -> Endpoint:
    """Build the endpoint of all models, including the web page."""
    served = {name: (source, model) for source in sources for name, model in source.models.items()}

    async def reload(name: str, step: str) -> int:
        source = served[name][0]
        if source.reload is None:
            raise RunError(f"the weights of {name!r} cannot be reloaded because they are not from a run")
        return await asyncio.to_thread(source.reload, step)

    models = {name: model for name, (_, model) in served.items()}
    runs = [source.run for source in sources if source.run is not None]
    page = Page(folders or RunFolders([]), GameLobby(find_offers(models, runs)))
    return Endpoint(
        models, keys=keys, limits=limits, traces=traces, reload=reload, control=ServedSamplers(sources),
        session_idle=session_idle, routes=page.routes(), open_paths=page.open_paths,
    )  # fmt: skip
