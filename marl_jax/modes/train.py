"""Training loop: roll out, compute advantages, update, log, evaluate and save.

`setup` builds the parts of a run, and the algorithm defines its rollout and loss (`marl_jax/algorithms`). Checkpoints
contain the train states and the rollout state, and all randomness comes from the seed and the step, so an interrupted
run continues exactly as if it had not been interrupted.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import jax
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.devices.aot import SharedPrograms
from marl_jax.errors import RunError, RunStopped
from marl_jax.evaluation.outputs import RunOutputs, evaluation_of
from marl_jax.modes import report
from marl_jax.running import processes
from marl_jax.running.checkpoint import Checkpoints, Restored
from marl_jax.running.events import Events
from marl_jax.running.metrics import replace_text, write_config
from marl_jax.running.monitor import Monitor
from marl_jax.running.processes import workdir_lock
from marl_jax.running.profiling import Clock, ProfilerTrace
from marl_jax.running.signals import GracefulStop
from marl_jax.schema import conditions, stages, sweeps
from marl_jax.serving.remote import check_reachable
from marl_jax.setup import GameSetup, Setup, TaskSetup
from marl_jax.setup.supervisor import Supervisor
from marl_jax.setup.train_programs import check_frozen_weights
from marl_jax.setup.trainer import Trainer

log = logging.getLogger(__name__)

Runs = tuple[tuple[ConfigDict, Path], ...]
"""Configs of runs with their folders."""


def train(config: ConfigDict, workdir: Path, stop: GracefulStop | None = None) -> None:
    """Train a run and its first stage, resuming each from its newest checkpoint.

    Args:
        config: Config of the run.
        workdir: Folder of the run.
        stop: Active handler of signals; a new one by default.
    """
    if (workdir / sweeps.FILE).exists():
        raise RunError(f"{workdir} is the folder of a sweep; add its --seeds or --sweep, or choose another --workdir")
    with contextlib.nullcontext(stop) if stop else GracefulStop() as stop:
        train_stages(config, workdir, stop, SharedPrograms())


def train_stages(
    config: ConfigDict, workdir: Path, stop: GracefulStop, programs: SharedPrograms, after: Runs = ()
) -> bool:
    """Train a run after its first stage and return whether all steps are done.

    Args:
        config: Config of the run.
        workdir: Folder of the run.
        stop: Tells whether the user has stopped the run.
        programs: Programs of earlier runs with the same shapes.
        after: Runs that start from this one.
    """
    stage, folder = stages.first_stage(config), workdir / stages.FOLDER
    if stage is not None and not _has_checkpoint(workdir) and not all_steps_done(folder, stage.steps, stage.stop_when):
        setups.make(config, workdir=folder)  # fail before the first stage, not after it
        log.info("first stage: %s, %d steps, in %s", stage.algo.name, stage.steps, folder)
        earlier = programs.get("first stage", SharedPrograms)
        if not train_stages(stage, folder, stop, earlier, ((config, workdir), *after)):
            return False
        log.info("the first stage is done: %s, %d steps", config.algo.name, config.steps)
    setup = setups.make(stages.started(config, workdir), workdir=workdir, programs=programs)
    with workdir_lock(workdir):
        if jax.process_index() == 0:
            for waiting, place in after:  # so that the run can be resumed from its folder alone
                write_config(waiting, place)
        return _train(setup, config, workdir, stop)


def all_steps_done(workdir: Path, steps: int, stop_when: str = "") -> bool:
    """Return whether the newest complete checkpoint is the last one or met `stop_when`."""
    if not stages.has_begun(workdir):
        return False
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        newest = checkpoints.newest_whole()
        if newest is None:
            return False
        stopped = Monitor(conditions.parse(stop_when), checkpoints.meta(newest).get("monitor")).solved
        return newest >= steps or stopped


def _has_checkpoint(workdir: Path) -> bool:
    if not stages.has_begun(workdir):
        return False
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        return checkpoints.latest is not None


def _train(setup: GameSetup | TaskSetup, given: ConfigDict, workdir: Path, stop: GracefulStop) -> bool:
    """Train one stage and return whether all steps are done.

    Args:
        setup: Parts of the stage.
        given: Config of the stage from the user, without the path of the stage before it.
        workdir: Folder of the stage.
        stop: Tells whether the user has stopped the run.
    """
    config, main = setup.config, jax.process_index() == 0
    trainer = Trainer(setup)
    c = config.checkpoint
    best_mode = c.best_mode if config.eval.every else "max"  # without evaluations, training success is used
    checkpoints = Checkpoints(workdir, keep=c.keep, every=c.every, best_mode=best_mode)
    restored = trainer.restore(checkpoints)
    start = 0 if restored is None else restored.step
    monitor = Monitor(
        conditions.parse(config.stop_when),
        None if restored is None else restored.meta["monitor"],
        watch_success=not config.curriculum.enabled,
    )
    finished = start >= config.steps or monitor.solved
    if not finished:
        check_frozen_weights(setup.backbones)
    if main:
        write_config(given, workdir, done=finished)
        if setup.drawing:
            replace_text(workdir / report.WORKFLOW, setup.drawing)
    log_start(setup, workdir, restored, monitor)

    evaluates_first = start == 0 and config.eval.every > 0
    if evaluates_first or config.eval.every and not setup.host:  # tasks use opponents in the first evaluation only
        check_reachable(config.eval.opponents, "eval.opponents")
    if not finished:
        setup.check_remote()
    evaluation = evaluation_of(setup)
    if not finished:
        trainer.compile_ahead(start, evaluation if evaluates_first else None)
    outputs = RunOutputs(setup, trainer, evaluation, workdir, start, main)
    events = Events(workdir, start=start, main=main)
    trace = ProfilerTrace(workdir / "profile" if config.log.profile and main else None, start, config.steps)
    supervisor = Supervisor(setup, trainer, checkpoints, monitor, events)
    with contextlib.ExitStack() as closing:
        for resource in (trainer, outputs, checkpoints, events, trace):
            closing.callback(resource.close)
        if evaluates_first:
            outputs.evaluate_untrained()
        step, stopping = _loop(config, start, trainer, supervisor, outputs, checkpoints, trace, stop)
        if step > start:
            trainer.finish(checkpoints, step)
        if stopping and step < config.steps:
            who = stop.name or "a signal to another process"
            log.info("stopped at step %d by %s; run the same command to continue", step, who)
    if main:
        report.main(workdir)
    if not stopping or supervisor.failure is not None:
        supervisor.finish(step)
    return step >= config.steps or monitor.solved


def _loop(
    config: ConfigDict,
    step: int,
    trainer: Trainer,
    supervisor: Supervisor,
    outputs: RunOutputs,
    checkpoints: Checkpoints,
    trace: ProfilerTrace,
    stop: GracefulStop,
) -> tuple[int, bool]:
    """Run the training steps.

    Returns:
        The last step, and whether a signal has stopped the run.
    """
    monitor, stopping, start = supervisor.monitor, False, step
    while step < config.steps and not (stopping or monitor.solved or supervisor.failure):
        with trace.step(step):
            clock = Clock()
            try:
                samples, metrics = trainer.rollout(step, clock)
            except RunStopped as error:
                supervisor.failure = error
                if step > start:
                    trainer.save(checkpoints, step, monitor, None)
                break
            metrics |= trainer.update(samples, step, monitor.lr_scale, clock)
            step += 1

            try:
                supervisor.observe(step, metrics)
            except RunError:
                outputs.write(step, metrics, clock, last=True)
                raise
            trainer.after_update(step)

            last = step == config.steps or monitor.solved
            metric = None
            try:
                metric = outputs.evaluate(step, last, clock)
                outputs.write(step, metrics, clock)
            except RunStopped as error:
                supervisor.failure = error

            stopping = processes.anyone(stop.asked)
            # Do not save after a skipped update, to resume from a good one.
            due = checkpoints.due(step) and not metrics["skipped_in_a_row"]
            if due or checkpoints.improves(metric) or last or stopping or supervisor.failure or supervisor.reacted:
                trainer.save(checkpoints, step, monitor, metric if config.eval.every else monitor.state.mean_success)
    return step, stopping


def log_start(setup: Setup, workdir: Path, restored: Restored | None, monitor: Monitor) -> None:
    """Log the models of a new run, or the step from which a run resumes."""
    config = setup.config
    if restored is None:
        for backbone in setup.backbones:
            size = f"{backbone.model.n_params:,}"
            log.info("%s plays %s: %s parameters", backbone.config.name, " and ".join(backbone.policies), size)
        log.info("new run in %s", workdir)
        return
    log.info("resumed from step %d of %d in %s", restored.step, config.steps, workdir)
    if restored.step >= config.steps:
        log.info("all %d steps are done; raise --config.steps or choose another --workdir to continue", config.steps)
    elif monitor.solved:
        log.info("the run met stop_when (%s) at step %d; clear it to continue", config.stop_when, restored.step)
