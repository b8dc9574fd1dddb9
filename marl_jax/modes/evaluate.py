"""`--mode=eval`: evaluate a policy against opponents or on a task.

    python launch.py --workdir=runs/mine --mode=eval
    python launch.py --config=... --workdir=runs/mine --mode=eval --config.eval.opponents="('random','runs/other@100')"

Results have confidence intervals. See `games.py`, `tasks.py` and `verifier.py` in `marl_jax/evaluation` for details.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.errors import RunError
from marl_jax.evaluation.games import is_exact
from marl_jax.evaluation.outputs import evaluation_of
from marl_jax.running.metrics import replace_text
from marl_jax.serving.remote import check_reachable
from marl_jax.setup import GameSetup
from marl_jax.setup.weights import present_weights

log = logging.getLogger(__name__)


def main(config: ConfigDict, workdir: Path) -> list[dict[str, Any]]:
    """Evaluate a checkpoint of a run, or the untrained model if there is none."""
    check_reachable(config.eval.opponents, "eval.opponents")
    setup = setups.make(config, workdir=workdir)
    has_opponents = bool(config.eval.opponents)
    if isinstance(setup, GameSetup) and setup.game.competitive and not has_opponents and not is_exact(setup):
        raise RunError(f"config.eval.opponents is empty, but {config.env.name} needs at least one opponent")
    if jax.process_index() == 0:
        workdir.mkdir(parents=True, exist_ok=True)  # fails before anything is played if the folder is not writable
    with contextlib.closing(setup), jax.set_mesh(setup.mesh):
        step, weights = present_weights(setup, workdir)
        with contextlib.closing(evaluation_of(setup, config.eval.split)) as evaluation:
            rows = evaluation(weights, baselines=True)
            evaluation.write(workdir, step)
            result: dict[str, Any] = {"step": step, "rows": rows, **evaluation.everyone(workdir, weights)}
    if jax.process_index() == 0:
        replace_text(workdir / "evaluation.json", json.dumps(result, indent=2) + "\n")
        log.info("wrote the evaluation of step %d to %s", step, workdir / "evaluation.json")
    return rows
