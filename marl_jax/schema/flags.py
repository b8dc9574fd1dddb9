"""Command-line flags: config files and overrides.

    --config=experiments/NAME.py[:VARIANT]   experiment; defaults to the config in --workdir
    --config=NAME[:VARIANT]                  experiment of the package, from any folder
    --config.FIELD=VALUE                     override of one field
    --config.plugins=MODULE[,MODULE]         modules to import before names are looked up
    --config.algo.name=NAME                  another algorithm; its defaults apply before other overrides
    --seeds=0,1,2 --sweep.FIELD=VALUE,VALUE  several runs in one command (`sweeps.py`)

Field names are checked before ml_collections parses the values, because its errors are tracebacks.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from marl_jax import fields
from marl_jax.algorithms import ALGORITHMS
from marl_jax.errors import ConfigError
from marl_jax.schema import adjustments, renamed, run_fields, saved, sweeps
from models.user_cache import user_cache
from registries import describe_failure, did_you_mean, load_plugins

REPOSITORY = Path(__file__).resolve().parents[2]
EXPERIMENTS = REPOSITORY / "experiments"
OVER_RUNS = ("report", "rank")  # modes of existing runs, one or several
ALONE = ("serve",)
"""Modes that need neither --config nor --workdir."""
OVERRIDE = re.compile(r"--?(no)?config\.([^=]*)(?:=(.*))?$", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Command:
    """A parsed command line.

    Attributes:
        values: Parsed flags.
        config: Config of the run with all overrides.
        name: Name of the experiment, or "" if the config comes from --workdir.
        warnings: Warnings to log about fields that were changed automatically.
        grid: Values of every swept field, as texts; empty for a single run.
    """

    values: flags.FlagValues
    config: ConfigDict
    name: str
    warnings: tuple[str, ...] = ()
    grid: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def define(config: ConfigDict, argv: list[str], modes: Sequence[str]) -> flags.FlagValues:
    """Define the flags, including one for every config field, without parsing them."""
    v = flags.FlagValues()
    config_flags.DEFINE_config_dict("config", config, flag_values=v, sys_argv=argv)
    flags.DEFINE_string("workdir", None, "Folder of the run (default: runs/NAME[-VARIANT])", flag_values=v)
    flags.DEFINE_string("mode", "train", f"One of {', '.join(modes)}", flag_values=v)
    flags.DEFINE_string("seeds", "", "Seeds of several runs, such as 0,1,2; see also --sweep.FIELD", flag_values=v)
    flags.DEFINE_string("topology", "", "Target hardware of --mode=compile, such as v5e:4x4 or h100:8", flag_values=v)
    flags.DEFINE_bool("profile", False, "Write a profiler trace of a few steps to the run folder", flag_values=v)
    flags.DEFINE_string(
        "compilation_cache", str(user_cache("jax")), "Folder of the compilation cache, or off", flag_values=v
    )
    flags.DEFINE_bool("verbose", False, "Verbose logging", short_name="v", flag_values=v)
    flags.DEFINE_bool("help", False, "Show this help", short_name="h", flag_values=v)
    return v


def help_text(modes: Sequence[str]) -> str:
    """Return the help text: flags, config fields and algorithm fields with their defaults."""
    groups = {"Config fields, --config.FIELD=VALUE": run_fields.FIELDS}
    for name in ALGORITHMS:
        own = ALGORITHMS.get(name).fields
        groups[f"Config fields of the algorithm {name}"] = {f"algo.{key}": field for key, field in own.items()}
    lines = [define(ConfigDict(), ["launch.py"], modes).get_help()]
    for title, members in groups.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name} ({field.default!r}): {field.help}" for name, field in members.items()]
    return "\n".join(lines)


def parse(argv: list[str], modes: Sequence[str]) -> Command:
    """Parse a command line.

    Raises:
        ConfigError: If a flag, field or value is invalid.
    """
    grid, argv = sweeps.take(argv)
    place, argv = take(argv, "config")
    workdir, _ = take(argv, "workdir")
    if workdir is not None and (not workdir or workdir.startswith("--")):
        raise ConfigError([f"--workdir is {workdir!r}, but must be a folder"])
    for flag, value in (("workdir", workdir), ("config", place)):
        if value and any(part.startswith("~") and os.path.expanduser(part) == part for part in value.split(",")):
            raise ConfigError([f"--{flag} is {value!r}, but there is no such user"])
    mode, _ = take(argv, "mode")
    alone = mode in ALONE and place is None and not (workdir and Path(workdir, "config.json").expanduser().exists())
    if place is None and workdir is None and not alone:
        words = [wrong_word(arg, modes) for arg in argv[1:] if not arg.startswith("-")]
        raise ConfigError(words or ["--config=experiments/NAME.py or the --workdir of an existing run is required"])
    path, _, variant = (place or "").partition(":")
    if alone or place is None and mode in OVER_RUNS and saved.runs_in(workdir or ""):
        base = default_config()  # a comparison reads the configs of its runs
    elif place is None:
        assert workdir is not None
        # A report needs an existing run; the other modes can start from a config.
        hint = "" if mode in OVER_RUNS else "; pass --config=experiments/NAME.py"
        base = saved.read(Path(workdir).expanduser(), hint)
    else:
        base = load_experiment(path, variant or None)

    argv = import_plugins(base, argv)
    if place is None and mode not in OVER_RUNS:  # the file may have been edited; an experiment is checked later
        from marl_jax.schema import validate  # imported here because the registries import JAX

        validate.check_fields(base)
    overrides = {match[2]: match[3] for match in map(OVERRIDE.match, argv) if match}
    if alone and not {"serve.models", "serve.runs"} & overrides.keys():
        sources = "--config.serve.models, --config.serve.runs, --config=experiments/NAME.py"
        raise ConfigError([f"{sources} or the --workdir of an existing run is required"])
    if overrides.get("algo.name"):
        with base.unlocked():
            base.algo = switch_algorithm(base.algo, overrides["algo.name"])
    opened = {field: text for field, text in overrides.items() if field.startswith(run_fields.OPEN_GROUPS)}
    problems = [problem for field in overrides if field not in opened for problem in wrong_field(base, field)]
    if problems:
        raise ConfigError(problems)

    opponents = base.eval.opponents
    argv = [arg for arg in argv if not ((match := OVERRIDE.match(arg)) and match[2] in opened)]
    values = define(base, argv, modes)
    try:
        rest = values(argv)
    except flags.UnrecognizedFlagError as error:
        raise ConfigError([wrong_flag(base, error.flagname, [flag for flag in values if len(flag) > 1])]) from error
    except (flags.Error, ValueError, TypeError) as error:
        raise ConfigError([wrong_value(base, overrides, error)]) from error
    if len(rest) > 1:
        raise ConfigError([wrong_word(rest[1], modes)])
    set_open_fields(values.config, opened)
    warnings = adjustments.adjust(values.config, overrides, opponents)
    name = mode or "" if alone else Path(path).stem + (f"-{variant}" if variant else "")
    return Command(values, values.config, name, warnings, grid)


def default_config() -> ConfigDict:
    """Return a config with every default, for modes that need no run."""
    config = run_fields.defaults()
    config.algo = ConfigDict({"name": config.algo.name, **fields.defaults(ALGORITHMS.get(config.algo.name).fields)})
    return config


def take(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Return the value of `--flag=value` or `--flag value`, and the remaining arguments."""
    for i, arg in enumerate(argv):
        if match := re.match(rf"--?{re.escape(flag)}(?:=(.*))?$", arg):
            words = 1 if match[1] is not None else 2
            return match[1] if words == 1 else "".join(argv[i + 1 : i + 2]), argv[:i] + argv[i + words :]
    return None, argv


