"""The command line: where the config comes from, and what changes it.

    --config=experiments/NAME.py[:VARIANT]   an experiment; without it, the config in the folder of --workdir
    --config.FIELD=VALUE                     one field of it
    --config.plugins=MODULE[,MODULE]         modules imported before anything else is looked up
    --config.algo.name=NAME                  another algorithm, whose defaults are filled in before other fields

Names of fields are checked before ml_collections parses the values, because its own errors come as tracebacks.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from marl_jax import fields
from marl_jax.algorithms import ALGORITHMS
from marl_jax.errors import ConfigError
from marl_jax.schema import run_fields, saved
from registries import load_plugins

REPOSITORY = Path(__file__).resolve().parents[2]
ALONE = ("serve",)
"""Modes that need neither an experiment nor a run."""
OVERRIDE = re.compile(r"--?(no)?config\.([^=]*)(?:=(.*))?$", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line that was read.

    values    the flags
    config    of the run, with all overrides
    name      of the experiment, "" for a run found by its folder
    warnings  what was changed besides, to be logged
    """

    values: flags.FlagValues
    config: ConfigDict
    name: str
    warnings: tuple[str, ...] = ()


def define(config: ConfigDict, argv: list[str], modes: Sequence[str]) -> flags.FlagValues:
    """The flags, not yet parsed; every field of the config is one."""
    v = flags.FlagValues()
    config_flags.DEFINE_config_dict("config", config, flag_values=v, sys_argv=argv)
    flags.DEFINE_string("workdir", None, "folder of the run (default: runs/NAME[-VARIANT])", flag_values=v)
    flags.DEFINE_string("mode", "train", f"one of {', '.join(modes)}", flag_values=v)
    flags.DEFINE_string("topology", "", "hardware to compile for, by --mode=compile: v5e:4x4, h100:8 …", flag_values=v)
    flags.DEFINE_bool("profile", False, "write a trace of a few steps into the run's folder", flag_values=v)
    cache = str(REPOSITORY / ".cache" / "jax")
    flags.DEFINE_string("compilation_cache", cache, "folder for compiled programs, or off", flag_values=v)
    flags.DEFINE_bool("verbose", False, "log more", short_name="v", flag_values=v)
    flags.DEFINE_bool("help", False, "show this text", short_name="h", flag_values=v)
    return v


def help_text(modes: Sequence[str]) -> str:
    """The flags, every field of a run and the fields of every algorithm, each with its default."""
    groups = {"Fields of a run, --config.FIELD=VALUE": run_fields.FIELDS}
    for name in ALGORITHMS:
        own = ALGORITHMS.get(name).fields
        groups[f"Fields of the algorithm {name}"] = {f"algo.{key}": field for key, field in own.items()}
    lines = [define(ConfigDict(), ["launch.py"], modes).get_help()]
    for title, members in groups.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name} ({field.default!r}): {field.help}" for name, field in members.items()]
    return "\n".join(lines)


