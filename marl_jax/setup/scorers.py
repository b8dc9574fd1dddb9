"""Verifiers of runs, ready to score.

with open_scorer(Path("runs/verifier")) as verifier:
    verifier.scorer([[{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]])    # [0.97]
with serve_beside(Path("runs/verifier")) as (url, version):
    ...  # tasks of this process reach it with envs.tasks.scorer_client.ScorerClient(url, version)
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import jax
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.agents.verifier import Scorer, version_of
from marl_jax.errors import ConfigError
from marl_jax.schema import saved
from marl_jax.serving.http import server
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.rewards import reward_app
from marl_jax.setup.weights import restore_weights
from registries import load_plugins

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Verifier:
    """A verifier of a run: what scores, the name of its model, a checksum of its weights, the step they are of."""

    scorer: Scorer
    model: str
    version: str
    step: int


@contextlib.contextmanager
def open_scorer(workdir: Path, config: ConfigDict | None = None) -> Iterator[Verifier]:
    """The verifier of a run at the checkpoint that `eval.step` names; without a config, that of the folder.

    A checkpoint of another model or tokenizer than the config's is refused.
    """
    if config is None:
        config = saved.read(workdir).unlock()
        load_plugins(config.plugins)
    setup = setups.make(config, workdir=workdir)
    if not setup.algorithm.verifies:
        raise ConfigError([f"config.algo.name is {config.algo.name!r} in {workdir}, but must be verifier"])
    with contextlib.closing(setup), jax.set_mesh(setup.mesh):
        step, weights = restore_weights(setup, workdir, config.eval.step)
        backbone = setup.backbone
        own = weights[backbone.name]
        version = version_of(own, backbone.config.name)
        scorer = Scorer(backbone.policy, own, backbone.tokenizer, config.task.max_length, mesh=setup.mesh)
        log.info("%s: %s at step %d, version %s", workdir, backbone.config.name, step, version)
        yield Verifier(scorer, backbone.config.name, version, step)


@contextlib.contextmanager
def serve_beside(workdir: Path, config: ConfigDict | None = None) -> Iterator[tuple[str, str]]:
    """The verifier of a run behind HTTP on a free port of this machine, in this process: its address and version.

    Tasks import no JAX, so they reach a verifier on the devices of their own run in the same way as any other. Who may
    connect is this machine; its users need no key.
    """
    with open_scorer(workdir, config) as found:
        app = reward_app(found.scorer, model=found.model, version=found.version, step=found.step, keys=Keys.of(""))
        with server.in_thread(app) as url:
            yield url, found.version
