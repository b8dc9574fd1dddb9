"""From a config to the parts a run is made of. Nothing is trained here.

parts.py   what every run has: algorithm, mesh, models with their policies, who sits where
games.py   the parts of a run whose environment is a game
tasks.py   the parts of a run whose environment is a host task
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from marl_jax.setup import games, tasks
from marl_jax.setup.games import GameSetup
from marl_jax.setup.parts import Find, Setup, found, models_of
from marl_jax.setup.tasks import TaskSetup

__all__ = ["GameSetup", "Setup", "TaskSetup", "found", "make", "models_of"]


def make(
    config: ConfigDict,
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX
    find: Find | None = None,
    workdir: Path | None = None,
) -> GameSetup | TaskSetup:
    """Builds everything that a config names; what does not fit together is refused here, before anything compiles.

    devices  those of the mesh; None: all
    find     from a model's config: its shape, the place of its weights, its tokenizer; None: `found`
    workdir  of the run, where its checkpoints are and a rollout may keep what it needs to be repeated; None: nowhere
    """
    if config.task.name:
        return tasks.make(config, devices, find or found, workdir)
    return games.make(config, devices, find or found, workdir)
