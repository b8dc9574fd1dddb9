"""The update: epochs over minibatches in one XLA program, with the train state donated. It knows no algorithm by name.

A minibatch may be cut into parts whose gradients are added before the optimizer moves. Rows that do not contribute to
the loss (bots, groups whose answers were all paid alike) are gathered in the last parts, and a part of nothing else is
not read. A policy without an answer in a minibatch is not changed by it: neither its parameters nor its moments, which
would go on moving it. An update whose loss or gradient is not finite changes nothing and is counted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from marl_jax.agents import packing, scoring
from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.devices import placement
from marl_jax.learning.settings import LearnerSettings
from marl_jax.samples import Samples, split
from marl_jax.samples import rows as take
from models.sharding import num_shards


class Scheduled(NamedTuple):
    """Values that change over a run: arrays, or numbers where they are constant."""

    entropy_coef: jax.Array | float = 0.0


class Objective:
    """Base class of the losses of algorithms; `loss_weights_for` and `loss` are required."""

    def loss_weights_for(self, samples: Samples, algo: Any) -> Any:
        """Compute the weights with which the terms of the loss are summed, a tree of arrays [N, …].

        Called once for a whole minibatch. The weights hold the means of the loss, so that the gradients of the parts of
        a minibatch add up to its own.
        """
        raise NotImplementedError

    def loss(
        self, samples: Samples, weighed: Any, scores: Scores, algo: Any, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows and metrics, sums with the given weights; "loss" is one of the metrics."""
        raise NotImplementedError

    def minibatch_metrics(self, samples: Samples, n_policies: int) -> dict[str, jax.Array]:
        """Compute metrics of one whole minibatch; entries of shape [n_policies] are reported per policy."""
        return {}

    def summary(self, samples: Samples, algo: Any) -> dict[str, jax.Array]:
        """Compute metrics of all rows, once per update."""
        return {}


EXTREMES = {"log_ratio_max": (jnp.maximum, jnp.max), "log_ratio_min": (jnp.minimum, jnp.min)}
"""Metrics that are not summed over the parts of a minibatch and not averaged over minibatches."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that an update reads and writes.

    trained    weights that learn: {"model" or "adapters", "critic"}
    frozen     weights that are only read: {"model"} under LoRA, {"reference"} with a KL
    optimizer  the optimizer's state
    skipped    int32 [], updates skipped in a row because something was not finite
    averages   what follows without a gradient: {"magnet", "baseline"}, see `averages.py`
    lr_factor  float32 [n], factor on the learning rate of each policy, which the guard lowers; see `stability.py`
    """

    trained: dict
    frozen: dict
    optimizer: Any
    skipped: jax.Array
    averages: dict = dataclasses.field(default_factory=dict)
    lr_factor: jax.Array | None = None

    @property
    def weights(self) -> dict:
        """All weights, for `Policy`."""
        return {**self.frozen, **self.averages, **self.trained}


def new_train_state(
    trained: dict,
    frozen: dict,
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None = None,
    averages: Callable[[dict], dict] = lambda trained: {},
) -> TrainState:
    """A train state before the first update; on a mesh, what belongs to a parameter lies where it does.

    averages  from what is trained to what follows it without a gradient
    """

    def begin(trained):
        return optimizer.init(trained), jnp.zeros((), jnp.int32), averages(trained), jnp.ones(n_policies(trained))

    if mesh is None:
        return TrainState(trained, frozen, *begin(trained))
    places = functools.partial(placement.like_parameters, mesh, parameters=trained)
    return TrainState(trained, frozen, *placement.init_sharded(begin, places, trained))


def n_policies(trained: dict) -> int:
    """Return the number of policies that share a set of trained weights: its adapters, or 1."""
    adapters = jax.tree.leaves(trained.get("adapters", {}))  # [L, n, …, …]
    return adapters[0].shape[1] if adapters else 1


