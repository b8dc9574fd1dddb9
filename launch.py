"""The one entry point: reads a config, refuses what cannot work, and starts a mode.

    python launch.py --config=experiments/tic_tac_toe_selfplay.py
    python launch.py --config=experiments/hanabi_selfplay.py:smollm2 --config.optim.lr=1e-5 --workdir=runs/mine
    python launch.py --workdir=runs/mine --mode=report

A run is its folder: the same command again resumes it. Without --config, the config is the one found there.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import json
import re
import signal
import sys
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

from marl_jax.errors import ConfigError, user_errors
from marl_jax.running import console

REPOSITORY = Path(__file__).resolve().parent

MODES = {  # mode: the function that carries it out and what it is given
    "train": ("marl_jax.modes.train:train", ("config", "workdir")),
    "sft": ("marl_jax.modes.sft:main", ("config", "workdir")),
    "eval": ("marl_jax.modes.evaluate:main", ("config", "workdir")),
    "play": ("marl_jax.modes.play:main", ("config", "workdir")),
    "report": ("marl_jax.modes.report:main", ("workdir",)),
    "export": ("marl_jax.modes.export:main", ("config", "workdir")),
    "compile": ("marl_jax.modes.compile:main", ("config", "workdir", "topology")),
}
TOGETHER = ("train", "eval")  # modes that several processes carry out together; the others take one
OPEN_GROUPS = ("env.params.", "agents.", "model.shape.")  # fields that the config does not list may be set here
OVERRIDE = re.compile(r"--?(no)?config\.([^=]+)(?:=(.*))?$", re.DOTALL)


def main(argv: list[str]) -> int:
    """Carries out one command line; the status is 0, 1 (the run failed) or 2 (the command was refused)."""
    if {"--help", "-h"} & set(argv):
        sys.stdout.write(f"{__doc__}\n{define_flags(ConfigDict(), argv[:1]).get_help()}\n")
        return 0
    try:
        values, config, name = parse(argv)
        if values.mode not in MODES:
            raise ConfigError([f"--mode={values.mode}: accepted are {', '.join(MODES)}"])
        # A warm start lies beside the run that begins with it.
        own_folder = Path("runs") / (f"{name}-sft" if values.mode == "sft" else name)
        workdir = Path(values.workdir or own_folder).expanduser().absolute()
        config.name = config.name or name or workdir.name
        config.log.profile = config.log.profile or values.profile
        if values.mode == "compile":
            prepare_to_compile(values.topology)
        if values.mode != "report":
            check(config, values.mode)
        if values.compilation_cache != "off" and values.mode not in ("compile", "report"):
            keep_compiled(values.compilation_cache)
        process = start_processes(config, values.mode)
        console.set_up(workdir if values.mode in ("train", "sft") else None, verbose=values.verbose, process=process)
        start(values.mode, dict(config=config, workdir=workdir, topology=values.topology))
    except ConfigError as error:
        return complain(error, status=2)
    except user_errors() as error:
        return complain(error, status=1)
    except OSError as error:  # a full disk, a folder that is a file or may not be written
        return complain(f"{error.filename}: {error.strerror}" if error.filename else error, status=1)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        hint = "lower rollout.games or eval.games, or raise algo.minibatches or algo.grad_accum_steps"
        return complain(f"out of memory; {hint}\n{str(error).splitlines()[0][:300]}", status=1)
    return 0


def complain(error: Exception | str, status: int) -> int:
    """Writes each line of the message; answers with the status."""
    for line in str(error).splitlines():
        sys.stderr.write(f"launch.py: {line}\n")
    return status


def check(config: ConfigDict, mode: str) -> None:
    """Refuses the config, or nothing; imported late, because the list of games brings JAX along."""
    from marl_jax.config import validate

    validate.check(config, mode)


def prepare_to_compile(name: str) -> None:
    """Refuses a topology that does not exist, and sets JAX up for one that does, before it looks at its devices."""
    from marl_jax.modes.compile import topology

    topology.prepare(topology.parse(name))


def keep_compiled(folder: str) -> None:
    """Compiled programs are kept in a folder, unless the user has told JAX of another (JAX_COMPILATION_CACHE_DIR)."""
    import jax

    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", folder)


def start_processes(config: ConfigDict, mode: str) -> int:
    """The number of this process, after it has joined the others where there are several."""
    if not config.distributed.enabled or mode not in TOGETHER:
        return 0
    from marl_jax.running import processes

    return processes.join(config.distributed)


def start(mode: str, given: dict) -> None:
    """Imports the function of a mode and calls it."""
    target, arguments = MODES[mode]
    module, function = target.split(":")
    call = functools.partial(getattr(importlib.import_module(module), function), *(given[name] for name in arguments))
    if not given["config"].distributed.enabled or mode not in TOGETHER:
        return call()
    from marl_jax.running import processes

    try:
        with processes.report_lost_process():
            call()
    except processes.LostProcess as error:
        processes.leave(complain(error, status=1))


# ------------------------------------------------------------------------------------------- the command line


def define_flags(config: ConfigDict, argv: list[str]) -> flags.FlagValues:
    """The flags, not yet parsed; every field of the config is one."""
    v = flags.FlagValues()
    config_flags.DEFINE_config_dict("config", config, flag_values=v, sys_argv=argv)
    flags.DEFINE_string("workdir", None, "folder of the run (default: runs/NAME[-VARIANT])", flag_values=v)
    flags.DEFINE_string("mode", "train", f"one of {', '.join(MODES)}", flag_values=v)
    flags.DEFINE_string("topology", "", "hardware to compile for, by --mode=compile: v5e:4x4, h100:8 …", flag_values=v)
    flags.DEFINE_bool("profile", False, "write a trace of a few steps into the run's folder", flag_values=v)
    cache = str(REPOSITORY / ".cache" / "jax")
    flags.DEFINE_string("compilation_cache", cache, "folder for compiled programs, or off", flag_values=v)
    flags.DEFINE_bool("verbose", False, "log more", short_name="v", flag_values=v)
    flags.DEFINE_bool("help", False, "show this text", short_name="h", flag_values=v)
    return v


def parse(argv: list[str]) -> tuple[flags.FlagValues, ConfigDict, str]:
    """The flags, the config and the name of the experiment ("" for a run found by its folder).

    The config is loaded and the names of overrides are checked before ml_collections parses their values, because
    its own errors come as tracebacks.
    """
    place, argv = take(argv, "config")
    workdir, _ = take(argv, "workdir")
    mode, _ = take(argv, "mode")
    if place is None and workdir is None:
        raise ConfigError(["--config=experiments/NAME.py is needed, or the --workdir of a run"])
    path, _, variant = (place or "").partition(":")
    # A report is of a run that was; the other modes can begin with a config.
    hint = "" if mode == "report" else "; give --config=experiments/NAME.py"
    base = saved_config(Path(workdir).expanduser(), hint) if place is None else load_experiment(path, variant or None)
    overrides = {match[2]: match[3] for match in map(OVERRIDE.match, argv) if match}
    opened = {field: text for field, text in overrides.items() if field.startswith(OPEN_GROUPS)}
    problems = [problem for field in overrides if field not in opened for problem in unknown_field(base, field)]
    if problems:
        raise ConfigError(problems)
    argv = [arg for arg in argv if not ((match := OVERRIDE.match(arg)) and match[2] in opened)]
    values = define_flags(base, argv)
    try:
        rest = values(argv)
    except flags.UnrecognizedFlagError as error:
        known = [flag for flag in values if len(flag) > 1]
        raise ConfigError([f"--{error.flagname} is not a flag; flags are --{', --'.join(known)}"]) from error
    except (flags.Error, ValueError, TypeError) as error:
        raise ConfigError([wrong_value(base, overrides, error)]) from error
    if len(rest) > 1:
        raise ConfigError([f"{rest[1]!r} is not a flag; flags begin with --"])
    with values.config.unlocked():
        for field, text in opened.items():
            group, key = field.rsplit(".", 1)
            try:
                functools.reduce(getattr, group.split("."), values.config)[key] = literal(text)
            except (AttributeError, KeyError, TypeError) as error:
                raise ConfigError([f"--config.{field}={text}: no such field, or another type than now"]) from error
    return values, values.config, Path(path).stem + (f"-{variant}" if variant else "")


def take(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of `--flag=value`, also written as two words, and the arguments without it."""
    for i, arg in enumerate(argv):
        if match := re.match(rf"--?{flag}(?:=(.*))?$", arg):
            words = 1 if match[1] is not None else 2
            return match[1] if words == 1 else "".join(argv[i + 1 : i + 2]), argv[:i] + argv[i + words :]
    return None, argv


