"""The training loop: roll out, compute advantages, update, and now and then evaluate, save and report.

Read `train` from top to bottom. What a run is made of comes from `setup`; how samples are gathered and what is
learned from them is the algorithm's business (`marl_jax/algorithms`). Everything that must survive a stop is in the
train states and the rollout's state, and all randomness comes from the seed and the number of the step, so a run that
was interrupted anywhere continues exactly as if it had not been.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from pathlib import Path

import jax
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.devices.aot import AotCompiler, Recompiles
from marl_jax.devices.resharding import SamplerParams
from marl_jax.errors import RunError
from marl_jax.evaluation import records
from marl_jax.learning.learn_step import all_weights, optimizer_for
from marl_jax.modes import evaluate, report
from marl_jax.running import processes
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.conversation_logs import GameLogs
from marl_jax.running.events import Events
from marl_jax.running.metrics import MetricsWriter, replace_text, write_config
from marl_jax.running.monitor import Monitor
from marl_jax.running.processes import workdir_lock
from marl_jax.running.profiling import Clock, ProfilerTrace
from marl_jax.running.recovery import report_alarms, report_update, roll_back
from marl_jax.running.signals import GracefulStop
from marl_jax.schema import conditions, stages
from marl_jax.serving.remote import check_reachable
from marl_jax.setup import Setup
from marl_jax.setup.run_fingerprint import run_fingerprint
from marl_jax.setup.train_programs import (
    arrays,
    at_start,
    check_frozen_weights,
    compile_ahead,
    programs,
    resumed,
    saved,
)

log = logging.getLogger(__name__)

Runs = tuple[tuple[ConfigDict, Path], ...]
"""Configs of runs, each with its folder."""


def train(config: ConfigDict, workdir: Path) -> None:
    """Trains until `config.steps`, the stage before the run first; each from its newest checkpoint if it has one."""
    with GracefulStop() as stop:
        _train_stages(config, workdir, stop)


def _train_stages(config: ConfigDict, workdir: Path, stop: GracefulStop, after: Runs = ()) -> bool:
    """Whether all steps are done; `after` are the runs that start from this one, with their folders."""
    stage, folder = stages.first_stage(config), workdir / stages.FOLDER
    if stage is not None and not _has_checkpoint(workdir) and not all_steps_done(folder, stage.steps, stage.stop_when):
        setups.make(config, workdir=folder)  # what does not fit is refused before the first stage, not behind it
        log.info("first stage: %s, %d steps, in %s", stage.algo.name, stage.steps, folder)
        if not _train_stages(stage, folder, stop, ((config, workdir), *after)):
            return False
        log.info("the first stage is done: %s, %d steps", config.algo.name, config.steps)
    setup = setups.make(stages.started(config, workdir), workdir=workdir)
    with workdir_lock(workdir):
        if jax.process_index() == 0:
            for waiting, place in after:  # so that the folder is that of a run, which can be resumed without its config
                write_config(waiting, place)
        return _train(setup, config, workdir, stop)


def all_steps_done(workdir: Path, steps: int, stop_when: str = "") -> bool:
    """Return whether the newest whole checkpoint of a run is of its last step, or met `stop_when`."""
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


def _train(setup: Setup, given: ConfigDict, workdir: Path, stop: GracefulStop) -> bool:
    """One stage; `given` is its config as the user has it, without the place of the stage before."""
    config = setup.config
    main = jax.process_index() == 0

    # ---------------------------------------------------------------------- what is trained, and where it stands
    key = jax.random.key(config.seed)
    rollout, optimizer = setup.rollout, optimizer_for(config)
    train_mesh, sample_mesh = (functools.partial(jax.set_mesh, mesh) for mesh in (setup.mesh, setup.sample_mesh))
    with train_mesh():
        states, rollout_state = at_start(setup, rollout, optimizer, key)

    c = config.checkpoint
    best_mode = c.best_mode if config.eval.every else "max"  # without evaluations, the best is that of training success
    checkpoints = Checkpoints(workdir, keep=c.keep, every=c.every, best_mode=best_mode)
    restored = checkpoints.restore(saved(states, arrays(rollout, rollout_state)), run=run_fingerprint(setup))
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
    if restored is not None:
        states, kept = resumed(states, restored.state)
        rollout_state = kept if rollout.jitted else restored.meta["rollout"]
        log.info("resumed from step %d of %d in %s", start, config.steps, workdir)
    else:
        for backbone in setup.backbones:
            size = f"{backbone.model.cfg.n_params:,}"
            log.info("%s plays %s: %s parameters", backbone.config.name, " and ".join(backbone.policies), size)
        log.info("new run in %s", workdir)

    # ------------------------------------------------------------------------------------------------- programs
    roll, learn, after_update = programs(setup, rollout, optimizer, states, rollout_state)
    if restored is not None:
        learn.accum_multiplier = restored.meta["accum_multiplier"]
    sampler, ahead = SamplerParams(setup.team.sampling_layout, setup.reshards), AotCompiler()
    evaluates_first = start == 0 and config.eval.every > 0
    if evaluates_first or config.eval.every and not setup.host:  # tasks ask them at the first evaluation only
        check_reachable(config.eval.opponents, "eval.opponents")
    evaluation, logged = evaluate.evaluation_of(setup), records.log_of(setup)
    alone = jax.process_count() == 1  # several would have to compile in the same order
    if alone and rollout.jitted and not sampler.apart and not finished:
        matches = functools.partial(evaluation.compile_ahead, baselines=True) if evaluates_first else None
        compile_ahead(setup, ahead, matches, roll, learn, (sampler(states), rollout_state), states, key, start)

    # ----------------------------------------------------------------------------------------------------- loop
    metrics = MetricsWriter(config, workdir, start=start, main=main)
    logs = GameLogs(config, workdir, start=start, main=main)
    events = Events(workdir, start=start, main=main)
    if start >= config.steps:
        log.info("all %d steps are done; raise --config.steps or choose another --workdir to continue", config.steps)
    elif monitor.solved:
        log.info("the run met stop_when (%s) at step %d; clear it to continue", config.stop_when, start)
    step, stopping, failure, recompiles = start, False, None, Recompiles()
    trace = ProfilerTrace(workdir / "profile" if config.log.profile and main else None, start, config.steps)
    with contextlib.ExitStack() as closing:
        for resource in (setup, ahead, rollout, evaluation, logged, checkpoints, metrics, logs, events, trace):
            closing.callback(resource.close)
        if evaluates_first:
            with sample_mesh():
                metrics.write_eval(0, evaluation(sampler(states), baselines=True))
                evaluation.write(workdir, 0)
        while step < config.steps and not (stopping or monitor.solved or failure):
            with trace.step(step):
                step_key, clock = jax.random.fold_in(key, step), Clock()
                with sample_mesh():
                    with clock.phase("reshard") if sampler.apart else contextlib.nullcontext():
                        params = jax.block_until_ready(sampler(states))
                    with clock.phase("rollout"):
                        samples, rollout_state, found = roll(params, rollout_state, jax.random.fold_in(step_key, 0))
                        jax.block_until_ready(samples.tokens)
                del params
                with train_mesh(), clock.phase("update"):
                    states, more = learn(states, samples, step_key, step, monitor.lr_scale)
                    found = jax.device_get({**found, **more})
                step += 1
                recompiles.look(step, samples, clock.seconds("update"))

                if step == start + 1:
                    warn_of_dropped(found.get("dropped_completions", 0.0))
                alarms = monitor.observe(step, found)
                report_update(events, step, found, config.algo.get("guard_drop"))
                if found["skipped_in_a_row"] >= config.checkpoint.nan_limit:
                    metrics.write(step, {**found, **clock.metrics(found)}, last=True)
                    raise not_finite(step, found["skipped_in_a_row"], config.optim.lr)
                reacts = bool(alarms) and config.alarm in ("rollback", "stop")
                report_alarms(events, step, alarms if config.alarm != "off" else ())
                try:
                    if reacts and config.alarm == "stop":
                        raise RunError(f"step {step}: {alarms[0].message} The run was stopped because alarm is 'stop'.")
                    if reacts:
                        with train_mesh():
                            kept = saved(states, arrays(rollout, rollout_state))
                            states = resumed(states, roll_back(checkpoints, monitor, kept, events, step))[0]
                except RunError as error:
                    failure = error  # raised once the run is saved and reported
                if monitor.solved:
                    log.info("step %d: the run meets stop_when (%s)", step, config.stop_when)
                    events.write(step, "solved", f"The run meets stop_when ({config.stop_when}).")
                if rollout.changes_after(step):
                    with train_mesh():
                        rollout_state = after_update(rollout_state, all_weights(states), step)
                metric, last = None, step == config.steps or monitor.solved
                if config.eval.every and (step % config.eval.every == 0 or last):
                    with sample_mesh(), clock.phase("evaluation"):
                        rows = evaluation(sampler(states))
                    metrics.write_eval(step, rows)
                    evaluation.write(workdir, step)
                    metric = best_metric(config, rows)
                if logs.due(step):
                    with sample_mesh(), clock.phase("logs"):
                        logs.write(step, logged(sampler(states), step_key, step))
                metrics.write(step, {**found, **clock.metrics(found)})
                stopping = processes.anyone(stop.asked)
                # A step whose update was skipped is no place to continue from.
                wanted = checkpoints.due(step) and not found["skipped_in_a_row"]
                improves = checkpoints.improves(metric)
                if not config.eval.every:
                    metric = monitor.state.mean_success
                if wanted or improves or last or stopping or reacts:
                    kept = saved(states, arrays(rollout, rollout_state))
                    noted = {
                        "run": run_fingerprint(setup),
                        "accum_multiplier": learn.accum_multiplier,
                        "monitor": monitor.saved(),
                    }
                    noted |= {} if rollout.jitted else {"rollout": rollout_state}
                    checkpoints.save(step, kept, noted, metric)
                    rollout.checkpointed(checkpoints.durable)

        # ------------------------------------------------------------------------------------------------- end
        if step > start:
            checkpoints.finish(step)
            rollout.checkpointed(step)
        if stopping and step < config.steps:
            who = stop.name or "a signal to another process"
            log.info("stopped at step %d by %s; the same command continues from there", step, who)
    if main:
        report.main(workdir)
    if monitor.nothing_learned and not stopping:
        failure = failure or RunError(
            f"every update up to step {step} was skipped: gradients were not finite, or the guard rejected them. "
            "Lower optim.lr, or raise algo.guard_drop."
        )
    if failure:
        raise failure
    return step >= config.steps or monitor.solved


def warn_of_dropped(share: float) -> None:
    """Says so where more than a few of the answers do not fit into their rows."""
    if share > 0.05:
        hint = "raise env.turn_tokens or env.history_tokens, or set them to 0"
        log.warning("%.0f %% of the answers have no room in their rows and are not learned from; %s", 100 * share, hint)


def not_finite(step: int, skipped: int, lr: float) -> RunError:
    """Why a run ends whose last `skipped` updates were all skipped."""
    return RunError(
        f"step {step}: the last {skipped:d} updates were not finite and were skipped; lower optim.lr (now {lr:g}) or "
        "optim.max_grad_norm"
    )


def best_metric(config: ConfigDict, rows: list[dict]) -> float | None:
    """The metric by which the best checkpoint is kept."""
    opponent, _, metric = config.checkpoint.best_metric.partition("/")
    return next((row.get(metric) for row in rows if row["opponent"] == opponent), None)
