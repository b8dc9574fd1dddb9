"""Algorithms by name. Each is one `Algorithm`: what it is made of, its config fields and what it refuses.

`ALGORITHMS.add("mine", "my_package.mine:MINE")`, an entry point of the group `marl_jax.algorithms` or a module named in
`config.plugins` adds one. Nothing is imported before it is asked for, so that configs can read `fields` without JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from marl_jax.fields import Field
from registries import Registry


def accept_everything(config: ConfigDict) -> Iterator[str]:
    """The check of an algorithm without conditions of its own."""
    return iter(())


@dataclasses.dataclass(frozen=True, eq=False)
class Algorithm:
    """One entry of the registry.

    fields  of `config.algo`, besides the name
    check   problems of a config, beyond what the rules of single fields say
    critic  whether values are learnt
    """

    name: str
    fields: dict[str, Field]
    rollout: Callable[..., Any] | None = None
    prepare: Callable[..., Any] | None = None
    objective: Callable[..., Any] | None = None
    check: Callable[[ConfigDict], Iterator[str]] = accept_everything
    critic: bool = False
    update: Callable[..., Any] | None = None


ALGORITHMS = Registry("algorithms")
for _name in ("ppo", "grpo", "at_grpo", "sft"):
    ALGORITHMS.add(_name, f"marl_jax.algorithms.entries:{_name.upper()}")
