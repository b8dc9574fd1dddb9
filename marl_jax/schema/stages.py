"""Training stages: `config.first_stage` has the fields that differ in the stage before a run.

    config.first_stage = dict(steps=300, algo=dict(name="sft", noise=0.1), optim=dict(lr=1e-3))

A common case is imitation before self-play. A stage is a separate run in the subfolder `first_stage`, with its
checkpoints, metrics and report, and the main run starts from its newest checkpoint. Both can be interrupted and
resumed. Fields that the stage does not set, such as the game, the model and the seed, are the same in both. A stage may
have a `first_stage` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from marl_jax import fields
from marl_jax.algorithms import ALGORITHMS

FOLDER = "first_stage"


def first_stage(config: ConfigDict) -> ConfigDict | None:
    """Return the config of the stage before a run, or None if there is none.

    If the stage uses another algorithm, it starts from that algorithm's defaults, not from the values of the run.
    `stop_when` applies to the run only, because its metrics may not exist in the stage.
    """
    changes = config.first_stage.to_dict()
    if not changes:
        return None
    stage = config.to_dict() | {"first_stage": {}, "stop_when": ""}
    name = changes["algo"].get("name") if isinstance(changes.get("algo"), Mapping) else None
    if name is not None and name != config.algo.name:
        own = ALGORITHMS.get(name).fields if name in ALGORITHMS else {}
        stage["algo"] = {"name": name, **fields.defaults(own)}
    return ConfigDict(_merged(stage, changes)).lock()


def started(config: ConfigDict, workdir: Path) -> ConfigDict:
    """Return the config with models that start from the first stage, if trained."""
    folder = Path(workdir).absolute() / FOLDER
    if not config.first_stage or not ((folder / "config.json").is_file() or has_begun(workdir)):
        return config
    config = config.copy_and_resolve_references().unlock()
    for model in (config.model, *(policy.model for policy in config.policies.values() if policy.get("model"))):
        model.init_from = str(folder)
    return config.lock()


def has_begun(workdir: Path) -> bool:
    """Return whether a run has a checkpoint folder."""
    return (Path(workdir) / "checkpoints").is_dir()


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` applied recursively."""
    both = {**base, **changes}
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            both[key] = _merged(base[key], value)
    return both
