"""Register games, tasks, bots, algorithms, model families and rewards from Python.

Each function registers an object under a name, directly or as a decorator:

    @marl_jax.register_task("echo")
    class Echo(Task): ...

    marl_jax.register_task("capitals", dataset_task(data=rows, rewards=right))

Runs started from this process record the modules and scripts that registered what they use in `config.plugins`, so that
the command line can resume them. Running a cell of a notebook again replaces its entry.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from ml_collections import ConfigDict

from registries import Registry

T = TypeVar("T")

MODULES: dict[str, set[str]] = {}
"""Modules and scripts that have registered something, with the names."""


@overload
def register_game(name: str, entry: T) -> T: ...
@overload
def register_game(name: str) -> Callable[[T], T]: ...
def register_game(name: str, entry: Any = None) -> Any:
    """Register a game: a `GameEntry` with rules, text, drawing and bots."""
    return _register("envs.games.entry:GAMES", name, entry)


@overload
def register_task(name: str, entry: T) -> T: ...
@overload
def register_task(name: str) -> Callable[[T], T]: ...
def register_task(name: str, entry: Any = None) -> Any:
    """Register a task: a subclass of `Task`, or a factory such as `dataset_task(...)`."""
    return _register("envs.tasks:TASKS", name, entry)


@overload
def register_reward(name: str, entry: T) -> T: ...
@overload
def register_reward(name: str) -> Callable[[T], T]: ...
def register_reward(name: str, entry: Any = None) -> Any:
    """Register a reward function, which configs of the task `dataset` then name."""
    return _register("envs.tasks.rewards:REWARDS", name, entry)


@overload
def register_bot(name: str, entry: T) -> T: ...
@overload
def register_bot(name: str) -> Callable[[T], T]: ...
def register_bot(name: str, entry: Any = None) -> Any:
    """Register a bot of a game as "GAME/BOT"; the entry makes it from the game."""
    return _register("envs.games.bots:BOTS", name, entry)


@overload
def register_algorithm(name: str, entry: T) -> T: ...
@overload
def register_algorithm(name: str) -> Callable[[T], T]: ...
def register_algorithm(name: str, entry: Any = None) -> Any:
    """Register an `Algorithm`: settings, rollout, advantages and objective."""
    return _register("marl_jax.algorithms:ALGORITHMS", name, entry)


@overload
def register_model(name: str, entry: T) -> T: ...
@overload
def register_model(name: str) -> Callable[[T], T]: ...
def register_model(name: str, entry: Any = None) -> Any:
    """Register a model family under the `model_type` of its `config.json`."""
    return _register("models.families:FAMILIES", name, entry)


def make_env(name: str, **params: Any) -> Any:
    """Make a game or a task by name.

        game = marl_jax.make_env("hanabi", players=3)          # pure functions: reset, legal, step, …
        env = PettingZooEnv(game)                              # `envs.adapters.zoo`
        task = marl_jax.make_env("arithmetic")                 # examples and episodes

    Args:
        name: Name of a registered game or task.
        **params: Parameters of the game (`env.params`) or task (`task.params`).

    Raises:
        ValueError: There is no such game or task, or it has no such parameter.
    """
    from envs.tasks import TASKS, make_task

    if name in TASKS:
        return make_task(name, **params)
    from envs.games import registry as games  # imports JAX

    if name not in games.GAMES:
        raise ValueError(
            f"name is {name!r}, but must be a game ({', '.join(games.GAMES)}) or a task ({', '.join(TASKS)})"
        )
    return games.make(name, **params)


def _register(where: str, name: str, entry: Any) -> Any:
    """Add an entry to a registry, or return a decorator that does."""
    module, _, attribute = where.partition(":")
    registry: Registry = getattr(importlib.import_module(module), attribute)
    caller = sys._getframe(2).f_globals

    def add(entry: T) -> T:
        registry.add(name, entry, origin=caller["__name__"])
        if place := _place(caller):
            # Configs name a bot without its game. They do not name model families, so these are recorded always.
            MODULES.setdefault(place, set()).add("" if registry.kind == "model_families" else name.rpartition("/")[2])
        return entry

    return add if entry is None else add(entry)


def modules_for(config: ConfigDict) -> list[str]:
    """Return the modules and scripts that have registered names which a config uses."""
    texts = {text.removeprefix("bot:") for text in _texts(config.to_dict())}
    return [module for module, names in MODULES.items() if names & {"", *texts}]


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a config."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _place(namespace: dict[str, Any]) -> str | None:
    """Return the name of a module or path of a script; None for notebooks."""
    if namespace["__name__"] != "__main__":
        return namespace["__name__"]
    spec, file = namespace.get("__spec__"), namespace.get("__file__")
    if spec is not None:  # python -m
        return spec.name
    return str(Path(file).resolve()) if file and file.endswith(".py") else None