def parse(argv: list[str], modes: Sequence[str]) -> Command:
    """Reads a command line; a `ConfigError` has what is wrong with it."""
    place, argv = take(argv, "config")
    workdir, _ = take(argv, "workdir")
    mode, _ = take(argv, "mode")
    alone = mode in ALONE and place is None and not (workdir and Path(workdir, "config.json").expanduser().exists())
    if place is None and workdir is None and not alone:
        raise ConfigError(["--config=experiments/NAME.py is needed, or the --workdir of a run"])
    path, _, variant = (place or "").partition(":")
    # A report is of a run that was; the other modes can begin with a config.
    hint = "" if mode == "report" else "; give --config=experiments/NAME.py"
    if alone:
        base = default_config()
    elif place is None:
        base = saved.read(Path(workdir).expanduser(), hint)
    else:
        base = load_experiment(path, variant or None)

    argv = import_plugins(base, argv)
    if place is None and mode != "report":  # a file that was edited or damaged; an experiment is checked with the rest
        from marl_jax.schema import validate  # late: it needs the registries, and these need JAX

        validate.check_fields(base)
    overrides = {match[2]: match[3] for match in map(OVERRIDE.match, argv) if match}
    if alone and not {"serve.models", "serve.runs"} & overrides.keys():
        needed = "--config.serve.models or --config.serve.runs is needed"
        raise ConfigError([f"{needed}, or the --workdir of a run, or --config=experiments/NAME.py"])
    if overrides.get("algo.name"):
        with base.unlocked():
            base.algo = switch_algorithm(base.algo, overrides["algo.name"])
    opened = {field: text for field, text in overrides.items() if field.startswith(run_fields.OPEN_GROUPS)}
    problems = [problem for field in overrides if field not in opened for problem in wrong_field(base, field)]
    if problems:
        raise ConfigError(problems)

    opponents = base.eval.opponents if "eval.opponents" in overrides else None
    argv = [arg for arg in argv if not ((match := OVERRIDE.match(arg)) and match[2] in opened)]
    values = define(base, argv, modes)
    try:
        rest = values(argv)
    except flags.UnrecognizedFlagError as error:
        known = [flag for flag in values if len(flag) > 1]
        raise ConfigError([f"--{error.flagname} is not a flag; flags are --{', --'.join(known)}"]) from error
    except (flags.Error, ValueError, TypeError) as error:
        raise ConfigError([wrong_value(base, overrides, error)]) from error
    if len(rest) > 1:
        raise ConfigError([f"{rest[1]!r} is not a flag; flags begin with --"])
    set_open_fields(values.config, opened)
    follows = opponents is not None and "checkpoint.best_metric" not in overrides
    warnings = follow_opponents(values.config, opponents) if follows else ()
    name = mode if alone else Path(path).stem + (f"-{variant}" if variant else "")
    return Command(values, values.config, name, warnings)


def default_config() -> ConfigDict:
    """A run with every default, for modes that are not about one."""
    config = run_fields.defaults()
    config.algo = ConfigDict({"name": config.algo.name, **fields.defaults(ALGORITHMS.get(config.algo.name).fields)})
    return config


