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

from marl_jax import evaluate, report
from marl_jax import setup as setups
from marl_jax.devices import compiler, placement
from marl_jax.devices.resharding import SamplerWeights
from marl_jax.errors import RunError
from marl_jax.identity import identity
from marl_jax.learning import grpo, overlong, ppo
from marl_jax.learning.update import Learner, make_optimiser, make_update, new_learner
from marl_jax.rollouts import matches, opponents, records
from marl_jax.rollouts import rollout as rollouts
from marl_jax.rollouts.curriculum import Graded
from marl_jax.rollouts.matches import Match
from marl_jax.running import processes
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.conversation_logs import GameLogs
from marl_jax.running.lock import alone_in
from marl_jax.running.metrics import Metrics, write_config
from marl_jax.running.profiling import Clock, Trace
from marl_jax.running.signals import GracefulStop
from marl_jax.setup import Setup
from marl_jax.team import learn_from_few

log = logging.getLogger(__name__)


def train(config: ConfigDict, workdir: Path) -> None:
    """Trains until `config.steps`, from the newest checkpoint in `workdir` if there is one."""
    setup = setups.make(config)
    with alone_in(workdir), GracefulStop() as stop:
        _train(setup, workdir, stop)


def _train(setup: Setup, workdir: Path, stop: GracefulStop) -> None:
    config = setup.config
    main = jax.process_index() == 0

    # ---------------------------------------------------------------------- what is trained, and where it stands
    key = jax.random.key(config.seed)
    rollout = setup.rollout()
    optimiser = make_optimiser(config.optim, config.steps, config.algo.epochs * config.algo.minibatches)
    at_work, at_play = (functools.partial(jax.set_mesh, mesh) for mesh in (setup.mesh, setup.sampling_mesh))
    with at_work():
        learners, games, pool = at_start(setup, rollout, optimiser, key)

    c = config.checkpoint
    checkpoints = Checkpoints(workdir, keep=c.keep, every=c.every, best_mode=c.best_mode)
    restored = checkpoints.restore(saved(learners, games, pool), run=identity(setup))
    start = 0 if restored is None else restored.step
    if main:
        write_config(config, workdir, done=start >= config.steps)
    if restored is not None:
        learners, games, pool = resumed(learners, restored.state)
        log.info("resumed from step %d of %d in %s", start, config.steps, workdir)
    else:
        for mind in setup.minds:
            size = f"{mind.model.cfg.n_params:,}"
            log.info("%s plays %s: %s parameters", mind.config.name, " and ".join(mind.policies), size)
        log.info("new run in %s", workdir)

    # ------------------------------------------------------------------------------------------------- programs
    play, learn = programs(setup, rollout, optimiser, learners, games, pool)
    sampler = SamplerWeights(setup)
    snapshot = jax.jit(opponents.add, donate_argnums=(0,), out_shardings=placement.of(pool))
    evaluation = evaluate.Evaluation(setup)
    table = Match(setup.game, (setup.player(),))

    # ----------------------------------------------------------------------------------------------------- loop
    metrics = Metrics(config, workdir, start=start, main=main)
    logs = GameLogs(config, workdir, start=start, main=main)
    if start == 0 and config.eval.every:
        with at_play():
            metrics.write_eval(0, evaluation(sampler(learners), baselines=True))
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
                with at_play():
                    with clock.phase("reshard") if sampler.apart else contextlib.nullcontext():
                        weights = jax.block_until_ready(sampler(learners))
                    with clock.phase("rollout"):
                        samples, games, pool, figures = play(weights, games, pool, step_key)
                        jax.block_until_ready(samples.action)
                del weights
                with at_work(), clock.phase("update"):
                    learners, more = learn(learners, samples, step_key)
                    figures = jax.device_get({**figures, **more})
                step += 1

                if figures["skipped_in_a_row"] >= config.checkpoint.nan_limit:
                    metrics.write(step, {**figures, **clock.figures(figures)}, last=True)
                    raise not_finite(step, figures["skipped_in_a_row"], "optim.lr", config.optim.lr)
                if pool is not None and step % config.opponents.snapshot_every == 0:
                    with at_work():
                        pool = snapshot(pool, past_self(setup, learners), step)
                metric = None
                if config.eval.every and (step % config.eval.every == 0 or step == config.steps):
                    with at_play(), clock.phase("evaluation"):
                        rows = evaluation(sampler(learners))
                    metrics.write_eval(step, rows)
                    metric = best_metric(config, rows)
                if logs.due(step):
                    with at_play(), clock.phase("logs"):
                        logs.write(step, some_games(setup, table, sampler(learners), step_key))
                metrics.write(step, {**figures, **clock.figures(figures)})
                stopping = processes.anyone(stop.asked)
                # Steps that could not be learnt from are no place to go on from.
                wanted = checkpoints.due(step) and not figures["skipped_in_a_row"]
                if wanted or checkpoints.improves(metric) or step == config.steps or stopping:
                    checkpoints.save(step, saved(learners, games, pool), {"run": identity(setup)}, metric)

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
    learners = {mind.name: new_learner(*mind.weights_at_start(), optimiser, setup.mesh) for mind in setup.minds}
    games = placement.made(rollout.start, functools.partial(placement.rows, setup.sampling_mesh), key)
    size, dtype = setup.config.opponents.pool_size, setup.minds[0].policy.dtype
    if not size:
        return learners, games, None
    player = past_self(setup, learners)
    places = functools.partial(placement.like_parameters, setup.mesh, parameters=player)
    return learners, games, placement.made(lambda p: opponents.new_pool(p, size, dtype), places, player)


