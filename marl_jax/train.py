"""The training loop: play, compute advantages, learn, and now and then evaluate, save and tell.

Read `train` from top to bottom. What a run is made of comes from `setup.py`; a step is two XLA programs, `play` and
`learn`. Everything that must survive a stop is in `state`, and all randomness comes from the seed and the number of
the step, so a run that was interrupted anywhere goes on exactly as if it had not been.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax import evaluate, grpo, matches, opponents, ppo, records, report
from marl_jax import rollout as rollouts
from marl_jax import setup as setups
from marl_jax.checkpoint import Checkpoints
from marl_jax.conversation_logs import GameLogs
from marl_jax.errors import RunError
from marl_jax.matches import Match
from marl_jax.metrics import Metrics, write_config
from marl_jax.setup import Setup
from marl_jax.signals import GracefulStop
from marl_jax.update import Learner, make_optimiser, make_update, new_learner

log = logging.getLogger(__name__)


def train(config: ConfigDict, workdir: Path) -> None:
    """Trains until `config.steps`, from the newest checkpoint in `workdir` if there is one."""
    setup = setups.make(config)
    with jax.set_mesh(setup.mesh), GracefulStop() as stop:
        _train(setup, workdir, stop)


def _train(setup: Setup, workdir: Path, stop: GracefulStop) -> None:
    config = setup.config
    main = jax.process_index() == 0

    # ---------------------------------------------------------------------- what is trained, and where it stands
    key = jax.random.key(config.seed)
    rollout = setup.rollout()
    optimiser = make_optimiser(config.optim, config.steps, config.algo.epochs * config.algo.minibatches)
    learner = new_learner(*setup.weights_at_start(), optimiser)
    games = setup.place_rows(jax.jit(rollout.start)(key))
    pool = None
    if config.opponents.pool_size:
        player = setup.policy.player(learner.trained)
        pool = opponents.new_pool(player, config.opponents.pool_size, setup.policy.dtype)

    c = config.checkpoint
    checkpoints = Checkpoints(workdir, keep=c.keep, every=c.every, best_mode=c.best_mode)
    restored = checkpoints.restore(saved(learner, games, pool), run=identity(setup))
    start = 0
    if restored is not None:
        start = restored.step
        learner, games, pool = resumed(learner, restored.state)
        log.info("resumed from step %d of %d in %s", start, config.steps, workdir)
    else:
        write_config(config, workdir)
        log.info("%s: %s parameters, new run in %s", config.model.name, f"{setup.model.cfg.n_params:,}", workdir)

    # ------------------------------------------------------------------------------------------------- programs
    play = jax.jit(functools.partial(play_step, setup, rollout), donate_argnums=(1,))
    learn = jax.jit(functools.partial(learn_step, setup, optimiser), donate_argnums=(0,))
    snapshot = jax.jit(opponents.add, donate_argnums=(0,))
    evaluation = evaluate.Evaluation(setup)
    table = Match(setup.game, (setup.player(),))

    # ----------------------------------------------------------------------------------------------------- loop
    metrics = Metrics(config, workdir, start=start, main=main)
    logs = GameLogs(config, workdir, start=start, main=main)
    if start == 0 and config.eval.every:
        metrics.write_eval(0, evaluation(learner.weights, baselines=True))
    if start >= config.steps:
        log.info("all %d steps are done; raise --config.steps or choose another --workdir to go on", config.steps)
    step = start
    with contextlib.ExitStack() as closing:
        for resource in (checkpoints, metrics, logs):
            closing.callback(resource.close)
        while step < config.steps and not stop.asked:
            step_key, clock = jax.random.fold_in(key, step), Clock()
            if config.log.profile and step == start + 2:
                jax.profiler.start_trace(workdir / "profile")
            samples, games, pool, figures = play(learner.weights, games, pool, step_key)
            clock.lap("rollout", samples.action)
            learner, more = learn(learner, samples, step_key)
            figures = jax.device_get({**figures, **more})
            clock.lap("update")
            if config.log.profile and step == start + 4:
                jax.profiler.stop_trace()
            step += 1

            if figures["skipped_in_a_row"] >= c.nan_limit:
                raise RunError(
                    f"step {step}: the last {figures['skipped_in_a_row']:d} updates were not finite and were skipped; "
                    f"lower optim.lr (now {config.optim.lr:g}) or optim.max_grad_norm, or go on from a checkpoint with "
                    "another seed"
                )
            if pool is not None and step % config.opponents.snapshot_every == 0:
                pool = snapshot(pool, setup.policy.player(learner.trained), step)
            metric = None
            if config.eval.every and (step % config.eval.every == 0 or step == config.steps):
                rows = evaluation(learner.weights)
                metrics.write_eval(step, rows)
                metric = best_metric(config, rows)
                clock.lap("evaluation")
            if logs.due(step):
                logs.write(step, some_games(setup, table, learner.weights, step_key))
                clock.lap("logs")
            metrics.write(step, {**figures, **clock.figures(figures)})
            if checkpoints.due(step) or step == config.steps or stop.asked:
                checkpoints.save(step, saved(learner, games, pool), {"run": identity(setup)}, metric)

        # ------------------------------------------------------------------------------------------------- end
        if step > start:
            checkpoints.finish(step)
        if stop.asked and step < config.steps:
            log.info("stopped at step %d by %s; the same command goes on from there", step, stop.name)
    if main:
        report.main(workdir)


def play_step(setup: Setup, rollout: rollouts.Rollout, weights, games, pool, key):
    """One rollout, and what it says about the past self it met: (samples, games, pool, figures)."""
    play_key, meet_key = jax.random.split(jax.random.fold_in(key, 0))
    past = None
    if pool is not None:
        place, past = opponents.meet(pool, meet_key, setup.config.opponents.prioritised)
    samples, finished, games = rollout(weights, games, play_key, past)
    if pool is not None and rollout.sections.past:
        pool = opponents.record(pool, place, *rollouts.results(finished, rollout.sections.slices()[0][1]))
    figures = rollouts.summary(finished, rollout.sections)
    figures["tokens"] = jnp.sum(samples.prompt_lengths + samples.answer_lengths)
    figures["prompt_length"] = jnp.mean(samples.prompt_lengths)
    figures["answer_length"] = jnp.mean(samples.answer_lengths)
    figures["unusable_answers"] = jnp.mean((samples.action < 0) & (samples.policy >= 0))
    return samples, games, pool, figures


def learn_step(setup: Setup, optimiser, learner: Learner, samples, key):
    """Advantages, then the epochs of the update: (learner, figures)."""
    algo = setup.config.algo
    given = (setup.policy, learner.weights, samples, algo, setup.game.n_players)
    rows, found = (ppo.prepare(*given), {}) if algo.name == "ppo" else grpo.prepare(*given)
    learner, figures = make_update(setup.policy, optimiser, algo)(learner, rows, jax.random.fold_in(key, 1))
    return learner, {**figures, **found}


def some_games(setup: Setup, table: Match, weights, key):
    """A few games of the policy with itself, as it trains, written out."""
    seating = matches.alone(setup.config.log.games, setup.game.n_players)
    played = table((weights,), seating, key, setup.config.rollout.temperature)
    return records.write_out(table, played, seating, key, [setup.config.model.name], setup.tokenizer, "train")


def saved(learner: Learner, games, pool) -> dict:
    """What a checkpoint holds; weights that are only read come from where they came from at first."""
    state = {"trained": learner.trained, "optimiser": learner.optimiser, "skipped": learner.skipped, "games": games}
    return state if pool is None else {**state, "pool": pool}


def resumed(learner: Learner, state: dict) -> tuple:
    """Learner, games and pool from what a checkpoint held."""
    learner = Learner(state["trained"], learner.frozen, state["optimiser"], state["skipped"])
    return learner, state["games"], state.get("pool")


def identity(setup: Setup) -> dict:
    """What a checkpoint must agree with to be continued."""
    c = setup.config
    return {
        "model": c.model.name,
        "shape": c.model.shape.to_dict(),
        "lora": c.model.lora.to_dict() if c.model.lora.rank else {},
        "tokenizer": setup.tokenizer.fingerprint,
        "env": c.env.to_dict(),
        "policies": list(setup.policies),
        "algorithm": c.algo.name,
        "critic": c.algo.critic,
        "games": c.rollout.games,
        "pool": c.opponents.pool_size,
        "seed": c.seed,
    }


def best_metric(config: ConfigDict, rows: list[dict]) -> float | None:
    """The figure by which the best checkpoint is kept."""
    opponent, _, figure = config.checkpoint.best_metric.partition("/")
    return next((row.get(figure) for row in rows if row["opponent"] == opponent), None)


class Clock:
    """Seconds of each phase of a step."""

    def __init__(self):
        self._last, self._laps = time.perf_counter(), {}

    def lap(self, phase: str, wait_for=None) -> None:
        """Ends a phase, once the arrays given are there."""
        jax.block_until_ready(wait_for)
        now = time.perf_counter()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def figures(self, counted: dict) -> dict[str, float]:
        """Seconds per phase, and games and tokens per second of playing and learning."""
        busy = self._laps["rollout"] + self._laps["update"]
        rates = {"games_per_s": counted["games"] / busy, "tokens_per_s": counted["tokens"] / busy}
        return {**{f"seconds/{phase}": s for phase, s in self._laps.items()}, **rates}
