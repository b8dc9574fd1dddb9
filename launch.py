"""Command-line entry point: parse and validate a config, then start a mode.

    python launch.py --config=experiments/tic_tac_toe_selfplay.py
    python launch.py --config=experiments/hanabi_selfplay.py:smollm2 --config.optim.lr=1e-5 --workdir=runs/mine
    python launch.py --workdir=runs/mine --mode=report
    python launch.py --config=experiments/plan_path.py --mode=config        # print all fields

Each run has a folder, and running the same command again resumes the run. Without --config, the config is read from
--workdir.
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

from ml_collections import ConfigDict

from marl_jax.errors import ConfigError, user_errors
from marl_jax.running import console
from marl_jax.schema import flags, stages

log = logging.getLogger(__name__)

MODES = {  # mode: function and its arguments
    "train": ("marl_jax.modes.train:train", ("config", "workdir")),
    "eval": ("marl_jax.modes.evaluate:main", ("config", "workdir")),
    "play": ("marl_jax.modes.play:main", ("config", "workdir")),
    "report": ("marl_jax.modes.report:main", ("workdir",)),
    "serve": ("marl_jax.modes.serve:main", ("config", "workdir")),
    "label": ("marl_jax.modes.label:main", ("config", "workdir")),
    "serve_reward": ("marl_jax.modes.serve_reward:main", ("config", "workdir")),
    "export": ("marl_jax.modes.export:main", ("config", "workdir")),
    "compile": ("marl_jax.modes.compile:main", ("config", "workdir", "topology")),
    "config": ("marl_jax.modes.config:main", ("config",)),
}
TRAINED = ("eval", "play", "export")  # modes that load a trained run, whose models may start from a first stage
TOGETHER = ("train", "eval")  # modes that may run with several processes


def main(argv: list[str]) -> int:
    """Run a command line and return its exit status.

    Returns:
        0, 1 if the run failed, or 2 if the command is invalid.
    """
    if {"--help", "-h"} & set(argv):
        sys.stdout.write(f"{__doc__}\n{flags.help_text(tuple(MODES))}\n")
        return 0
    try:
        check_mode(argv)
        command = flags.parse(argv, tuple(MODES))
        values, config, name = command.values, command.config, command.name
        workdir = Path(values.workdir or Path("runs") / name).expanduser().absolute()
        config.name = config.name or name or workdir.name
        config.log.profile = config.log.profile or values.profile
        if values.mode == "compile":
            prepare_to_compile(values.topology)
        if values.mode != "report":
            console.set_up(None, verbose=values.verbose)  # checks that generate levels log their progress
            check(config, values.mode, workdir)
        if values.mode in TRAINED:
            config = stages.started(config, workdir)
        if values.compilation_cache != "off" and values.mode not in ("compile", "report", "config"):
            keep_compiled(values.compilation_cache)
        process = start_processes(config, values.mode)
        console.set_up(workdir if values.mode == "train" else None, verbose=values.verbose, process=process)
        for warning in command.warnings:
            log.warning("%s", warning)
        start(values.mode, dict(config=config, workdir=workdir, topology=values.topology))
    except ConfigError as error:
        return complain(error, status=2)
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


def complain(error: Exception | str, status: int) -> int:
    """Print each line of an error, log it, and return the exit status."""
    for line in str(error).splitlines():
        sys.stderr.write(f"launch.py: {line}\n")
        console.note(logging.ERROR, "the run ended: %s", line)
    return status


def check_mode(argv: list[str]) -> None:
    """Check that the mode exists."""
    mode = flags.take(argv, "mode")[0]
    if mode is not None and mode not in MODES:
        raise ConfigError([flags.wrong_mode(mode, tuple(MODES))])


def check(config: ConfigDict, mode: str, workdir: Path) -> None:
    """Check the config."""
    # Imported here because the registry of games imports JAX.
    from marl_jax.schema import validate

    validate.check(config, mode, workdir)


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


def start(mode: str, given: dict) -> None:
    """Import the function of a mode and call it."""
    target, arguments = MODES[mode]
    module, function = target.split(":")
    call = functools.partial(getattr(importlib.import_module(module), function), *(given[name] for name in arguments))
    if not given["config"].distributed.enabled or mode not in TOGETHER:
        return call()
    from marl_jax.running import processes

    try:
        with processes.report_lost_process():
            processes.check_same(given["config"])
            call()
    except processes.LostProcess as error:
        processes.leave(complain(error, status=1))


if __name__ == "__main__":
    if (
        "--mode=play" not in sys.argv
    ):  # Ctrl-C stops at once, even while XLA compiles; training installs a handler that saves first
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv))