def programs(setup: Setup, rollout: rollouts.Rollout | Graded, optimiser, learners, games, pool):
    """`play_step` and `learn_step` as programs: what they change stays in its place, any process can read figures."""
    whole = placement.whole(setup.mesh)
    play = jax.jit(
        functools.partial(play_step, setup, rollout),
        donate_argnums=(1,),
        out_shardings=(None, *placement.of((games, pool)), whole),
        compiler_options=compiler.options(),
    )
    learn = jax.jit(
        functools.partial(learn_step, setup, optimiser),
        donate_argnums=(0,),
        out_shardings=(placement.of(learners), whole),
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
    figures["unusable_answers"] = jnp.mean((said.action < 0) & (said.policy >= 0))
    if isinstance(rollout, Graded):
        figures["difficulty"] = rollout.difficulty(games)
    return samples, games, pool, figures


def learn_step(setup: Setup, optimiser, learners: dict[str, Learner], samples, key):
    """Advantages, then the epochs of the update, of every model from its own samples: (learners, figures)."""
    algo, found = setup.config.algo, {}
    for mind in setup.learners:
        learner = learners[mind.name]
        mine, figures = overlong.handle(mind.policy, setup.team.own(samples, mind.number), algo)
        given = (mind.policy, learner.weights, mine, algo, setup.game.n_players)
        with jax.named_scope("advantages"):
            rows, more = (ppo.prepare(*given), {}) if algo.name == "ppo" else grpo.prepare(*given)
        update = make_update(mind.policy, optimiser, algo)
        few = setup.rows_to_learn(mind, rows.n)
        learn_key = jax.random.fold_in(key, 1 + mind.number)
        learner, updated = learn_from_few(update, learner, rows, learn_key, few, mind.policy.share)
        learners, found[mind.name] = {**learners, mind.name: learner}, {**figures, **more, **updated}
    return learners, together(found)


def together(found: dict[str, dict]) -> dict:
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


def all_weights(learners: dict[str, Learner]) -> dict[str, dict]:
    """The weights of every model, for playing."""
    return {name: learner.weights for name, learner in learners.items()}


def past_self(setup: Setup, learners: dict[str, Learner]) -> dict[str, dict]:
    """The part of the weights that changes and decides how the team plays."""
    return setup.team.player({name: learner.trained for name, learner in learners.items()})


def saved(learners: dict[str, Learner], games, pool) -> dict:
    """What a checkpoint holds; weights that are only read come from where they came from at first."""
    learning = {name: learner for name, learner in learners.items() if learner.trained}
    of_each = lambda field: {name: getattr(learner, field) for name, learner in learning.items()}  # noqa: E731
    state = {"trained": of_each("trained"), "optimiser": of_each("optimiser"), "skipped": of_each("skipped")}
    state["games"] = games
    return state if pool is None else {**state, "pool": pool}


def resumed(learners: dict[str, Learner], state: dict) -> tuple:
    """Learners, games and pool from what a checkpoint held."""
    again = {
        name: Learner(state["trained"][name], learner.frozen, state["optimiser"][name], state["skipped"][name])
        for name, learner in learners.items()
        if name in state["trained"]
    }
    return {**learners, **again}, state["games"], state.get("pool")


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
