"""Conditions between the fields of a run whose environment is a host task.

Called once every field by itself is right, every name is known and the task accepts its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from marl_jax.agents.seating import BOT
from marl_jax.algorithms import ALGORITHMS
from marl_jax.schema import combinations
from marl_jax.serving.remote import is_remote
from registries import Registry


def tasks() -> Registry:
    """The registry of tasks."""
    from envs.tasks import TASKS

    return TASKS


def make(c: ConfigDict) -> Any:
    """The task of a config; parameters that it does not accept are a TypeError or ValueError."""
    return tasks().get(c.task.name)(**c.task.params.to_dict())


def _seats(c: ConfigDict) -> Iterator[str]:
    yield from combinations.seats(c, make(c).roles, c.task.name)
    for agent, player in c.agents.items():
        if player.startswith(BOT):
            yield f"config.agents.{agent} is {player!r} with task.name {c.task.name!r}; accepted: the name of a policy"


def _games_only(c: ConfigDict) -> Iterator[str]:
    if c.curriculum.enabled:
        yield f"config.curriculum.enabled is True with task.name {c.task.name!r}; accepted: False, or a puzzle"
    if c.opponents.self_play_frac < 1 or c.opponents.bots or c.opponents.pool_size:
        yield f"config.opponents has other players with task.name {c.task.name!r}; accepted: its defaults, or a game"


def _length(c: ConfigDict) -> Iterator[str]:
    if c.task.max_new_tokens >= c.task.max_length:
        yield (
            f"config.task.max_new_tokens is {c.task.max_new_tokens} with task.max_length {c.task.max_length}, which "
            "leaves no room for a prompt; accepted: less"
        )
    if c.sampling.page_size & (c.sampling.page_size - 1):
        yield f"config.sampling.page_size is {c.sampling.page_size}; accepted: 8, 16, 32 or 64"


def _evaluation(c: ConfigDict) -> Iterator[str]:
    if not all(map(is_remote, c.eval.opponents)) or c.eval.swap_roles:
        yield (
            f"config.eval has opponents {c.eval.opponents!r} and swap_roles {c.eval.swap_roles} with task.name "
            f"{c.task.name!r}; accepted: () or remote models (http://HOST:PORT/v1#MODEL), and False"
        )
    if c.eval.best_of > 1:
        yield f"config.eval.best_of is {c.eval.best_of} with task.name {c.task.name!r}; accepted: 1, or a game"
    if c.eval.samples > 1 and c.eval.temperature == 0:
        yield (
            f"config.eval.samples is {c.eval.samples} with eval.temperature 0, where all samples of an example are "
            "equal; accepted: 1, or a temperature above 0"
        )


def _best(c: ConfigDict) -> Iterator[str]:
    found = c.checkpoint.best_metric
    if not found:
        return
    opponent, _, metric = found.partition("/")
    metric = metric.removesuffix("_low").removesuffix("_high")
    if ALGORITHMS.get(c.algo.name).verifies:
        if opponent not in ("balanced", "natural") or metric not in ("accuracy", "auc", "auc_by_question"):
            yield (
                f"config.checkpoint.best_metric is {found!r} with algo.name {c.algo.name!r}; accepted: accuracy, auc "
                "or auc_by_question behind balanced/ or natural/, or an end of their intervals (_low)"
            )
    elif opponent != "self" or metric not in ("success", "reward"):
        yield (
            f"config.checkpoint.best_metric is {found!r} with task.name {c.task.name!r}; accepted: self/success, "
            "self/reward, or an end of their intervals (_low)"
        )
    if not c.eval.every:
        yield f"config.checkpoint.best_metric is {found!r} with eval.every 0; accepted: 1 and more"


COMBINATIONS = (_seats, _games_only, _length, _evaluation, _best)

ONLY_LEARNING = (_best,)
"""Conditions that do not matter where nothing is learnt."""
