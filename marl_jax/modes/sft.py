"""`--mode=sft`: supervised training on what a bot plays, so that small models have something to improve by playing.

    python launch.py --config=experiments/plan_path.py --mode=sft --workdir=runs/warm
    python launch.py --config=experiments/plan_path.py --workdir=runs/mine --config.model.init_from=runs/warm

The loop is that of `train.py` with demonstrations for rollouts and the likelihood of their answers for the objective; a
run has the same folder, goes on in the same way and is evaluated by the same matches. Besides these, `demonstrations`
is how often the most likely answer is one of the bot's, in positions of games that training never sees.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from envs.games.bots import bot_names, make_bot
from marl_jax.agents.policy import Policy
from marl_jax.config.validate import nearest
from marl_jax.devices import mesh as meshes
from marl_jax.devices import placement
from marl_jax.errors import ConfigError
from marl_jax.learning.update import TrainState, make_optimiser, move, new_train_state
from marl_jax.modes import evaluate, report
from marl_jax.modes import setup as setups
from marl_jax.modes.identity import identity
from marl_jax.modes.sampler_params import SamplerWeights
from marl_jax.modes.setup import Setup
from marl_jax.modes.train import best_metric, merge_metrics, not_finite, resumed, saved
from marl_jax.rollouts.demonstrations import Demonstrations
from marl_jax.rollouts.games import Rollout, Sections, summary
from marl_jax.running import processes, stats
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import Metrics, write_config
from marl_jax.running.profiling import Clock
from marl_jax.running.signals import GracefulStop
from marl_jax.running.workdir_lock import workdir_lock
from marl_jax.samples import Samples, split, take

log = logging.getLogger(__name__)

DRAWS = 32  # of the bot in a held-out position: what it plays in one of them is right
HELD_OUT_KEY = 7


def main(config: ConfigDict, workdir: Path) -> None:
    """Trains until `config.sft.steps`, from the newest checkpoint in `workdir` if there is one."""
    setup = make(config)
    with workdir_lock(workdir), jax.set_mesh(setup.mesh), GracefulStop() as stop:
        _train(setup, workdir, stop)


def make(config: ConfigDict) -> Setup:
    """The setup of a run with the fields of `sft` in their places, and policies without critic or reference."""
    config = config.copy_and_resolve_references()
    s = config.sft
    config.steps = s.steps
    config.optim.update(dict(lr=s.lr, schedule=s.schedule, warmup=s.warmup))
    setup = setups.make(config)
    ways = meshes.batch_ways(setup.mesh)
    if s.games % ways:
        near = " or ".join(map(str, nearest(s.games, ways)))
        raise ConfigError(
            [f"config.sft.games is {s.games}, not a multiple of the {ways} parts of the mesh; nearest: {near}"]
        )
    backbones = tuple(
        dataclasses.replace(
            backbone, policy=dataclasses.replace(backbone.policy, critic="none", share=1), reference=False
        )
        for backbone in setup.backbones
    )
    return dataclasses.replace(setup, team=dataclasses.replace(setup.team, backbones=backbones))


def _train(setup: Setup, workdir: Path, stop: GracefulStop) -> None:
    config, s = setup.config, setup.config.sft
    main_process, whole = jax.process_index() == 0, placement.replicated(setup.mesh)

    # ---------------------------------------------------------------------- what is trained, and where it stands
    key = jax.random.key(config.seed)
    shown = demonstrations(setup)
    optimiser = make_optimiser(config.optim, s.steps, s.minibatches)
    train_states = {
        backbone.name: new_train_state(*backbone.weights_at_start(), optimiser, setup.mesh)
        for backbone in setup.backbones
    }
    games = placement.init_sharded(shown.start, functools.partial(placement.rows, setup.mesh), key)

    c = config.checkpoint
    checkpoints = Checkpoints(workdir, keep=c.keep, every=c.every, best_mode=c.best_mode)
    run = {**identity(setup), "algorithm": "sft", "critic": "none", "games": s.games}
    restored = checkpoints.restore(saved(train_states, games, None), run=run)
    step = start = 0 if restored is None else restored.step
    if main_process:
        write_config(config, workdir, done=start >= s.steps)
    if restored is not None:
        train_states, games, _ = resumed(train_states, restored.state)
        log.info("resumed from step %d of %d in %s", start, s.steps, workdir)
    else:
        log.info("learning from the bot %r, new run in %s", bot_name(config), workdir)

    # ------------------------------------------------------------------------------------------------- programs
    show = jax.jit(
        functools.partial(show_step, shown),
        donate_argnums=(0,),
        out_shardings=(None, placement.shardings_of(games), whole),
    )
    learn = jax.jit(
        functools.partial(learn_step, setup, optimiser),
        donate_argnums=(0,),
        out_shardings=(placement.shardings_of(train_states), whole),
    )
    evaluation, imitation, sampler = evaluate.Evaluation(setup), Imitation(setup), SamplerWeights(setup)

    def evaluated(baselines: bool = False) -> list[dict[str, Any]]:
        with jax.set_mesh(setup.sampling_mesh):
            weights = sampler(train_states)
            return [*evaluation(weights, baselines=baselines), imitation(weights)]

    # ----------------------------------------------------------------------------------------------------- loop
    metrics = Metrics(config, workdir, start=start, main=main_process)
    if start == 0 and config.eval.every:
        metrics.write_eval(0, evaluated(baselines=True))
    if start >= s.steps:
        log.info("all %d steps are done; raise --config.sft.steps or choose another --workdir to go on", s.steps)
    stopping = False
    with contextlib.ExitStack() as closing:
        for resource in (checkpoints, metrics):
            closing.callback(resource.close)
        while step < s.steps and not stopping:
            step_key, clock = jax.random.fold_in(key, step), Clock()
            with clock.phase("rollout"):
                samples, games, figures = show(games, step_key)
                jax.block_until_ready(samples.action)
            with clock.phase("update"):
                train_states, more = learn(train_states, samples, step_key)
                figures = jax.device_get({**figures, **more})
            step += 1
            if figures["skipped_in_a_row"] >= c.nan_limit:
                metrics.write(step, {**figures, **clock.figures(figures)}, last=True)
                raise not_finite(step, figures["skipped_in_a_row"], "sft.lr", s.lr)
            metric = None
            if config.eval.every and (step % config.eval.every == 0 or step == s.steps):
                with clock.phase("evaluation"):
                    rows = evaluated()
                metrics.write_eval(step, rows)
                metric = best_metric(config, rows)
            metrics.write(step, {**figures, **clock.figures(figures)})
            stopping = processes.anyone(stop.asked)
            wanted = checkpoints.due(step) and not figures["skipped_in_a_row"]
            if wanted or checkpoints.improves(metric) or step == s.steps or stopping:
                checkpoints.save(step, saved(train_states, games, None), {"run": run}, metric)

        # ------------------------------------------------------------------------------------------------- end
        if step > start:
            checkpoints.finish(step)
        if stopping and step < s.steps:
            log.info("stopped at step %d by %s; the same command goes on from there", step, stop.name or "a signal")
    if main_process:
        report.main(workdir)


def bot_name(config: ConfigDict) -> str:
    """Who is imitated: the bot of the config, or the best that the game has."""
    return config.sft.bot or bot_names(config.env.name)[-1]


def demonstrations(setup: Setup, **changes: Any) -> Demonstrations:
    """The program that plays the bot's games."""
    s, rollout = setup.config.sft, setup.plain_rollout()
    fields = {field.name: getattr(rollout, field.name) for field in dataclasses.fields(Rollout)}
    fields |= dict(sections=Sections(s.games), turns=s.turns, noise=s.noise)
    fields |= dict(bot=make_bot(setup.game, bot_name(setup.config)))
    return Demonstrations(**{**fields, **changes})