def load_experiment(path: str, variant: str | None) -> ConfigDict:
    """Load the config of an experiment.

    Args:
        path: A Python file, or the name of an experiment of the package.
        variant: Argument of its `get_config`.

    Raises:
        ConfigError: If there is no such experiment, or its `get_config` fails.
    """
    known = {file.stem: file for file in sorted(EXPERIMENTS.glob("[!_]*.py"))}
    file = known.get(path, Path(path).expanduser())
    if not file.is_file() or file.suffix != ".py":
        hint = did_you_mean(Path(path).stem, known)
        raise ConfigError([f"--config={path}: no such Python file; experiments: {', '.join(known)}{hint}"])
    spec = importlib.util.spec_from_file_location("experiment", file)
    assert spec is not None and spec.loader is not None  # the file exists and is a Python file
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*([variant] if variant else []))
    except (Exception, SystemExit) as error:
        problem = str(error) if isinstance(error, ValueError) and str(error) else describe_failure(error, path)
        raise ConfigError([f"--config={path}{f':{variant}' if variant else ''}: {problem}"]) from error
    if not isinstance(config, ConfigDict):
        kind = type(config).__name__
        raise ConfigError([f"--config={path}: get_config returned {kind}, but must return ml_collections.ConfigDict"])
    groups = [name for name, group in default_config().items() if isinstance(group, ConfigDict)]
    missing = [name for name in groups if not isinstance(config.get(name), ConfigDict)]
    if missing or "name" not in config.algo:
        parts = ", ".join(missing or ["algo.name"])
        raise ConfigError([f"--config={path}: the config lacks {parts}; start from `configs.defaults.get_config`"])
    return config


# --------------------------------------------------------------------------------------- plugins and algorithms


