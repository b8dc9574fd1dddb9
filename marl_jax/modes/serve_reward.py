"""`--mode=serve_reward`: serve a trained verifier over HTTP until SIGTERM or Ctrl-C.

    MARL_JAX_KEY=… python launch.py --mode=serve_reward --workdir=runs/verifier --config.serve.port=8000

See `marl_jax/serving/rewards.py` for the protocol.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ml_collections import ConfigDict

from marl_jax.errors import ConfigError
from marl_jax.serving.http import app as http
from marl_jax.serving.http import server
from marl_jax.serving.rewards import reward_app
from marl_jax.setup.scorers import open_scorer

log = logging.getLogger(__name__)


def main(config: ConfigDict, workdir: Path) -> None:
    """Serve the checkpoint named by `eval.step`."""
    keys, limits = http.read_settings(config.serve)
    if config.serve.workers:
        raise ConfigError([f"config.serve.workers is {config.serve.workers}, but must be 0 for --mode=serve_reward"])
    with open_scorer(workdir, config) as verifier:
        app = reward_app(
            verifier.scorer, model=verifier.model, version=verifier.version, step=verifier.step, keys=keys,
            limits=limits,
        )  # fmt: skip
        server.serve(app, config.serve.host, config.serve.port, drain_seconds=config.serve.drain)
    log.info("stopped")
