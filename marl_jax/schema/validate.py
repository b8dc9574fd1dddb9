"""Refuse a config that cannot work, before anything is compiled.

Fields are checked one by one (`run_fields.py` and the fields of the algorithm), then names against their registries,
then conditions between fields (`combinations.py`, those for games or tasks, and the algorithm's own check). `check`
collects all problems, so that a user can fix them at once. Each names the field, its value and the accepted values.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from envs.games import registry as games
from marl_jax.algorithms import ALGORITHMS
from marl_jax.errors import ConfigError, did_you_mean
from marl_jax.fields import OPEN, Field
from marl_jax.schema import combinations, game_combinations, renamed, run_fields, stages, task_combinations
from models import registry as models
from registries import load_plugins

LEARNING_MODES = ("train", "compile")


def check(config: ConfigDict, mode: str = "train", workdir: Path | None = None) -> None:
    """Raises `ConfigError` with every problem of the config; combinations come once fields and names are right.

    Where nothing is learnt (`mode`), no best checkpoint is chosen, and its metric may name whom it likes. A run
    that has begun in `workdir`, or whose first stage has, may do without the folder it started from.
    """
    try:
        load_plugins(config.get("plugins", ()))
    except ValueError as error:
        raise ConfigError([f"config.plugins: {error}"]) from error
    begun = workdir is not None and (stages.has_begun(workdir) or stages.has_begun(workdir / stages.FOLDER))
    if problems := _problems(config, mode, begun):
        raise ConfigError(problems)


def _problems(config: ConfigDict, mode: str, begun: bool) -> list[str]:
    problems = [*_single_fields(config)]
    problems = problems or [*_names(config)]
    problems = problems or [*_parameters(config)]
    problems = problems or [*_combinations(config, mode, begun)]
    if problems or mode not in LEARNING_MODES or (stage := stages.first_stage(config)) is None:
        return problems
    return [f"first stage: {problem}" for problem in _problems(stage, mode, begun)]


def check_fields(config: ConfigDict) -> None:
    """Raises `ConfigError` with the fields that are missing, unknown or of a wrong value, each by itself."""
    if problems := [*_single_fields(config)]:
        raise ConfigError(problems)


def fields(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field as (dotted name, value); open groups count as one field."""
    for key, value in config.items(preserve_field_references=False):
        name = prefix + key
        known = run_fields.FIELDS.get(run_fields.field_name(name))
        if isinstance(value, ConfigDict) and not (known and known.rule is OPEN):
            yield from fields(value, name + ".")
        else:
            yield name, value


def algorithm_fields(name: Any) -> dict[str, Field]:
    """The fields of an algorithm by their dotted names; none where the algorithm is unknown."""
    if name not in ALGORITHMS:
        return {}
    return {f"algo.{key}": field for key, field in ALGORITHMS.get(name).fields.items()}


def unknown_field(name: str, algorithm: Any, known: dict[str, Any]) -> str:
    """The problem with a field that does not exist: its new name, the fields of the algorithm, or the nearest one."""
    if problem := renamed.field(name):
        return problem
    own = algorithm_fields(algorithm)
    hint = _meant(name, {*known, *own, *run_fields.FIELDS}) or _of_others(name)
    if name.startswith("algo.") and own and not hint:
        names = ", ".join(key.removeprefix("algo.") for key in own)
        return f"config.{name} is not a field of {algorithm}; its fields: {names}"
    return f"config.{name} is not a field{hint or _near(name, known)}"


def _meant(name: str, known: Container[str]) -> str:
    """A hint at the fields or flags that are meant by a name that is usual elsewhere, or nothing."""
    meant = [here for here in renamed.elsewhere(name) if here in known or here.startswith("--")]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _of_others(name: str) -> str:
    """A hint at a field of other algorithms that is meant by a name that is usual elsewhere, or nothing."""
    for meant in renamed.elsewhere(name):
        if owners := [algorithm for algorithm in ALGORITHMS if meant in algorithm_fields(algorithm)]:
            return f"; with algo.name {' or '.join(owners)} it is {meant}"
    return ""


