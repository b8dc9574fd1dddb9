"""The config that a run wrote into its folder."""

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
      ConfigError: if there is none, which `hint` may explain further, or if it has old field names.
    """
    values = _tuples(load(workdir, hint))
    try:
        config = ConfigDict(values)
    except ValueError as error:  # such as a name with a dot
        raise ConfigError([f"{workdir / 'config.json'} is damaged: {error}"]) from error
    if problems := renamed.problems(config):
        raise ConfigError([f"{workdir} is a run of an earlier version, whose config.json has other fields:", *problems])
    with contextlib.suppress(ValueError):  # a plugin that is not there is reported when the config is checked
        load_plugins(config.get("plugins", ()))
    return config.lock()


def load(workdir: Path, hint: str = "") -> dict[str, Any]:
    """Load `config.json` and check that its groups are groups. Fields are not checked."""
    path = workdir / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError([f"{workdir} is not the folder of a run: {path} does not exist{hint}"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path} is not JSON: {error}"]) from error
    if not isinstance(found, dict) or not {"env", "model", "algo"} <= found.keys():
        raise ConfigError([f"{workdir} is not the folder of a run: {path} is the config of something else{hint}"])
    policies = found.get("policies", {})
    policies = policies if isinstance(policies, dict) else {}
    groups = [*run_fields.GROUPS, "algo", "agents", "policies", *(f"policies.{name}" for name in policies)]
    groups += [f"policies.{name}.model" for name in policies]
    for name in groups:
        here: Any = found
        for key in name.split("."):
            here = here.get(key, {}) if isinstance(here, dict) else None
        if not isinstance(here, dict):
            raise ConfigError([f"{path} is damaged: {name} is {here!r}, expected a group of fields"])
    return found


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
