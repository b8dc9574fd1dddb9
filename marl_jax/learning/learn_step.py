"""One update of every backbone: advantages, guard, epochs and metrics."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents.team import Backbone
from marl_jax.learning import averages, stability
from marl_jax.learning.advantages import handle_overlong
from marl_jax.learning.optimizer import learning_rate, make_optimizer
from marl_jax.learning.settings import LearnerSettings
from marl_jax.learning.update import Scheduled, TrainState, make_update, update_active_rows
from marl_jax.samples import Samples


def optimizer_for(config: ConfigDict, lr: jax.Array | float | None = None):
    """Build the optimizer of a run, with `optim.lr` or another learning rate."""
    return make_optimizer(_optim(config, lr), config.steps, config.algo.epochs * config.algo.minibatches)


def _optim(config: ConfigDict, lr: jax.Array | float | None) -> ConfigDict:
    """Return `config.optim`, with another learning rate if it is given."""
    return config.optim if lr is None else ConfigDict({**config.optim, "lr": lr})


def averages_of(setup: Any, backbone: Backbone) -> Callable[[dict], dict]:
    """Return a function from trained weights to the averages that the algorithm keeps of them."""
    algo, n_seats = setup.algo, setup.seating.n_seats
    return lambda trained: averages.init(backbone.policy, trained, algo, n_seats)


def learn_step(
    setup: Any, optimizer, states: dict[str, TrainState], samples: Samples, key: jax.Array,
    step: jax.Array | int = 0, lr_scale: jax.Array | float = 1.0, lr: jax.Array | float | None = None,
    accum_multiplier: int = 1,
):  # fmt: skip
    """Compute advantages and run the update's epochs for every backbone on its own samples.

    Args:
        setup: The parts of the run, a `marl_jax.setup.Setup`.
        optimizer: The optimizer from `optimizer_for`.
        states: Train states by backbone name.
        samples: The samples of all backbones.
        key: PRNG key for the order of the rows.
        step: Index of the training step, for scheduled values.
        lr_scale: Factor on the learning rate of the run, which a rollback lowers.
        lr: Learning rate, as an argument, so that runs with other rates use the same program. Replaces the optimizer
            with that of the run at this rate. None for that of the optimizer, which is `optim.lr`.
        accum_multiplier: Multiplier of `algo.grad_accum_steps`, raised when a minibatch does not fit in memory.

    Returns:
        The train states after the update, and metrics.
    """
    config, algorithm, metrics_of = setup.config, setup.algorithm, {}
    optimizer = optimizer if lr is None else optimizer_for(config, lr)
    algo = dataclasses.replace(setup.algo, grad_accum_steps=setup.algo.grad_accum_steps * accum_multiplier)
    scheduled = scheduled_values(algo, step, config.steps)
    for backbone in setup.trained_backbones:
        policy, before = backbone.policy, states[backbone.name]
        sampled, metrics = handle_overlong(policy, setup.team.own(samples, backbone.number), algo)
        with jax.named_scope("advantages"):
            prepared, more = algorithm.compute_advantages(policy, before.weights, sampled, algo)
        with jax.named_scope("guard"):
            guard = stability.UpdateGuard.before(policy, before, sampled, prepared, algo)
        signal = stability.signal(policy, sampled, prepared)
        assert before.lr_factor is not None
        scale = lr_scale * before.lr_factor * stability.signal_scale(signal.strength, algo.signal_frac)
        update = functools.partial(make_update(policy, optimizer, algorithm.objective, algo), scheduled=scheduled)
        if guard is not None or algo.signal_frac or config.alarm == "rollback":
            update = functools.partial(update, lr_scale=scale)  # even a factor of 1 would change the rounding
        most = setup.max_active_rows(backbone, prepared.n, algo)
        update_key = jax.random.fold_in(key, 1 + backbone.number)
        state, updated = update_active_rows(update, before, prepared, update_key, most)
        if guard is not None:
            with jax.named_scope("guard"):
                state, checked = guard.check(before, state)
            updated |= checked
        rate = learning_rate(_optim(config, lr), config.steps, algo.epochs * algo.minibatches, before.optimizer)
        updated |= {} if rate is None else {"learning_rate": rate * scale}
        updated |= {} if prepared.informative is None else {"informative_share": signal.informative}
        followed = averages.ema_update(policy, state.averages, state.trained, prepared, algo)
        state = dataclasses.replace(state, averages=followed)
        states = {**states, backbone.name: state}
        metrics_of[backbone.name] = by_policy({**metrics, **more, **updated}, backbone)
    return states, merge_metrics(metrics_of)


def by_policy(metrics: dict, backbone: Backbone) -> dict:
    """Split metrics of shape [n] into one per trained policy, and add their mean."""
    split = {}
    for name, value in metrics.items():
        if value.ndim == 0:
            split[name] = value
            continue
        learns = [i for i, learns in enumerate(backbone.learns) if learns] if len(value) > 1 else [0]
        split[name] = jnp.mean(value[jnp.asarray(learns)])
        if len(learns) > 1:
            split |= {f"{name}/{backbone.policies[i]}": value[i] for i in learns}
    return split


def merge_metrics(metrics_of: dict[str, dict]) -> dict:
    """Merge the metrics of several backbones.

    Metrics of a single backbone are returned unchanged. Otherwise each metric is reported with the backbone's name as a
    prefix, and metrics that all backbones have are also reduced over them.
    """
    if len(metrics_of) == 1:
        return next(iter(metrics_of.values()))
    metrics = {f"{name}/{metric}": value for name, metrics in metrics_of.items() for metric, value in metrics.items()}
    over_all = dict.fromkeys(("completions_trained", "groups", "skipped", "optimizer_steps"), jnp.sum)
    over_all |= {"skipped_in_a_row": jnp.max, "log_ratio_max": jnp.max, "log_ratio_min": jnp.min}
    shared = [name for name in next(iter(metrics_of.values())) if all(name in of_one for of_one in metrics_of.values())]
    for metric in shared:
        values = jnp.stack([of_one[metric] for of_one in metrics_of.values()])
        metrics[metric] = over_all.get(metric, jnp.mean)(values)
    return metrics


def all_weights(states: dict[str, TrainState]) -> dict[str, dict]:
    """Return the weights of every backbone."""
    return {name: state.weights for name, state in states.items()}


def scheduled_values(algo: LearnerSettings, step: jax.Array | int, steps: int) -> Scheduled:
    """Return values that change over the run, such as the entropy coefficient."""
    if algo.entropy_ratio == 1.0:
        return Scheduled(algo.entropy_coef, step)
    done = step / max(steps - 1, 1)
    return Scheduled(algo.entropy_coef * (1.0 + (algo.entropy_ratio - 1.0) * done), step)