def take(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of `--flag=value`, also written as two words, and the arguments without it."""
    for i, arg in enumerate(argv):
        if match := re.match(rf"--?{re.escape(flag)}(?:=(.*))?$", arg):
            words = 1 if match[1] is not None else 2
            return match[1] if words == 1 else "".join(argv[i + 1 : i + 2]), argv[:i] + argv[i + words :]
    return None, argv


def load_experiment(path: str, variant: str | None) -> ConfigDict:
    """The config of an experiment file; what goes wrong in the file is reported with its name."""
    if not Path(path).is_file() or Path(path).suffix != ".py":
        known = sorted(file.name for file in (REPOSITORY / "experiments").glob("[!_]*.py"))
        raise ConfigError([f"--config={path}: no such file of Python; experiments here: {', '.join(known)}"])
    spec = importlib.util.spec_from_file_location("experiment", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*([variant] if variant else []))
    except (ValueError, TypeError, AttributeError, KeyError, ImportError, SyntaxError) as error:
        raise ConfigError([f"--config={path}{f':{variant}' if variant else ''}: {error}"]) from error
    if not isinstance(config, ConfigDict):
        kind = type(config).__name__
        raise ConfigError([f"--config={path}: get_config returned {kind}; expected ml_collections.ConfigDict"])
    return config


# --------------------------------------------------------------------------------------- plugins and algorithms


def import_plugins(config: ConfigDict, argv: list[str]) -> list[str]:
    """Imports the plugins of the config or of `--config.plugins`, which is left out of the arguments returned."""
    text, argv = take(argv, "config.plugins")
    if text is not None:
        found = literal(text)
        found = found.split(",") if isinstance(found, str) else found
        if not isinstance(found, tuple | list):
            raise ConfigError([f"config.plugins is {found!r}; accepted: names of modules, with commas between"])
        config.plugins = tuple(str(name).strip() for name in found if str(name).strip())
    try:
        load_plugins(config.get("plugins", ()))
    except ValueError as error:
        raise ConfigError([f"config.plugins: {error}"]) from error
    return argv


def switch_algorithm(algo: ConfigDict, name: str) -> ConfigDict:
    """The fields of another algorithm with their defaults; what was changed here stays where both have the field."""
    try:
        new = ALGORITHMS.get(name).fields
    except ValueError as error:
        raise ConfigError([f"config.algo.name: {error}"]) from error
    old = ALGORITHMS.get(algo.name).fields if algo.name in ALGORITHMS else {}
    changed = {key: algo[key] for key in old if key in algo and algo[key] != old[key].default}
    kept = {key: value for key, value in changed.items() if key in new and new[key].rule.holds(value)}
    return algo if name == algo.name else ConfigDict({"name": name, **fields.defaults(new), **kept})


def follow_opponents(config: ConfigDict, before: Sequence[str]) -> tuple[str, ...]:
    """Lets `checkpoint.best_metric` follow when an override of `eval.opponents` leaves out the opponent it names.

    The same metric of the first opponent takes its place, or none where there is no opponent. Says so in a warning.
    """
    metric = config.checkpoint.best_metric
    if not fields.TEXTS.holds(config.eval.opponents):
        return ()  # refused with the other fields
    opponent, _, figure = metric.partition("/")
    names = [Path(name).name for name in config.eval.opponents]
    if opponent in names or opponent not in [Path(name).name for name in before]:
        return ()
    config.checkpoint.best_metric = f"{names[0]}/{figure}" if names else ""
    chosen = f"now {config.checkpoint.best_metric!r}" if names else "now '', which keeps the newest checkpoints only"
    return (f"checkpoint.best_metric was {metric!r}, and eval.opponents has no {opponent!r} any more: it is {chosen}",)


# --------------------------------------------------------------------------------------------- fields and values


def wrong_field(config: ConfigDict, field: str) -> list[str]:
    """The problem with an override whose field the config does not have, if so."""
    here = config
    for key in field.split("."):
        if not isinstance(here, ConfigDict) or key not in here:
            from marl_jax.schema import validate  # late, as above

            return [f"--{validate.unknown_field(field, config.algo.name, dict(validate.fields(config)))}"]
        here = here[key]
    if isinstance(here, ConfigDict):
        return [f"--config.{field} is a group of fields: {', '.join(f'{field}.{key}' for key in here)}"]
    return []


def wrong_value(config: ConfigDict, overrides: dict, error: Exception) -> str:
    """One line about a value that could not be parsed: the field, the value, the type that is accepted."""
    words = {int: "a whole number", float: "a number", bool: "true or false", tuple: "a tuple, e.g. ('a','b')"}
    match = re.match(r"flag --config\.([^=]+)=", str(error))
    if match is None or match[1] not in overrides:
        return " ".join(str(error).split())
    now = functools.reduce(getattr, match[1].split("."), config)
    accepted = words.get(type(now), type(now).__name__)
    return f"--config.{match[1]}={overrides[match[1]]}: accepted is {accepted} (now {now!r})"


def set_open_fields(config: ConfigDict, texts: dict[str, str | None]) -> None:
    """Sets fields of open groups, which the config need not list."""
    with config.unlocked():
        for field, text in texts.items():
            *groups, key = field.split(".")
            try:
                here = config
                for name in groups:
                    if name not in here and groups[0] == "first_stage":  # which has the groups that it changes
                        here[name] = ConfigDict()
                    here = here[name]
                here[key] = literal(text)
            except (AttributeError, KeyError, OverflowError, TypeError) as error:
                raise ConfigError([f"--config.{field}={text}: no such field, or another type than now"]) from error


def literal(text: str | None) -> Any:
    """A number, a switch or a tuple as written in Python; anything else is a text."""
    if (text or "").lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text or "")
    except (ValueError, SyntaxError):
        return text