def show_step(shown: Demonstrations, games, key: jax.Array):
    """Some turns of the bot's games: (samples, games, figures)."""
    samples, finished, games = shown.show(games, key)
    figures = summary(finished, shown.sections, shown.game.competitive) | {
        "tokens": jnp.sum(samples.prompt_lengths + samples.answer_lengths),
        "prompt_length": jnp.mean(samples.prompt_lengths),
        "answer_length": jnp.mean(samples.answer_lengths),
        "rows": jnp.sum(samples.weights > 0),
    }
    return samples, games, figures


def learn_step(setup: Setup, optimiser, train_states: dict[str, TrainState], samples: Samples, key: jax.Array):
    """One pass over the samples [R, B, …], of every model over its own: (learners, figures)."""
    found = {}
    for backbone in setup.train_states:
        rows = setup.team.own(samples, backbone.number).flat()
        settings = (setup.config.sft.minibatches, setup.config.algo.grad_accum_steps)
        train_state, figures = _pass(backbone.policy, optimiser, train_states[backbone.name], rows, key, *settings)
        train_states, found[backbone.name] = {**train_states, backbone.name: train_state}, figures
    return train_states, merge_metrics(found)


def _pass(
    policy: Policy, optimiser, train_state: TrainState, rows: Samples, key, minibatches: int, grad_accum_steps: int
):
    def minibatch(train_state, picked):
        return _learn(policy, optimiser, train_state, take(rows, picked), grad_accum_steps)

    picks = jax.random.permutation(key, rows.n).reshape(minibatches, -1)
    train_state, metrics = jax.lax.scan(minibatch, train_state, picks)
    figures = {name: jnp.mean(x) for name, x in metrics.items() if name != "skipped"}
    return train_state, {**figures, "skipped": jnp.sum(metrics["skipped"]), "skipped_in_a_row": train_state.skipped}


