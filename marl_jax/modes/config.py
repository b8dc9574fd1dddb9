"""`--mode=config`: print every field of a run.

    python launch.py --config=experiments/plan_path.py --config.optim.lr=1e-4 --mode=config

The values include the variant and all overrides. Each line can be used on a command line. Fields that differ from their
default show it in a comment.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from marl_jax.algorithms import ALGORITHMS
from marl_jax.schema import run_fields, validate


def main(config: ConfigDict) -> None:
    """Print the config."""
    sys.stdout.write("".join(f"{line}\n" for line in lines(config)))


def lines(config: ConfigDict) -> list[str]:
    """Return one line per field: its flag, and its default if it differs."""
    own = {f"algo.{key}": field for key, field in ALGORITHMS.get(config.algo.name).fields.items()}
    known = {**run_fields.FIELDS, **own}
    flags = []
    for name, value in validate.fields(config):
        if isinstance(value, ConfigDict):  # an open group: parameters of a game, seats, the shape of a model
            flags += [f"--config.{key}={_shown(item)}" for key, item in _flat(value.to_dict(), name)]
            continue
        field = known.get(run_fields.field_name(name))
        default = "" if field is None or value == field.default else f"    # default: {_shown(field.default)}"
        flags.append(f"--config.{name}={_shown(value)}{default}")
    return flags


def _flat(group: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    for key, value in group.items():
        yield from _flat(value, f"{name}.{key}") if isinstance(value, Mapping) else [(f"{name}.{key}", value)]


def _shown(value: Any) -> str:
    """Quote a value for a shell."""
    return shlex.quote(value if isinstance(value, str) else repr(value))
