"""The training loop: play, compute advantages, learn, and now and then evaluate, save and tell.

Read `train` from top to bottom. What a run is made of comes from `setup.py`; a step is two XLA programs, `play` and
`learn`. Everything that must survive a stop is in `state`, and all randomness comes from the seed and the number of
the step, so a run that was interrupted anywhere goes on exactly as if it had not been.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents.team import update_active_rows
from marl_jax.devices import compiler, placement
from marl_jax.errors import RunError
from marl_jax.learning import grpo, overlong, ppo
from marl_jax.learning.update import TrainState, make_optimiser, make_update, new_train_state
from marl_jax.modes import evaluate, records, report
from marl_jax.modes import setup as setups
from marl_jax.modes.identity import identity
from marl_jax.modes.sampler_params import SamplerWeights
from marl_jax.modes.setup import Setup
from marl_jax.rollouts import games as rollouts
from marl_jax.rollouts import matches, opponents
from marl_jax.rollouts.curriculum import Graded
from marl_jax.rollouts.matches import Match
from marl_jax.running import processes
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.conversation_logs import GameLogs
from marl_jax.running.metrics import Metrics, write_config
from marl_jax.running.profiling import Clock, Trace
from marl_jax.running.signals import GracefulStop
from marl_jax.running.workdir_lock import workdir_lock

log = logging.getLogger(__name__)


def train(config: ConfigDict, workdir: Path) -> None:
    """Trains until `config.steps`, from the newest checkpoint in `workdir` if there is one."""
    setup = setups.make(config)
    with workdir_lock(workdir), GracefulStop() as stop:
        _train(setup, workdir, stop)


def _train(setup: Setup, workdir: Path, stop: GracefulStop) -> None:
    config = setup.config
    main = jax.process_index() == 0

    # ---------------------------------------------------------------------- what is trained, and where it stands
    key = jax.random.key(config.seed)
    rollout = setup.rollout()
    optimiser = make_optimiser(config.optim, config.steps, config.algo.epochs * config.algo.minibatches)
    train_mesh, sample_mesh = (functools.partial(jax.set_mesh, mesh) for mesh in (setup.mesh, setup.sampling_mesh))
    with train_mesh():
        train_states, games, pool = at_start(setup, rollout, optimiser, key)

    c = config.checkpoint
    checkpoints = Checkpoints(workdir, keep=c.keep, every=c.every, best_mode=c.best_mode)
    restored = checkpoints.restore(saved(train_states, games, pool), run=identity(setup))
    start = 0 if restored is None else restored.step
    if main:
        write_config(config, workdir, done=start >= config.steps)
    if restored is not None:
        train_states, games, pool = resumed(train_states, restored.state)
        log.info("resumed from step %d of %d in %s", start, config.steps, workdir)
    else:
        for backbone in setup.backbones:
            size = f"{backbone.model.cfg.n_params:,}"
            log.info("%s plays %s: %s parameters", backbone.config.name, " and ".join(backbone.policies), size)
        log.info("new run in %s", workdir)

    # ------------------------------------------------------------------------------------------------- programs
    play, learn = programs(setup, rollout, optimiser, train_states, games, pool)
    sampler = SamplerWeights(setup)
    snapshot = jax.jit(opponents.add, donate_argnums=(0,), out_shardings=placement.shardings_of(pool))
    evaluation = evaluate.Evaluation(setup)
    table = Match(setup.game, (setup.player(),))

    # ----------------------------------------------------------------------------------------------------- loop
    metrics = Metrics(config, workdir, start=start, main=main)
    logs = GameLogs(config, workdir, start=start, main=main)
    if start == 0 and config.eval.every:
        with sample_mesh():
            metrics.write_eval(0, evaluation(sampler(train_states), baselines=True))
    if start >= config.steps:
        log.info("all %d steps are done; raise --config.steps or choose another --workdir to go on", config.steps)
    step, stopping = start, False
    trace = Trace(workdir / "profile" if config.log.profile and main else None, start, config.steps)
    with contextlib.ExitStack() as closing:
        for resource in (checkpoints, metrics, logs, trace):
            closing.callback(resource.close)
        while step < config.steps and not stopping:
            with trace.step(step):
                step_key, clock = jax.random.fold_in(key, step), Clock()
                with sample_mesh():
                    with clock.phase("reshard") if sampler.apart else contextlib.nullcontext():
                        weights = jax.block_until_ready(sampler(train_states))
                    with clock.phase("rollout"):
                        samples, games, pool, figures = play(weights, games, pool, step_key)
                        jax.block_until_ready(samples.action)
                del weights
                with train_mesh(), clock.phase("update"):
                    train_states, more = learn(train_states, samples, step_key)
                    figures = jax.device_get({**figures, **more})
                step += 1

                if figures["skipped_in_a_row"] >= config.checkpoint.nan_limit:
                    metrics.write(step, {**figures, **clock.figures(figures)}, last=True)
                    raise not_finite(step, figures["skipped_in_a_row"], "optim.lr", config.optim.lr)
                if pool is not None and step % config.opponents.snapshot_every == 0:
                    with train_mesh():
                        pool = snapshot(pool, snapshot_params(setup, train_states), step)
                metric = None
                if config.eval.every and (step % config.eval.every == 0 or step == config.steps):
                    with sample_mesh(), clock.phase("evaluation"):
                        rows = evaluation(sampler(train_states))
                    metrics.write_eval(step, rows)
                    metric = best_metric(config, rows)
                if logs.due(step):
                    with sample_mesh(), clock.phase("logs"):
                        logs.write(step, some_games(setup, table, sampler(train_states), step_key))
                metrics.write(step, {**figures, **clock.figures(figures)})
                stopping = processes.anyone(stop.asked)
                # Steps that could not be learnt from are no place to go on from.
                wanted = checkpoints.due(step) and not figures["skipped_in_a_row"]
                if wanted or checkpoints.improves(metric) or step == config.steps or stopping:
                    checkpoints.save(step, saved(train_states, games, pool), {"run": identity(setup)}, metric)

        # ------------------------------------------------------------------------------------------------- end
        if step > start:
            checkpoints.finish(step)
        if stopping and step < config.steps:
            who = stop.name or "a signal to another process"
            log.info("stopped at step %d by %s; the same command goes on from there", step, who)
    if main:
        report.main(workdir)


def at_start(setup: Setup, rollout: rollouts.Rollout | Graded, optimiser, key):
    """What a run begins with, every array in its place on the mesh: (learners, games, pool of past selves or None)."""
    train_states = {
        backbone.name: new_train_state(*backbone.weights_at_start(), optimiser, setup.mesh)
        for backbone in setup.backbones
    }
    games = placement.init_sharded(rollout.start, functools.partial(placement.rows, setup.sampling_mesh), key)
    size, dtype = setup.config.opponents.pool_size, setup.backbones[0].policy.dtype
    if not size:
        return train_states, games, None
    player = snapshot_params(setup, train_states)
    places = functools.partial(placement.like_parameters, setup.mesh, parameters=player)
    return train_states, games, placement.init_sharded(lambda p: opponents.new_pool(p, size, dtype), places, player)


def programs(setup: Setup, rollout: rollouts.Rollout | Graded, optimiser, train_states, games, pool):
    """`play_step` and `learn_step` as programs: what they change stays in its place, any process can read figures."""
    whole = placement.replicated(setup.mesh)
    play = jax.jit(
        functools.partial(play_step, setup, rollout),
        donate_argnums=(1,),
        out_shardings=(None, *placement.shardings_of((games, pool)), whole),
        compiler_options=compiler.options(),
    )
    learn = jax.jit(
        functools.partial(learn_step, setup, optimiser),
        donate_argnums=(0,),
        out_shardings=(placement.shardings_of(train_states), whole),
        compiler_options=compiler.options(),
    )
    return play, learn


def play_step(setup: Setup, rollout: rollouts.Rollout | Graded, weights, games, pool, key):
    """One rollout, and what it says about the past self it met: (samples, games, pool, figures)."""
    play_key, meet_key = jax.random.split(jax.random.fold_in(key, 0))
    past = None
    if pool is not None:
        place, past = opponents.meet(pool, meet_key, setup.config.opponents.prioritised)
    samples, finished, games = rollout(weights, games, play_key, past)
    if pool is not None and rollout.sections.past:
        pool = opponents.record(pool, place, *rollouts.results(finished, rollout.sections.slices()[0][1]))
    figures = rollouts.summary(finished, rollout.sections, setup.game.competitive)
    said = jax.tree.map(lambda x: x[: setup.config.rollout.turns], samples)  # without the turns that look ahead
    figures["answers"] = jnp.sum(said.weights > 0)
    figures["tokens"] = jnp.sum(said.prompt_lengths + said.answer_lengths)
    figures["prompt_length"] = jnp.mean(said.prompt_lengths)
    figures["answer_length"] = jnp.mean(said.answer_lengths)
    figures["parse_failure_rate"] = jnp.mean((said.action < 0) & (said.policy >= 0))
    if isinstance(rollout, Graded):
        figures["difficulty"] = rollout.difficulty(games)
    return samples, games, pool, figures


def learn_step(setup: Setup, optimiser, train_states: dict[str, TrainState], samples, key):
    """Advantages, then the epochs of the update, of every model from its own samples: (learners, figures)."""
    algo, found = setup.config.algo, {}
    for backbone in setup.train_states:
        train_state = train_states[backbone.name]
        mine, figures = overlong.handle(backbone.policy, setup.team.own(samples, backbone.number), algo)
        given = (backbone.policy, train_state.weights, mine, algo, setup.game.n_players)
        with jax.named_scope("advantages"):
            rows, more = (ppo.prepare(*given), {}) if algo.name == "ppo" else grpo.prepare(*given)
        update = make_update(backbone.policy, optimiser, algo)
        few = setup.rows_to_learn(backbone, rows.n)
        learn_key = jax.random.fold_in(key, 1 + backbone.number)
        train_state, updated = update_active_rows(update, train_state, rows, learn_key, few, backbone.policy.share)
        train_states, found[backbone.name] = (
            {**train_states, backbone.name: train_state},
            {**figures, **more, **updated},
        )
    return train_states, merge_metrics(found)


def merge_metrics(found: dict[str, dict]) -> dict:
    """The figures of one model as they are; of several, by the name of each, and over all of them."""
    if len(found) == 1:
        return next(iter(found.values()))
    figures = {f"{name}/{figure}": value for name, figures in found.items() for figure, value in figures.items()}
    over_all = {"rows": jnp.sum, "groups": jnp.sum, "skipped": jnp.sum, "skipped_in_a_row": jnp.max}
    for figure in next(iter(found.values())):
        values = jnp.stack([of_one[figure] for of_one in found.values()])
        figures[figure] = over_all.get(figure, jnp.mean)(values)
    return figures


def some_games(setup: Setup, table: Match, weights, key):
    """A few games of the team with itself, as it trains, written out."""
    seating = matches.alone(setup.config.log.games, setup.game.n_players)
    played = table((weights,), seating, key, setup.config.rollout.temperature)
    return records.write_out(table, played, seating, key, [setup.seat_names()], "train")


def all_weights(train_states: dict[str, TrainState]) -> dict[str, dict]:
    """The weights of every model, for playing."""
    return {name: train_state.weights for name, train_state in train_states.items()}


def snapshot_params(setup: Setup, train_states: dict[str, TrainState]) -> dict[str, dict]:
    """The part of the weights that changes and decides how the team plays."""
    return setup.team.player({name: train_state.trained for name, train_state in train_states.items()})


def saved(train_states: dict[str, TrainState], games, pool) -> dict:
    """What a checkpoint holds; weights that are only read come from where they came from at first."""
    learning = {name: train_state for name, train_state in train_states.items() if train_state.trained}
    of_each = lambda field: {name: getattr(train_state, field) for name, train_state in learning.items()}  # noqa: E731
    state = {"trained": of_each("trained"), "optimiser": of_each("optimiser"), "skipped": of_each("skipped")}
    state["games"] = games
    return state if pool is None else {**state, "pool": pool}


def resumed(train_states: dict[str, TrainState], state: dict) -> tuple:
    """Learners, games and pool from what a checkpoint held."""
    again = {
        name: TrainState(state["trained"][name], train_state.frozen, state["optimiser"][name], state["skipped"][name])
        for name, train_state in train_states.items()
        if name in state["trained"]
    }
    return {**train_states, **again}, state["games"], state.get("pool")


def not_finite(step: int, skipped: int, field: str, lr: float) -> RunError:
    """Why a run ends whose last `skipped` updates were all skipped; `field` is that of its learning rate."""
    return RunError(
        f"step {step}: the last {skipped:d} updates were not finite and were skipped; lower {field} (now {lr:g}) or "
        "optim.max_grad_norm"
    )


def best_metric(config: ConfigDict, rows: list[dict]) -> float | None:
    """The figure by which the best checkpoint is kept."""
    opponent, _, figure = config.checkpoint.best_metric.partition("/")
    return next((row.get(figure) for row in rows if row["opponent"] == opponent), None)
