"""Config validation before anything is compiled.

Checks first each field on its own (`run_fields.FIELDS` and the fields of the algorithm), then names against their
registries, then combinations of fields (`combinations.py`, those of games or tasks, and the check of the algorithm).
`check` collects all problems so that a user can fix them at once. Each message has the field, its value and the
accepted values.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from envs.games import registry as games
from envs.tasks import TASKS
from marl_jax.algorithms import ALGORITHMS
from marl_jax.errors import ConfigError
from marl_jax.fields import OPEN, Field
from marl_jax.schema import combinations, game_combinations, renamed, run_fields, stages, task_combinations
from models import registry as models
from registries import did_you_mean, load_plugins

LEARNING_MODES = ("train", "compile")


def check(config: ConfigDict, mode: str = "train", workdir: Path | None = None) -> None:
    """Check a config; combinations are checked only if all fields and names are valid.

    Args:
        config: Config of a run.
        mode: Mode of the command. Modes that do not train skip the checks for training.
        workdir: Folder of the run. If it or its first stage has checkpoints, `model.init_from` need not exist.

    Raises:
        ConfigError: If the config is invalid, with one line per problem.
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
    """Check each field on its own.

    Raises:
        ConfigError: If fields are missing, unknown or invalid.
    """
    if problems := [*_single_fields(config)]:
        raise ConfigError(problems)


def fields(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field as (dotted name, value); an open group is one field."""
    for key, value in config.items(preserve_field_references=False):
        name = prefix + key
        known = run_fields.FIELDS.get(run_fields.field_name(name))
        if isinstance(value, ConfigDict) and not (known and known.rule is OPEN):
            yield from fields(value, name + ".")
        else:
            yield name, value


def algorithm_fields(name: Any) -> dict[str, Field]:
    """Return the fields of an algorithm by dotted name, or {} for an unknown algorithm."""
    if name not in ALGORITHMS:
        return {}
    return {f"algo.{key}": field for key, field in ALGORITHMS.get(name).fields.items()}


def unknown_field(name: str, algorithm: Any, known: dict[str, Any]) -> str:
    """Return the problem with a field that does not exist, with a suggestion."""
    if problem := renamed.field(name):
        return problem
    own = algorithm_fields(algorithm)
    hint = _meant(name, {*known, *own, *run_fields.FIELDS}) or _of_others(name)
    if name.startswith("algo.") and own and not hint:
        names = ", ".join(key.removeprefix("algo.") for key in own)
        return f"config.{name} is not a field of {algorithm}; its fields: {names}"
    return f"config.{name} is not a field{hint or _near(name, known)}"


def _meant(name: str, known: Container[str]) -> str:
    """Suggest the field or flag for a name from another library, or return ""."""
    meant = [here for here in renamed.elsewhere(name) if here in known or here.startswith("--")]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _of_others(name: str) -> str:
    """Suggest a field of another algorithm for a name from another library, or return ""."""
    for meant in renamed.elsewhere(name):
        if owners := [algorithm for algorithm in ALGORITHMS if meant in algorithm_fields(algorithm)]:
            return f"; with algo.name {' or '.join(owners)} it is {meant}"
    return ""


def _near(name: str, known: Iterable[str]) -> str:
    """Suggest fields of the same name in other groups, or the most similar field."""
    word, written = renamed.last_word(name), name.replace("-", "_")
    if same := [field for field in known if renamed.last_word(field) == word]:
        return did_you_mean(written, same, cutoff=0.75) or f"; did you mean {' or '.join(same)}?"
    return did_you_mean(written, known, cutoff=0.7) or "; --help lists all fields"


def _single_fields(config: ConfigDict) -> Iterator[str]:
    algorithm = config.get("algo", {}).get("name")
    known = {**run_fields.FIELDS, **algorithm_fields(algorithm)}
    present = dict(fields(config))
    for name, value in present.items():
        field = known.get(run_fields.field_name(name))
        if field is None and name.startswith("algo.") and algorithm not in ALGORITHMS and not renamed.field(name):
            continue  # the algorithm is unknown, and so are its fields
        if field is None:
            yield unknown_field(name, algorithm, known)
        elif not field.rule.holds(value):
            yield renamed.value(name, value) or f"config.{name} is {value!r}, but must be {field.rule.accepted}"
    if algorithm is not None and algorithm not in ALGORITHMS:
        yield renamed.unknown_algorithm(algorithm)
    for agent, player in config.get("agents", {}).items():
        if not isinstance(player, str):
            yield f"config.agents.{agent} is {player!r}, but must be the name of a policy or bot:NAME"
    if "policies" not in config:
        yield "config.policies is missing, but must have every policy in config.agents"
    wanted = [name for name in known if "*" not in name]
    for policy, fields_of in config.get("policies", {}).items():
        wanted += [f"policies.{policy}.{name}" for name in run_fields.POLICY]
        if "model" not in fields_of:
            yield f"config.policies.{policy}.model is missing, but must be {{}} or the config of a model"
        if fields_of.get("model"):
            wanted += [f"policies.{policy}.{name}" for name in known if name.startswith("model.")]
    for name in wanted:
        if name not in present:
            yield f"config.{name} is missing, but must be {known[run_fields.field_name(name)].rule.accepted}"


def _names(config: ConfigDict) -> Iterator[str]:
    game, task = config.env.name, config.task.name
    if bool(game) == bool(task):
        yield f"config.env.name is {game!r} and task.name is {task!r}, but exactly one of them must be set"
    elif game and game not in games.GAMES:
        yield _unknown("env.name", game, tuple(games.GAMES))
    elif task and task not in TASKS:
        yield _unknown("task.name", task, TASKS.names())
    for name, value in fields(config):
        if run_fields.field_name(name) != "model.name":
            continue
        if value.lower() not in models.names() and value.lower() not in models.ALIASES:
            few = "the name of a registered model, e.g. " + ", ".join(models.names()[:4])
            yield f"config.{name} is {value!r}, but must be {few}{did_you_mean(value, models.names())}"


def _unknown(field: str, value: Any, names: tuple[str, ...]) -> str:
    return f"config.{field} is {value!r}, but must be one of: {', '.join(names)}{did_you_mean(str(value), names)}"


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
