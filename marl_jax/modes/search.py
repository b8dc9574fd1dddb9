"""`--mode=search`: search for a workflow with the policy of a run.

    python launch.py --config=experiments/workflow_search.py --mode=search --workdir=runs/search

See `marl_jax/evaluation/workflow_search.py`. The task must be `workflow`.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import jax
from ml_collections import ConfigDict

from envs.tasks.design.execution import Execution
from marl_jax import setup as setups
from marl_jax.errors import ConfigError
from marl_jax.evaluation import workflow_search
from marl_jax.running.processes import workdir_lock
from marl_jax.serving.remote import check_reachable, is_remote
from marl_jax.setup import TaskSetup
from marl_jax.setup.weights import present_weights

log = logging.getLogger(__name__)


def main(config: ConfigDict, workdir: Path) -> str:
    """Search, and return the table of results."""
    problems = []
    for editor in config.search.editors:
        if editor not in (workflow_search.POLICY, workflow_search.RANDOM) and not is_remote(editor):
            problems.append(
                f"config.search.editors has {editor!r}, but must have 'policy', 'random' or http://HOST:PORT/v1#MODEL"
            )
    if len(set(config.search.editors)) < len(config.search.editors) or not config.search.editors:
        problems.append(f"config.search.editors is {config.search.editors!r}, but must have distinct names")
    if config.eval.temperature == 0:
        problems.append("config.eval.temperature is 0, but must be > 0 for --mode=search, because votes need samples")
    setup = None if problems else setups.make(config, workdir=workdir)
    if setup is not None and not (isinstance(setup, TaskSetup) and isinstance(setup.task, Execution)):
        problems.append(f"config.task.name is {config.task.name!r}, but must be 'workflow' for --mode=search")
    if problems:
        raise ConfigError(problems)
    assert isinstance(setup, TaskSetup)
    check_reachable([editor for editor in config.search.editors if is_remote(editor)], "search.editors")
    workdir.mkdir(parents=True, exist_ok=True)
    with workdir_lock(workdir), contextlib.closing(setup), jax.set_mesh(setup.mesh):
        _, weights = present_weights(setup, workdir)
        text = workflow_search.search(setup, weights, workdir)
    log.info("wrote %s\n%s", workdir / workflow_search.TABLE, text)
    return text
