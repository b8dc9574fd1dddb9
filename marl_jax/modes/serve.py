"""`--mode=serve`: models behind an OpenAI-compatible endpoint, and a page to look at runs and to play (docs/page.md).

    python launch.py --mode=serve --workdir=runs/mine                       # the policies of a run
    python launch.py --mode=serve --config.serve.models="('qwen2.5-0.5b-instruct','mine=runs/mine@best')"
    python launch.py --mode=serve --config.serve.runs="('runs',)"           # no models, only the page

It listens on the loopback address; on any other, clients need the key in the environment variable that `serve.key_env`
names. Sessions are written to `traces.jsonl` in the folder of the run. What a model can be: `served_models.py`.
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
    """All samplers of a server, paused and drained together."""

    sources: Sequence[ModelSource]

    def pause(self) -> None:
        """As `BatcherThread.pause`."""
        self._each("pause")

    def resume(self) -> None:
        """As `BatcherThread.resume`."""
        self._each("resume")

    def drain(self) -> None:
        """As `BatcherThread.drain`."""
        self._each("drain")

    def _each(self, name: str) -> None:
        for source in self.sources:
            getattr(source.sampler, name)()


def main(config: ConfigDict, workdir: Path) -> None:
    """Serves until SIGTERM or Ctrl-C, and then answers what is under way."""
    keys, limits = http.read_settings(config.serve)  # what is refused is refused before models are loaded
    folders = RunFolders([*([workdir] if (workdir / "config.json").is_file() else []), *config.serve.runs])
    if not serves_models(config, workdir):
        if config.serve.workers:
            raise ConfigError([f"config.serve.workers is {config.serve.workers} without a model, but must be 0"])
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
    """Whether there are models to serve: named ones, a run's, or an experiment's where no runs are named to look at."""
    return bool(config.serve.models) or not config.serve.runs or (workdir / "config.json").is_file()


def _settings(config: ConfigDict) -> dict[str, Any]:
    """Where to listen, and until when."""

    def ready(url: str) -> None:
        log.info("page: %s/page/", url)

    return dict(host=config.serve.host, port=config.serve.port, drain_seconds=config.serve.drain, on_ready=ready)


def make_endpoint(
    sources: Sequence[ModelSource],
    keys: Keys,
    limits: Limits,
    traces: TraceFile | None,
    folders: RunFolders | None = None,
    session_idle: float | None = None,
) -> Endpoint:
    """The endpoint of all models of these sources, with the page of these runs and models beside it."""
    found = {name: (source, model) for source in sources for name, model in source.models.items()}

    async def reload(name: str, step: str) -> int:
        source = found[name][0]
        if source.reload is None:
            raise RunError(f"the weights of {name!r} come from no run")
        return await asyncio.to_thread(source.reload, step)

    models = {name: model for name, (_, model) in found.items()}
    runs = [source.run for source in sources if source.run is not None]
    page = Page(folders or RunFolders([]), GameLobby(find_offers(models, runs)))
    return Endpoint(
        models, keys=keys, limits=limits, traces=traces, reload=reload, control=ServedSamplers(sources),
        session_idle=session_idle, routes=page.routes(), open_paths=page.open_paths,
    )  # fmt: skip
