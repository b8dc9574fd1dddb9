"""A stage before a run: `config.first_stage` holds the fields in which it differs from the run, `{}` is none.

    config.first_stage = dict(steps=300, algo=dict(name="sft", noise=0.1), optim=dict(lr=1e-3))

Imitation before self-play is the usual case. A stage is a run of its own in the folder `first_stage` of the run, with
its checkpoints, metrics and report, and the run starts from its newest checkpoint. So each can be interrupted and
resumed, and fields that a stage does not name (the game, the model, the seed) are the same in both. A stage may have a
`first_stage` in its turn.
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
    """The config of the stage before a run, None where there is none.

    A stage that names another algorithm gets the defaults of that algorithm, not the values of the run. `stop_when`
    applies to the run only: its metrics may not exist in the stage.
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
    """The config of the run in `workdir`, whose models start from the stage before it if it is there, or was."""
    folder = Path(workdir).absolute() / FOLDER
    if not config.first_stage or not ((folder / "config.json").is_file() or has_begun(workdir)):
        return config
    config = config.copy_and_resolve_references().unlock()
    for model in (config.model, *(policy.model for policy in config.policies.values() if policy.get("model"))):
        model.init_from = str(folder)
    return config.lock()


def has_begun(workdir: Path) -> bool:
    """Whether a run has a folder for its checkpoints, and so may have brought all it needs into them."""
    return (Path(workdir) / "checkpoints").is_dir()


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `base`, with those of `changes` in their place, group by group."""
    both = {**base, **changes}
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            both[key] = _merged(base[key], value)
    return both
