"""Configs that an earlier version saved: fields that have been added since get the value that means what the run did.

The rule for a new field: its default keeps what runs did before there was the field. Where a default is to mean
something new, `BEFORE` has the field with the value that runs without it had.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from marl_jax.algorithms import ALGORITHMS
from marl_jax.schema import run_fields

BEFORE: dict[str, Any] = {}
"""Field → what runs did before it existed, where its default is something else; `schema.FIELDS` has the names."""

NEVER_ADDED = ("seed", "steps", "agents", "env.name", "task.name", "model.name", "algo.name", "optim.lr")
"""Every run has had these: a config without one of them is damaged, and no default says what the run did."""


def fill(config: ConfigDict) -> dict[str, Any]:
    """Adds the fields that a saved config lacks, and returns them with their values.

    Fields of an algorithm that is not registered are left to whoever checks the config.
    """
    found = {}
    for name in _wanted(config):
        *groups, key = name.split(".")
        here = config
        for group in groups:
            if group not in here:
                here[group] = ConfigDict()
            here = here[group]
        if key not in here:
            here[key] = found[name] = _value(name, config.algo.get("name"))
    return found


def _wanted(config: ConfigDict) -> list[str]:
    """Every field that a run like this one has now, but those that are never filled in."""
    names = [name for name in run_fields.FIELDS if "*" not in name]
    algorithm = config.algo.get("name")
    if isinstance(algorithm, str) and algorithm in ALGORITHMS:
        names += [f"algo.{key}" for key in ALGORITHMS.get(algorithm).fields]
    for policy, own in config.get("policies", {}).items():
        names += [f"policies.{policy}.{name}" for name in run_fields.POLICY]
        if own.get("model"):
            names += [f"policies.{policy}.{name}" for name in run_fields.FIELDS if name.startswith("model.")]
    return [name for name in names if run_fields.field_name(name) not in NEVER_ADDED]


def _value(name: str, algorithm: str) -> Any:
    known = run_fields.field_name(name)
    if known in BEFORE:
        return BEFORE[known]
    if known in run_fields.FIELDS:
        return run_fields.FIELDS[known].default
    return ALGORITHMS.get(algorithm).fields[name.removeprefix("algo.")].default
