"""Config overrides as Python values; `flags.py` has the ones of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from marl_jax.errors import ConfigError
from marl_jax.schema import adjustments, flags, run_fields, saved

Source = ConfigDict | str | os.PathLike[str]
"""A config, the folder of a run, an experiment file or the name of an experiment, optionally with ":FORM"."""


def resolve(source: Source) -> tuple[ConfigDict, str, Path | None]:
    """Return a config, the name of its experiment, and the folder of its run.

    The config may be changed. The folder is None unless the source is a run.

    Raises:
        ConfigError: If there is no such run or experiment.
    """
    if isinstance(source, ConfigDict):
        return source.copy_and_resolve_references().unlock(), source.get("name", ""), None
    folder = Path(source).expanduser()
    if folder.is_dir():
        return saved.read(folder).unlock(), "", folder.absolute()
    path, _, variant = os.fspath(source).partition(":")
    config = flags.load_experiment(path, variant or None)
    return config.unlock(), Path(path).stem + (f"-{variant}" if variant else ""), None


def apply(config: ConfigDict, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Change fields of a config in place and return warnings to log.

    Args:
        config: Config of a run.
        changes: Values by field. Groups are mappings, and names may have dots: {"steps": 50, "optim": {"lr": 1e-3}}
            equals {"steps": 50, "optim.lr": 1e-3}. An open group, such as `task.params`, keeps its other fields;
            `agents` and `policies` are replaced.

    Raises:
        ConfigError: If there is no such field, or a value is invalid.
    """
    from marl_jax.schema import validate  # imported here because the registries import JAX

    values = dict(_flat(changes))
    config.unlock()
    if "plugins" in values:
        names = values.pop("plugins")
        config.plugins = (names,) if isinstance(names, str) else tuple(names)
    flags.import_plugins(config, [])
    if "algo.name" in values:
        config.algo = flags.switch_algorithm(config.algo, values["algo.name"])
    opponents = config.eval.opponents
    is_open = tuple({*run_fields.OPEN_GROUPS, "agents.", "policies."})
    if problems := [p.removeprefix("--") for name in values if not f"{name}.".startswith(is_open)
                    for p in flags.wrong_field(config, name)]:  # fmt: skip
        raise ConfigError(problems)
    for name, value in values.items():
        *groups, key = name.split(".")
        here = config
        for part in groups:
            if part not in here:
                here[part] = ConfigDict()
            here = here[part]
        with here.ignore_type():  # a value of another type is reported with the other fields
            here[key] = _value(name, value)
    validate.check_fields(config)
    return adjustments.adjust(config, values, opponents)


def _flat(changes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield fields with dotted names; agents, policies and values of open groups stay mappings."""
    for key, value in changes.items():
        name = f"{prefix}{key}"
        whole = name in ("agents", "policies") or name.startswith(run_fields.OPEN_GROUPS)
        if isinstance(value, Mapping | ConfigDict) and not whole:
            yield from _flat(dict(value.items()), f"{name}.")
        else:
            yield name, value


def _value(name: str, value: Any) -> Any:
    """Convert a value for a config: tuples for lists, and policies with all fields."""
    if name == "policies":
        names = {key: changes or {} for key, changes in dict(value).items()} if isinstance(value, Mapping) else value
        policies = {key: run_fields.policy() for key in names}
        for key, policy in policies.items():
            policy.update(names[key] if isinstance(names, Mapping) else {})
        return ConfigDict(policies)
    return ConfigDict(_tuples(value)) if isinstance(value, Mapping) else _tuples(value)


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