def load_experiment(path: str, variant: str | None) -> ConfigDict:
    """The config of an experiment file; what goes wrong in the file is told with its name."""
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


def saved_config(workdir: Path, hint: str) -> ConfigDict:
    """The config that a run wrote into its folder; `hint` says what to do where there is none."""
    path = workdir / "config.json"
    try:
        saved = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError([f"{workdir} is not the folder of a run: {path} does not exist{hint}"]) from None
    except ValueError as error:
        raise ConfigError([f"{path} is not JSON: {error}"]) from error
    if not isinstance(saved, dict) or not {"env", "model", "algo"} <= saved.keys():
        raise ConfigError([f"{workdir} is not the folder of a run: {path} is the config of something else{hint}"])
    return ConfigDict(_tuples(saved)).lock()


def _tuples(value):
    """JSON's lists as the tuples they were."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def unknown_field(config: ConfigDict, field: str) -> list[str]:
    """The problem with an override whose field the config does not have, if so."""
    from marl_jax.config.validate import did_you_mean, fields

    here = config
    for key in field.split("."):
        if not isinstance(here, ConfigDict) or key not in here:
            return [f"--config.{field}: no such field{did_you_mean(field, dict(fields(config)))}"]
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


def literal(text: str | None):
    """A number, a switch or a tuple as written in Python; anything else is a text."""
    if (text or "").lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text or "")
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    if "--mode=play" not in sys.argv:  # Ctrl-C ends at once, also while XLA compiles; training saves before it stops
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv))
