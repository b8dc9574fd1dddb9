"""Grids of runs on the command line: one run for every combination of values.

    --seeds=0,1,2                    seeds
    --sweep.FIELD=VALUE,VALUE        values of a config field

A value with commas, such as a tuple, is written in brackets: `--sweep.eval.opponents=('random',),('minimax',)`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from marl_jax.errors import ConfigError

FILE = "sweep.json"
"""File in the folder of a sweep that lists its members and results."""

FLAG = re.compile(r"--?(?:sweep\.([^=]*)|(seeds))(?:=(.*))?$", re.DOTALL)
COMMA = re.compile(r",(?![^()\[\]{}]*[)\]}])")  # outside brackets
ARGUMENTS = ("name", "seed", "optim.lr")
"""Fields that programs take as arguments, or not at all. Runs that differ only in these share their programs."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of a sweep.

    Attributes:
        values: Values of the swept fields.
        config: Config of the run.
    """

    values: Mapping[str, Any]
    config: ConfigDict

    @property
    def name(self) -> str:
        """Name of its folder, such as `optim.lr=0.001_seed=0`."""
        words = (f"{field}={re.sub(r'[^A-Za-z0-9._+-]+', '-', str(value))}" for field, value in self.values.items())
        return "_".join(words)

    @property
    def shapes(self) -> str:
        """Config without the fields that programs take as arguments; equal for members that share programs."""
        config = self.config.copy_and_resolve_references()
        for field in ARGUMENTS:
            *groups, key = field.split(".")
            functools.reduce(getattr, groups, config)[key] = type(_value(config, field))()
        return config.to_json(sort_keys=True)


def take(argv: list[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the values of every swept field, as texts, and the remaining arguments.

    Raises:
        ConfigError: If a field is given twice, or has no value or a repeated one.
    """
    grid: dict[str, tuple[str, ...]] = {}
    rest, problems = [], []
    for arg in argv:
        match = FLAG.match(arg)
        if match is None:
            rest.append(arg)
            continue
        flag, field = arg.partition("=")[0], match[1] or "seed"
        values = tuple(value.strip() for value in COMMA.split(match[3] or ""))
        if field == "seed" and not match[2]:
            problems.append(f"{flag} is not a flag; use --seeds={match[3] or '0,1,2'}")
        elif field in grid:
            problems.append(f"{flag} is given twice, but must be given once with all values")
        elif "" in values:
            problems.append(f"{flag} is {match[3] or ''!r}, but must be values separated by commas")
        elif len(set(values)) < len(values):
            problems.append(f"{flag} is {match[3]!r}, but must have each value once")
        grid[field] = values
    if problems:
        raise ConfigError(problems)
    return {field: grid[field] for field in sorted(grid, key="seed".__eq__)}, rest  # the seed is last


def members(grid: Mapping[str, tuple[str, ...]], parse: Callable[[list[str]], ConfigDict]) -> list[Member]:
    """Return the runs of a grid, those that share programs next to each other.

    Args:
        grid: Values of every swept field, as texts.
        parse: Maps overrides such as `--config.seed=1` to the config of a run.

    Raises:
        ConfigError: If a value is invalid, or two members are the same run.
    """
    by_name: dict[str, Member] = {}
    for values in itertools.product(*grid.values()):
        overrides = [f"--config.{field}={value}" for field, value in zip(grid, values, strict=True)]
        config = parse(overrides)
        member = Member({field: _value(config, field) for field in grid}, config)
        if member.name in by_name:
            raise ConfigError([f"two runs of the sweep are {member.name}, but each must have other values"])
        by_name[member.name] = member
    groups = {member.shapes: i for i, member in reversed(list(enumerate(by_name.values())))}
    return sorted(by_name.values(), key=lambda member: groups[member.shapes])


def check_mode(mode: str, config: ConfigDict) -> None:
    """Check that a mode can run a sweep."""
    if mode != "train":
        raise ConfigError([f"--mode is {mode}, but must be train with --seeds or --sweep"])
    if config.distributed.enabled:
        raise ConfigError(["config.distributed.enabled is True, but must be False with --seeds or --sweep"])


def _value(config: ConfigDict, field: str) -> Any:
    return functools.reduce(getattr, field.split("."), config)