def _near(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest field, or at all that have the same name in other groups."""
    word, written = renamed.last_word(name), name.replace("-", "_")
    if same := [field for field in known if renamed.last_word(field) == word]:
        return did_you_mean(written, same, cutoff=0.75) or f"; did you mean {' or '.join(same)}?"
    return did_you_mean(written, known, cutoff=0.7) or "; --help lists all fields"


def _single_fields(config: ConfigDict) -> Iterator[str]:
    algorithm = config.get("algo", {}).get("name")
    known = {**run_fields.FIELDS, **algorithm_fields(algorithm)}
    found = dict(fields(config))
    for name, value in found.items():
        field = known.get(run_fields.field_name(name))
        if field is None and name.startswith("algo.") and algorithm not in ALGORITHMS and not renamed.field(name):
            continue  # whose it is, is not known
        if field is None:
            yield unknown_field(name, algorithm, known)
        elif not field.rule.holds(value):
            yield renamed.value(name, value) or f"config.{name} is {value!r}; accepted: {field.rule.accepted}"
    if algorithm is not None and algorithm not in ALGORITHMS:
        yield _unknown("algo.name", algorithm, ALGORITHMS.names())
    for agent, player in config.get("agents", {}).items():
        if not isinstance(player, str):
            yield f"config.agents.{agent} is {player!r}; accepted: the name of a policy, or bot:NAME"
    if "policies" not in config:
        yield "config.policies is missing; accepted: a group with a policy of every name in config.agents"
    wanted = [name for name in known if "*" not in name]
    for policy, fields_of in config.get("policies", {}).items():
        wanted += [f"policies.{policy}.{name}" for name in run_fields.POLICY]
        if "model" not in fields_of:
            yield f"config.policies.{policy}.model is missing; accepted: {{}}, or a model of its own"
        if fields_of.get("model"):
            wanted += [f"policies.{policy}.{name}" for name in known if name.startswith("model.")]
    for name in wanted:
        if name not in found:
            yield f"config.{name} is missing; accepted: {known[run_fields.field_name(name)].rule.accepted}"


def _names(config: ConfigDict) -> Iterator[str]:
    game, task = config.env.name, config.task.name
    if bool(game) == bool(task):
        yield f"config.env.name is {game!r} and task.name is {task!r}; accepted: one environment, the other name ''"
    elif game and game not in games.GAMES:
        yield _unknown("env.name", game, tuple(games.GAMES))
    elif task and task not in task_combinations.tasks():
        yield _unknown("task.name", task, task_combinations.tasks().names())
    for name, value in fields(config):
        if run_fields.field_name(name) != "model.name":
            continue
        if value.lower() not in models.names() and value.lower() not in models.ALIASES:
            few = "the name of a registered model, e.g. " + ", ".join(models.names()[:4])
            yield f"config.{name} is {value!r}; accepted: {few}{did_you_mean(value, models.names())}"


def _unknown(field: str, value: Any, names: tuple[str, ...]) -> str:
    return f"config.{field} is {value!r}; accepted: one of {', '.join(names)}{did_you_mean(str(value), names)}"


def _parameters(config: ConfigDict) -> Iterator[str]:
    group = "env" if config.env.name else "task"
    try:
        if config.env.name:
            games.make(config.env.name, **config.env.params.to_dict())
        else:
            task_combinations.make(config)
    except (TypeError, ValueError) as error:
        yield f"config.{group}.params: {error}"


def _combinations(config: ConfigDict, mode: str, begun: bool) -> Iterator[str]:
    environment = game_combinations if config.env.name else task_combinations
    left_out = () if mode in LEARNING_MODES else (*combinations.ONLY_AT_START, *environment.ONLY_LEARNING)
    left_out += combinations.ONLY_AT_START if begun else ()
    for condition in (*combinations.COMBINATIONS, *environment.COMBINATIONS, ALGORITHMS.get(config.algo.name).check):
        if condition not in left_out:
            yield from condition(config)
