"""Construction of a run from its config: algorithm, mesh, models, environment and rollout.

`parts` has the parts of every run, `games` those of runs with a game, and `tasks` those of runs with a host task.
Nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from marl_jax.devices.aot import SharedPrograms
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
    programs: SharedPrograms | None = None,
) -> GameSetup | TaskSetup:
    """Build the parts of a run and check that they fit together, before anything compiles.

    Args:
        config: Config of the run.
        devices: Devices of the mesh; None for all.
        find: Maps the config of a model to its shape, the location of its weights and its tokenizer. Defaults to
            `found`.
        workdir: Folder of the run, with its checkpoints and the journal of its rollouts.
        programs: Programs of an earlier run with the same shapes, to share them.
    """
    make_parts = tasks.make if config.task.name else games.make
    return make_parts(config, devices, find or found, workdir, SharedPrograms() if programs is None else programs)