def make_update(
    policy: Policy, optimizer: optax.GradientTransformation, objective: Objective, algo: LearnerSettings
) -> Callable:
    """Build `update(train_state, samples, key, lr_scale, scheduled) -> (train_state, metrics)`.

    The samples have their advantages already. `lr_scale`, float32 [n] with one entry per policy, multiplies the step
    of the optimizer; None leaves it as it is. `scheduled` are the values of this step, by default those of `algo`.
    """

    def update(
        state: TrainState,
        samples: Samples,
        key: jax.Array,
        lr_scale: jax.Array | None = None,
        scheduled: Scheduled | None = None,
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        size = samples.n // algo.minibatches
        scheduled = Scheduled(algo.entropy_coef) if scheduled is None else scheduled

        def minibatch(state, picked):
            picked = take(samples, picked)
            grads, metrics = summed_gradients(policy, objective, algo, scheduled, state, picked)
            learns = learning(policy, picked)
            state, metrics = apply_gradients(policy, optimizer, state, grads, metrics, learns, lr_scale)
            metrics |= objective.minibatch_metrics(picked, len(learns))
            return state, {**metrics, "active": jnp.any(picked.active())}

        order = rows_by_group if algo.minibatch_groups else rows_at_random
        orders = jax.vmap(lambda k: order(k, samples))(jax.random.split(key, algo.epochs))
        picks = orders[:, : size * algo.minibatches].reshape(algo.epochs * algo.minibatches, size)
        if algo.grad_accum_steps > 1 and not algo.pack:
            picks = active_first(picks, samples.active(), algo.grad_accum_steps)
        state, found = jax.lax.scan(minibatch, state, picks)
        active, skipped = found.pop("active"), found.pop("skipped")
        extremes = {name: EXTREMES[name][1](found.pop(name)) for name in EXTREMES.keys() & found.keys()}
        by_policy = {name: found.pop(name) for name in [name for name, x in found.items() if x.ndim > 1]}
        metrics = {name: _mean(x, active) for name, x in found.items()} | extremes  # empty minibatches do not count
        for name, values in by_policy.items():  # [minibatches, n]
            metrics |= {f"{name}_min": jnp.min(values, axis=0), f"{name}_max": jnp.max(values, axis=0)}
        if "logprob_diff" in found:  # before the first step, learner and sampler should agree
            metrics["logprob_diff"] = found["logprob_diff"][jnp.argmax(active)]
        metrics |= {
            "skipped": jnp.sum(skipped),
            "skipped_in_a_row": state.skipped,
            "completions_trained": jnp.sum(samples.loss_weights > 0),
            "optimizer_steps": jnp.sum(active & (skipped == 0)),
        }
        return state, metrics | objective.summary(samples, algo)

    return update


def rows_at_random(key: jax.Array, samples: Samples) -> jax.Array:
    """Draw a random order of the rows, int32 [N]."""
    return jax.random.permutation(key, samples.n)


def rows_by_group(key: jax.Array, samples: Samples) -> jax.Array:
    """Draw a random order of the groups and return their rows in that order, int32 [N].

    Minibatches cut from this order hold whole groups where their size is a multiple of the rows of a group. A group
    that is split leaves one minibatch with its successes and another with its failures. Rows without a completion
    are spread over all minibatches.
    """
    exists = samples.completion_lengths[:, 0] > 0
    label = jnp.where(exists, samples.group[:, 0], samples.n_groups + jnp.arange(samples.n))
    return jnp.argsort(jax.random.permutation(key, samples.n_groups + samples.n)[label], stable=True)


def update_active_rows(update: Callable, state: TrainState, samples: Samples, key: jax.Array, max_rows: int) -> tuple:
    """`update(state, samples, key)`, on the active rows only where at most `max_rows` of them are.

    Rows of other models, bots and frozen policies would be read for nothing. How many there are is known only when the
    program runs, so it has both ways in it.
    """
    if max_rows >= samples.n:
        return update(state, samples, key)
    active = samples.active()
    order = jnp.argsort(~active, stable=True)[:max_rows]
    return jax.lax.cond(
        jnp.sum(active) <= max_rows,
        lambda: update(state, take(samples, order), key),
        lambda: update(state, samples.replace(completion_at=None), key),
    )


def active_first(picks: jax.Array, active: jax.Array, parts: int) -> jax.Array:
    """Rows of minibatches, int32 [M, N], in the order from which `split` puts the active ones into its first parts.

    active  bool [...], of every row by its number
    """
    order = jnp.argsort(~active[picks], axis=1, stable=True)
    picks = jnp.take_along_axis(picks, order, axis=1).reshape(len(picks), parts, -1)
    return jnp.swapaxes(picks, 1, 2).reshape(len(picks), -1)


@jax.named_scope("forward_backward")
def summed_gradients(
    policy: Policy,
    objective: Objective,
    algo: LearnerSettings,
    scheduled: Scheduled,
    state: TrainState,
    samples: Samples,
):
    """(gradients in float32, metrics) of a minibatch, by parts."""
    weighed = objective.loss_weights_for(samples, algo)
    trained = policy.cast_for_compute(state.trained)  # once, not in every layer of every part

    def loss(trained, samples, weighed, packed=None):
        scores = scoring.score(policy, {**state.frozen, **trained}, samples, packed)
        return objective.loss(samples, weighed, scores, algo, scheduled)

    def part(*given):
        (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(trained, *given)
        return jax.tree.map(lambda x: x.astype(jnp.float32), grads), metrics

    given = (samples, weighed)
    if algo.pack:
        return _over_packed_rows(part, algo, *given)
    if algo.grad_accum_steps == 1:
        return part(*given)
    parts = split(given, algo.grad_accum_steps)
    active = jax.vmap(lambda samples: jnp.any(samples.active()))(parts[0])
    used = jnp.max(jnp.where(active, jnp.arange(1, len(active) + 1), 0))
    return _sum_over(used, part, lambda i: jax.tree.map(lambda x: x[i], parts))


def _over_packed_rows(part: Callable, algo: LearnerSettings, samples: Samples, weighed):
    """The same over packed rows, as many parts as they fill, `algo.grad_accum_steps` at most."""
    multiple = algo.grad_accum_steps * num_shards("B", samples.n)
    places = packing.plan(samples, algo.pack, samples.active(), multiple)
    size = len(places.table) // algo.grad_accum_steps

    def one(i):
        rows = places.cut(i * size, size)
        picked, weights = rows.pick((samples, weighed))
        filled = rows.filled.reshape(-1)
        weights = jax.tree.map(lambda x: jnp.where(filled.reshape(-1, *(1,) * (x.ndim - 1)), x, 0.0), weights)
        return picked, weights, rows

    return _sum_over(-(-places.used() // size), part, one)


def _sum_over(count: jax.Array, part: Callable, given: Callable[[int], tuple]):
    """The sum of part(*given(i)) for i < count: a loop, because sums that go into a branch are copied there."""
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, *given(0)))

    def add(i, total):
        (all_grads, all_metrics), (grads, metrics) = total, part(*given(i))
        join = lambda name, x: jax.tree.map(EXTREMES.get(name, (jnp.add,))[0], all_metrics[name], x)  # noqa: E731
        joined = {name: join(name, x) for name, x in metrics.items()}
        return jax.tree.map(jnp.add, all_grads, grads), joined

    return jax.lax.fori_loop(0, count, add, nothing)


def learning(policy: Policy, samples: Samples) -> jax.Array:
    """The adapters with an answer that contributes to the loss, bool [n]; without adapters bool [1], of the model."""
    if policy.lora is None:
        return jnp.any(samples.active())[None]
    mine = samples.policy[:, None] == jnp.arange(policy.lora.n)
    return jnp.any(mine & samples.active()[:, None], axis=0)


@jax.named_scope("optimizer")
def apply_gradients(
    policy: Policy,
    optimizer,
    state: TrainState,
    grads: dict,
    metrics: dict,
    learns: jax.Array,
    lr_scale: jax.Array | None = None,
) -> tuple[TrainState, dict]:
    """Take one optimizer step and return the new train state and metrics.

    A loss or gradient that is not finite changes nothing.

    Args:
      learns: bool [n], the policies with a completion in the minibatch. The others keep their parameters and moments.
        The optimizer's counts, which the learning-rate schedule reads, always advance.
      lr_scale: float32 [n], factor on the step of each policy. It is applied after Adam, which would undo a factor
        on the gradients.
    """
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(metrics["loss"])
    updates, moments = optimizer.update(grads, state.optimizer, state.trained)
    if lr_scale is not None:
        updates = map_policies(lambda scale, x: x * scale.astype(x.dtype), lr_scale, updates)
    trained = optax.apply_updates(state.trained, policy.mask_frozen_adapters(updates))
    state = dataclasses.replace(
        state,
        trained=where_policies(finite & learns, trained, state.trained),
        optimizer=where_policies(finite & learns, moments, state.optimizer, counts=finite),
        skipped=jnp.where(finite, 0, state.skipped + 1),
    )
    return state, {**metrics, "grad_norm": norm, "skipped": (~finite).astype(jnp.int32)}


def map_policies(function: Callable, per_policy: jax.Array, tree: Any) -> Any:
    """Apply `function(value, array)` to every array of a tree of trained weights, with the value of its policy.

    Args:
      per_policy: [n]. Arrays of adapters are [L, n, …, …]; weights that all policies share get the largest value.
    """

    def one(path, x):
        return function(per_policy[:, None, None] if _named("adapters", path) else jnp.max(per_policy), x)

    return jax.tree.map_with_path(one, tree)


def where_policies(chosen: jax.Array, new: Any, old: Any, counts: jax.Array | None = None) -> Any:
    """Select the arrays of some policies from `new` and those of the others from `old`.

    Args:
      chosen: bool [n]. Weights that all policies share are new if any policy is chosen.
      new, old: trees of trained weights, or optimizer states over them.
      counts: bool [], the same choice for the counts of an optimizer; by default whether any policy is chosen.
    """

    def one(path, new, old):
        if _named("adapters", path):
            return jnp.where(chosen[:, None, None], new, old)
        is_weight = any(_named(name, path) for name in ("model", "critic"))
        return jnp.where(jnp.any(chosen) if is_weight or counts is None else counts, new, old)

    return jax.tree.map_with_path(one, new, old)


def _named(name: str, path: tuple) -> bool:
    return any(getattr(key, "key", None) == name for key in path)


def _mean(x, weights):
    return jnp.sum(x * weights) / jnp.maximum(jnp.sum(weights), 1e-8)
