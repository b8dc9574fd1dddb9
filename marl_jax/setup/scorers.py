"""Trained verifiers for scoring, in this process or over HTTP.

with open_scorer(Path("runs/verifier")) as verifier:
    verifier.scorer([[{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]])  # [0.97]
with serve_beside(Path("runs/verifier")) as (url, version):
    ...  # tasks connect to it with envs.tasks.scorer_client.ScorerClient(url, version)
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
    """A verifier from a checkpoint.

    Attributes:
        scorer: Scores conversations.
        model: Name of the model.
        version: Checksum of the weights.
        step: Step of the checkpoint.
    """

    scorer: Scorer
    model: str
    version: str
    step: int


@contextlib.contextmanager
def open_scorer(workdir: Path, config: ConfigDict | None = None) -> Iterator[Verifier]:
    """Load the verifier of a run from the checkpoint named by `eval.step`.

    Args:
        workdir: Folder of the run.
        config: Config of the run. Defaults to the one in `workdir`.

    Raises:
        RunError: If the checkpoint has another model or tokenizer than the config.
    """
    if config is None:
        config = saved.read(workdir).unlock()
        load_plugins(config.plugins)
    setup = setups.make(config, workdir=workdir)
    if not setup.algorithm.verifies:
        raise ConfigError(
            [f"config.algo.name is {config.algo.name!r} in {workdir}, but must be 'verifier' or 'reward_model'"]
        )
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
    """Serve the verifier of a run over HTTP and yield its URL and version.

    Tasks do not import JAX, so they use HTTP even for a verifier on the devices of their run. The server listens on a
    free port of the loopback address and needs no key.
    """
    with open_scorer(workdir, config) as verifier:
        app = reward_app(
            verifier.scorer, model=verifier.model, version=verifier.version, step=verifier.step, keys=Keys.of("")
        )
        with server.in_thread(app) as url:
            yield url, verifier.version