def _learn(policy: Policy, optimiser, train_state: TrainState, rows: Samples, grad_accum_steps: int):
    """One step of the optimiser on one minibatch; a loss or gradient that is not finite changes nothing."""
    weights = rows.weights / jnp.maximum(jnp.sum(rows.weights), 1.0)
    objective = jax.value_and_grad(_objective, argnums=1, has_aux=True)

    def part(total, xs):
        (_, figures), grads = objective(policy, train_state.trained, train_state.frozen, *xs)
        return jax.tree.map(jnp.add, total, grads), figures

    nothing = jax.tree.map(jnp.zeros_like, train_state.trained)
    grads, figures = jax.lax.scan(part, nothing, split((rows, weights), grad_accum_steps))
    figures = jax.tree.map(lambda x: jnp.sum(x, axis=0), figures)
    return move(policy, optimiser, train_state, grads, figures)


def _objective(policy: Policy, trained: dict, frozen: dict, rows: Samples, weights: jax.Array):
    """Minus the mean log-probability of whole answers; `weights` [N] add up to 1 over a minibatch."""
    scores = policy.score({**frozen, **trained}, rows)
    mask = rows.mask()
    answers = jnp.sum(scores.logps * mask, axis=1)
    loss = -jnp.sum(weights * answers)
    figures = {"loss": loss, "probability": jnp.sum(weights * jnp.exp(answers))}
    return loss, figures | {"entropy": jnp.sum(weights * jnp.sum(scores.entropy * mask, axis=1))}


# ----------------------------------------------------------------------------------------------------------- held out


class Imitation:
    """How well a team imitates the bot in games that training never sees, the same ones at every call."""

    def __init__(self, setup: Setup):
        self._team, self._confidence = setup.team, setup.config.eval.confidence
        unseen = demonstrations(setup, game=setup.game.held_out(), noise=0.0)
        examine = jax.jit(unseen.examine, static_argnums=1)
        self._samples, self._right = examine(jax.random.key(HELD_OUT_KEY), DRAWS)
        shown = np.asarray(self._samples.tokens)[np.asarray(self._samples.weights) > 0]
        self._distinct = len(np.unique(shown, axis=0))
        self._program = jax.jit(self._answers)

    def __call__(self, weights: dict[str, dict]) -> dict[str, Any]:
        """A row of figures, as those of `evaluate.Evaluation`: `accuracy`, the share of answers that are the bot's."""
        right, counts = jax.device_get(self._program(weights, self._samples, self._right))
        accuracy = stats.wilson(int(np.sum(right & counts)), int(np.sum(counts)), self._confidence, self._distinct)
        told = accuracy, np.sum(counts), self._distinct
        log.info("held-out demonstrations: accuracy %s of %d answers, %d distinct", *told)
        row = dict(accuracy=accuracy.value, accuracy_low=accuracy.low, accuracy_high=accuracy.high)
        return {"opponent": "demonstrations", "games": int(np.sum(counts)), **row}

    def _answers(self, weights, samples: Samples, right):
        """Whether the most likely answers are right, and whether they count: bool [R, B] each."""
        fast = self._team.ready(weights)

        def turn(xs):
            shown, right = xs
            keys = jax.vmap(jax.random.key)(jnp.arange(shown.n))  # the most likely answer needs no luck
            said = self._team.act(
                fast, shown.tokens, shown.prompt_lengths, shown.legal, keys, shown.policy, temperature=0.0
            ).action
            return jnp.take_along_axis(right, jnp.maximum(said, 0)[:, None], axis=1)[:, 0] & (said >= 0)

        return jax.lax.map(turn, (samples, right)), samples.weights > 0
