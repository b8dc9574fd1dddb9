"""The one entry point: reads a config, refuses what cannot work, and starts a mode.

    python launch.py --config=experiments/tic_tac_toe_selfplay.py
    python launch.py --config=experiments/hanabi_selfplay.py:smollm2 --config.optim.lr=1e-5 --workdir=runs/mine
    python launch.py --workdir=runs/mine --mode=report
    python launch.py --config=experiments/plan_path.py --mode=config        # every field as it would be used

A run is its folder: the same command again resumes it. Without --config, the config is the one found there.
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

MODES = {  # mode: the function that carries it out and what it is given
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
TRAINED = ("eval", "play", "export")  # modes of a run that was trained, from the stage before it if it has one
TOGETHER = ("train", "eval")  # modes that several processes carry out together; the others take one


def main(argv: list[str]) -> int:
    """Carries out one command line; the status is 0, 1 (the run failed) or 2 (the command was refused)."""
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
            console.set_up(None, verbose=values.verbose)  # a check that generates levels says how far it is
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
    except OSError as error:  # a full disk, a folder that is a file or may not be written
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
            "algo.grad_accum_steps, or set "
            "model.remat to full"
        )
        reason = (str(error) or "the host has no memory left").splitlines()[0][:300]
        return complain(f"out of memory; {hint}\n{reason}", status=1)
    return 0


def complain(error: Exception | str, status: int) -> int:
    """Writes each line of the message, also into the log of the run; answers with the status."""
    for line in str(error).splitlines():
        sys.stderr.write(f"launch.py: {line}\n")
        console.note(logging.ERROR, "the run ended: %s", line)
    return status


def check_mode(argv: list[str]) -> None:
    """Refuses a mode that does not exist."""
    mode = flags.take(argv, "mode")[0]
    if mode is not None and mode not in MODES:
        raise ConfigError([f"--mode={mode}: accepted are {', '.join(MODES)}"])


def check(config: ConfigDict, mode: str, workdir: Path) -> None:
    """Refuses the config, or nothing; imported late, because the list of games brings JAX along."""
    from marl_jax.schema import validate

    validate.check(config, mode, workdir)


def prepare_to_compile(name: str) -> None:
    """Refuses a topology that does not exist, and sets JAX up for one that does, before it looks at its devices."""
    from marl_jax.dryrun import topology

    topology.prepare(topology.parse(name))


def keep_compiled(folder: str) -> None:
    """Compiled programs are kept in a folder, unless the user has told JAX of another (JAX_COMPILATION_CACHE_DIR)."""
    import jax

    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", folder)
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            # JAX keeps what took a second or more, and half of what a start compiles takes less.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


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
            processes.check_same(given["config"])
            call()
    except processes.LostProcess as error:
        processes.leave(complain(error, status=1))


if __name__ == "__main__":
    if "--mode=play" not in sys.argv:  # Ctrl-C ends at once, also while XLA compiles; training saves before it stops
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv))
