"""Config files in run folders."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from marl_jax.errors import ConfigError
from marl_jax.schema import renamed, run_fields
from registries import load_plugins


def read(workdir: Path, hint: str = "") -> ConfigDict:
    """Read the config of the run in `workdir`.

    Raises:
        ConfigError: If there is no config, with `hint` appended to the message, or if it has old field names.
    """
    values = _tuples(load(workdir, hint))
    try:
        config = ConfigDict(values)
    except ValueError as error:  # such as a key with a dot
        raise ConfigError([f"{workdir / 'config.json'} is damaged: {error}"]) from error
    if problems := renamed.problems(config):
        raise ConfigError(
            [f"{workdir} is a run of an earlier version; rename these fields in its config.json:", *problems]
        )
    with contextlib.suppress(ValueError):  # missing plugins are reported when the config is checked
        load_plugins(config.get("plugins", ()))
    return config.lock()


def runs_in(places: str) -> list[Path]:
    """Return the runs to compare, or none for the folder of a single run.

    Args:
        places: A folder that contains runs, or folders of runs separated by commas.
    """
    folders = [Path(place).expanduser() for place in places.split(",") if place]
    if len(folders) == 1 and (folders[0] / "config.json").exists():
        return []
    below = (sorted(file.parent for file in folder.glob("*/config.json")) for folder in folders)
    runs = (
        [folder] if (folder / "config.json").exists() else inside for folder, inside in zip(folders, below, strict=True)
    )
    return [run for group in runs for run in group]


def load(workdir: Path, hint: str = "") -> dict[str, Any]:
    """Load `config.json` and check that its groups are mappings; fields are not checked."""
    path = workdir / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError([f"{workdir} is not the folder of a run: {path} does not exist{hint}"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path} is not JSON: {error}"]) from error
    if not isinstance(values, dict) or not {"env", "model", "algo"} <= values.keys():
        raise ConfigError([f"{workdir} is not the folder of a run: {path} is not the config of a run{hint}"])
    policies = values.get("policies", {})
    policies = policies if isinstance(policies, dict) else {}
    groups = [*run_fields.GROUPS, "algo", "agents", "policies", *(f"policies.{name}" for name in policies)]
    groups += [f"policies.{name}.model" for name in policies]
    for name in groups:
        here: Any = values
        for key in name.split("."):
            here = here.get(key, {}) if isinstance(here, dict) else None
        if not isinstance(here, dict):
            raise ConfigError([f"{path} is damaged: {name} is {here!r}, but must be a group of fields"])
    return values


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
