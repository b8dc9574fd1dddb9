"""Command line: parse and validate a config, then start a mode.

    marl-jax --config=tic_tac_toe_selfplay                                  # an experiment of the package, by name
    marl-jax --config=hanabi_selfplay:smollm2 --config.optim.lr=1e-5 --workdir=runs/mine
    marl-jax --config=my_experiment.py                                      # a file
    marl-jax --config=tic_tac_toe_selfplay --seeds=0,1,2 --sweep.optim.lr=2e-3,5e-4     # six runs in one process
    marl-jax --workdir=runs/mine --mode=report
    marl-jax --config=plan_path --mode=config                               # print all fields

In a clone, `python launch.py` is the same command. Each run has a folder, and running the same command again resumes
the run. Without --config, the config is read from --workdir.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from marl_jax.errors import ConfigError, LostProcess, user_errors
from marl_jax.running import console
from marl_jax.schema import flags, stages, sweeps

log = logging.getLogger(__name__)

MODES = {  # mode: function and its arguments
    "train": ("marl_jax.modes.train:train", ("config", "workdir")),
    "eval": ("marl_jax.modes.evaluate:main", ("config", "workdir")),
    "play": ("marl_jax.modes.play:main", ("config", "workdir")),
    "report": ("marl_jax.modes.report:main", ("workdir",)),
    "rank": ("marl_jax.modes.rank:main", ("workdir",)),
    "serve": ("marl_jax.modes.serve:main", ("config", "workdir")),
    "search": ("marl_jax.modes.search:main", ("config", "workdir")),
    "label": ("marl_jax.modes.label:main", ("config", "workdir")),
    "serve_reward": ("marl_jax.modes.serve_reward:main", ("config", "workdir")),
    "export": ("marl_jax.modes.export:main", ("config", "workdir")),
    "compile": ("marl_jax.modes.compile:main", ("config", "workdir", "topology")),
    "config": ("marl_jax.modes.config:main", ("config",)),
}
POPULATION = ("marl_jax.modes.population:main", ("config", "workdir"))  # --mode=train with config.population
SWEEP = ("marl_jax.modes.sweep:main", ("members", "workdir"))  # --mode=train with --seeds or --sweep
TRAINED = ("eval", "play", "export", "search")
"""Modes that load a trained run, whose models may start from a first stage."""
TOGETHER = ("train", "eval")  # modes that may run with several processes


def run() -> int:
    """Run the command line of this process and return its exit status."""
    if "--mode=play" not in sys.argv:
        # Ctrl-C stops at once, even while XLA compiles; training installs a handler that saves first.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for package in ("configs", "envs", "models"):
        importlib.import_module(package)  # before a folder of the same name in the current one can replace it
    sys.path.append(os.getcwd())  # plugins may be in the current folder
    return main(sys.argv)


def main(argv: list[str]) -> int:
    """Run a command line and return its exit status.

    Returns:
        0, 1 if the run failed, or 2 if the command is invalid.
    """
    complain = functools.partial(report_error, Path(argv[0]).name)
    if {"--help", "-h"} & set(argv):
        sys.stdout.write(f"{__doc__}\n{flags.help_text(tuple(MODES))}\n")
        return 0
    try:
        check_mode(argv)
        command = flags.parse(argv, tuple(MODES))
        values, config = command.values, command.config
        name = command.name + ("-sweep" if command.grid and command.name else "")
        workdir = Path(values.workdir or Path("runs") / name).expanduser().absolute()
        config.name = config.name or name or workdir.name
        config.log.profile = config.log.profile or values.profile
        if values.mode == "compile":
            prepare_to_compile(values.topology)
        console.set_up(None, verbose=values.verbose)  # checks that generate levels log their progress
        members = prepare_sweep(command, argv, workdir) if command.grid else []
        config = prepare(config, values.mode, workdir, values.compilation_cache)
        process = start_processes(config, values.mode)
        console.set_up(workdir if values.mode == "train" else None, verbose=values.verbose, process=process)
        for warning in command.warnings:
            log.warning("%s", warning)
        given = dict(config=config, workdir=workdir, topology=values.topology, members=members)
        start("sweep" if members else values.mode, given)
    except ConfigError as error:
        return complain(error, status=2)
    except LostProcess as error:
        from marl_jax.running import processes

        processes.leave(complain(error, status=1))
    except user_errors() as error:
        return complain(error, status=1)
    except OSError as error:  # such as a full disk or missing write permission
        return complain(f"{error.filename}: {error.strerror}" if error.filename else error, status=1)
    except KeyboardInterrupt:
        console.note(logging.ERROR, "the run ended: Ctrl-C")
        return 130
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and not isinstance(error, MemoryError):
            console.note(logging.ERROR, "the run ended: %s", "".join(traceback.format_exception(error)))
            raise
        hint = (
            "lower rollout.num_envs, eval.games, task.max_num_seqs or sampling.memory_frac, raise "
            "algo.grad_accum_steps, or set model.remat to full"
        )
        reason = (str(error) or "the host has no memory left").splitlines()[0][:300]
        return complain(f"out of memory; {hint}\n{reason}", status=1)
    return 0


def report_error(program: str, error: Exception | str, status: int) -> int:
    """Print each line of an error, log it, and return the exit status."""
    for line in str(error).splitlines():
        sys.stderr.write(f"{program}: {line}\n")
        console.note(logging.ERROR, "the run ended: %s", line)
    return status


def check_mode(argv: list[str]) -> None:
    """Check that the mode exists."""
    mode = flags.take(argv, "mode")[0]
    if mode is not None and mode not in MODES:
        raise ConfigError([flags.wrong_mode(mode, tuple(MODES))])


def prepare(config: ConfigDict, mode: str, workdir: Path, cache: str) -> ConfigDict:
    """Check a config, enable the compilation cache and return the config for a mode.

    Args:
        config: Config of the run.
        mode: A name of `MODES`.
        workdir: Folder of the run.
        cache: Folder of the compilation cache, or "off".
    """
    if mode not in flags.OVER_RUNS:
        from marl_jax.schema import validate  # imported here because the registry of games imports JAX

        validate.check(config, mode, workdir)
    if cache != "off" and mode not in ("compile", "report", "config"):
        keep_compiled(cache)
    return stages.started(config, workdir) if mode in TRAINED else config


def prepare_sweep(command: flags.Command, argv: list[str], workdir: Path) -> list[sweeps.Member]:
    """Return the members of a sweep, each with a checked config."""
    from marl_jax.schema import validate  # imported here because the registry of games imports JAX

    base, mode, given = command.config, command.values.mode, sweeps.take(argv)[1]

    def parse(overrides: list[str]) -> ConfigDict:
        config = flags.parse([*given, *overrides], tuple(MODES)).config
        config.name, config.log.profile = base.name, base.log.profile
        return config

    sweeps.check_mode(mode, base)
    members = sweeps.members(command.grid, parse)
    for member in members:
        validate.check(member.config, mode, workdir / member.name)
    return members


def prepare_to_compile(name: str) -> None:
    """Check the topology and configure JAX for it, before JAX initializes its devices."""
    from marl_jax.dryrun import topology

    topology.prepare(topology.parse(name))


def keep_compiled(folder: str) -> None:
    """Enable JAX's compilation cache, unless JAX_COMPILATION_CACHE_DIR already does."""
    import jax

    if not jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]  # options are dynamic
        jax.config.update("jax_compilation_cache_dir", folder)
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            # The default is one second, but half of the programs of a run compile faster than that.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


def start_processes(config: ConfigDict, mode: str) -> int:
    """Join the other processes, if any, and return the index of this one."""
    if not config.distributed.enabled or mode not in TOGETHER:
        return 0
    from marl_jax.running import processes

    return processes.join(config.distributed)


def start(mode: str, given: dict, **more: Any) -> Any:
    """Import the function of a mode, call it and return its result.

    Args:
        mode: A name of `MODES`, or "sweep".
        given: Values for the arguments of the mode.
        **more: Further arguments of its function.
    """
    target, arguments = SWEEP if mode == "sweep" else MODES[mode]
    if mode == "train" and given["config"].population.method:
        target, arguments = POPULATION
    module, function = target.split(":")
    function = getattr(importlib.import_module(module), function)
    call = functools.partial(function, *(given[name] for name in arguments), **more)
    if not given["config"].distributed.enabled or mode not in TOGETHER:
        return call()
    from marl_jax.running import processes

    with processes.report_lost_process():
        processes.check_same(given["config"])
        return call()