def import_plugins(config: ConfigDict, argv: list[str]) -> list[str]:
    """Import the plugins of the config or `--config.plugins`, and return the other arguments."""
    text, argv = take(argv, "config.plugins")
    if text is not None:
        names = literal(text)
        names = names.split(",") if isinstance(names, str) else names
        if not isinstance(names, tuple | list):
            raise ConfigError([f"config.plugins is {names!r}, but must be module names separated by commas"])
        config.plugins = tuple(str(name).strip() for name in names if str(name).strip())
    try:
        load_plugins(config.get("plugins", ()))
    except ValueError as error:
        raise ConfigError([f"config.plugins: {error}"]) from error
    return argv


def switch_algorithm(algo: ConfigDict, name: str) -> ConfigDict:
    """Return the fields of another algorithm, keeping changed values of fields that both have."""
    if name not in ALGORITHMS:
        raise ConfigError([renamed.unknown_algorithm(name)])
    try:
        new = ALGORITHMS.get(name).fields
    except ValueError as error:
        raise ConfigError([f"config.algo.name: {error}"]) from error
    old = ALGORITHMS.get(algo.name).fields if algo.name in ALGORITHMS else {}
    changed = {key: algo[key] for key in old if key in algo and algo[key] != old[key].default}
    kept = {key: value for key, value in changed.items() if key in new and new[key].rule.holds(value)}
    return algo if name == algo.name else ConfigDict({"name": name, **fields.defaults(new), **kept})


# --------------------------------------------------------------------------------------------- fields and values


def wrong_mode(mode: str, modes: Sequence[str]) -> str:
    """Return the problem with a mode that does not exist, with a suggestion."""
    hint = f"; did you mean {renamed.MODES[mode]}?" if mode in renamed.MODES else did_you_mean(mode, modes)
    return f"--mode is {mode}, but must be one of: {', '.join(modes)}{hint}"


def wrong_flag(config: ConfigDict, flag: str, flags: Sequence[str]) -> str:
    """Return the problem with a flag that does not exist, with a suggestion."""
    from marl_jax.schema import validate  # imported here because the registries import JAX

    fields = [name for name, _ in validate.fields(config)]
    meant = [flag] if flag in fields else [name for name in renamed.elsewhere(flag) if name in fields or name[0] == "-"]
    meant = meant or [name for name in fields if renamed.last_word(name) == renamed.last_word(flag)]
    names = " or ".join(name if name[0] == "-" else f"--config.{name}" for name in meant)
    hint = f"; did you mean {names}?" if names else did_you_mean(f"--{flag}", [f"--{name}" for name in flags])
    return f"--{flag} is not a flag; flags: --{', --'.join(flags)}, and --config.FIELD for every field{hint}"


def wrong_word(word: str, modes: Sequence[str]) -> str:
    """Return the problem with an argument without a dash, with a suggestion."""
    meant = f"--config.{word.removeprefix('config.')}" if "=" in word else f"--config={word}"
    meant = f"--mode={word}" if word in modes else meant
    return f"{word!r} is not a flag; flags start with --; did you mean {meant}?"


def wrong_field(config: ConfigDict, field: str) -> list[str]:
    """Return the problem with the field name of an override, if any."""
    here = config
    for key in field.split("."):
        if not isinstance(here, ConfigDict) or key not in here:
            from marl_jax.schema import validate  # imported here because the registries import JAX

            return [f"--{validate.unknown_field(field, config.algo.name, dict(validate.fields(config)))}"]
        here = here[key]
    if isinstance(here, ConfigDict):
        return [f"--config.{field} is a group of fields: {', '.join(f'{field}.{key}' for key in here)}"]
    return []


def wrong_value(config: ConfigDict, overrides: dict, error: Exception) -> str:
    """Return the message for a value that could not be parsed."""
    types = {int: "an integer", float: "a number", bool: "true or false", tuple: "a tuple, e.g. ('a','b')"}
    match = re.match(r"flag --config\.([^=]+)=", str(error))
    if match is None or match[1] not in overrides:
        return " ".join(str(error).split())
    now = functools.reduce(getattr, match[1].split("."), config)
    accepted = types.get(type(now), type(now).__name__)
    return f"--config.{match[1]}={overrides[match[1]]}: the value must be {accepted}, such as {now!r}"


def set_open_fields(config: ConfigDict, texts: dict[str, str | None]) -> None:
    """Set fields of open groups, which may be new."""
    with config.unlocked():
        for field, text in texts.items():
            *groups, key = field.split(".")
            try:
                here = config
                for name in groups:
                    if name not in here and groups[0] == "first_stage":  # it has only the groups that it changes
                        here[name] = ConfigDict()
                    here = here[name]
                here[key] = literal(text)
            except (AttributeError, KeyError, OverflowError, TypeError) as error:
                raise ConfigError(
                    [f"--config.{field}={text}: there is no such field, or it has another type"]
                ) from error


def literal(text: str | None) -> Any:
    """Parse a Python literal or boolean; return anything else as a string."""
    if text is not None and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text or "")
    except (ValueError, SyntaxError):
        return text
