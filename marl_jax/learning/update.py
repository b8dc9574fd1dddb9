"""The update: epochs over minibatches in one XLA program, for any algorithm.

A minibatch may be split into parts whose gradients are added before the optimizer step. Rows that do not contribute to
the loss (bots, uninformative groups) are sorted into the last parts, and parts without other rows are skipped. A policy
without a completion in a minibatch keeps its parameters and its moments, since decaying moments would still move it. An
update whose loss or gradient is not finite changes nothing and is counted.
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
    """Values that change over a run: arrays, or numbers if they are constant.

    Attributes:
        entropy_coef: Weight of the entropy bonus.
        step: Index of the training step, for losses with noise.
    """

    entropy_coef: jax.Array | float = 0.0
    step: jax.Array | int = 0


class Objective:
    """Base class of the losses of algorithms; `loss_weights_for` and `loss` are required."""

    def loss_weights_for(self, samples: Samples, algo: Any) -> Any:
        """Compute the weights of the terms of the loss, a tree of arrays [N, …].

        Called once for a full minibatch. The weights contain the normalization of the loss, so that the gradients of
        the parts of a minibatch add up to its gradient.
        """
        raise NotImplementedError

    def loss(
        self, samples: Samples, weighed: Any, scores: Scores, algo: Any, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows, and metrics as sums with the given weights.

        "loss" is one of the metrics.
        """
        raise NotImplementedError

    def minibatch_metrics(self, samples: Samples, n_policies: int) -> dict[str, jax.Array]:
        """Compute metrics of one complete minibatch.

        Entries of shape [n_policies] are reported per policy.
        """
        return {}

    def summary(self, samples: Samples, algo: Any) -> dict[str, jax.Array]:
        """Compute metrics of all rows, once per update."""
        return {}


EXTREMES = {"log_ratio_max": (jnp.maximum, jnp.max), "log_ratio_min": (jnp.minimum, jnp.min)}
"""Metrics that are reduced by an extremum instead of being summed over parts and averaged over minibatches."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """State that an update reads and writes.

    Attributes:
        trained: Trained weights: {"model" or "adapters", "critic"}.
        frozen: Frozen weights: {"model"} under LoRA, {"reference"} with a KL penalty.
        optimizer: The optimizer's state.
        skipped: int32 [], number of consecutive updates that were skipped because of values that are not finite.
        averages: Moving averages: {"magnet", "baseline"}, see `averages.py`.
        lr_factor: float32 [n], factor on the learning rate of each policy, which the guard lowers, see `stability.py`.
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
    kept: Callable[[Callable[[], Any]], Any] = lambda jitted: jitted(),
) -> TrainState:
    """Create the train state before the first update.

    Args:
        trained: Trained weights.
        frozen: Frozen weights.
        optimizer: The optimizer.
        mesh: On a mesh, optimizer state and averages are sharded like their parameters.
        averages: Maps trained weights to their moving averages.
        kept: See `placement.init_sharded`.
    """

    def begin(trained):
        return optimizer.init(trained), jnp.zeros((), jnp.int32), averages(trained), jnp.ones(n_policies(trained))

    if mesh is None:
        return TrainState(trained, frozen, *begin(trained))
    places = functools.partial(placement.like_parameters, mesh, parameters=trained)
    return TrainState(trained, frozen, *placement.init_sharded(begin, places, trained, kept=kept))


def n_policies(trained: dict) -> int:
    """Return the number of policies in trained weights: the adapters, or 1."""
    adapters = jax.tree.leaves(trained.get("adapters", {}))  # [L, n, …, …]
    return adapters[0].shape[1] if adapters else 1


def make_update(
    policy: Policy, optimizer: optax.GradientTransformation, objective: Objective, algo: LearnerSettings
) -> Callable:
    """Build the update function.

    Returns:
        `update(train_state, samples, key, lr_scale, scheduled) -> (train_state, metrics)`. The samples must have
            advantages. `lr_scale`, float32 [n] with one entry per policy, multiplies the optimizer's step; None leaves
            it unchanged. `scheduled` are the values of this step, by default those of `algo`.
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
        state, stacked = jax.lax.scan(minibatch, state, picks)
        active, skipped = stacked.pop("active"), stacked.pop("skipped")
        extremes = {name: EXTREMES[name][1](stacked.pop(name)) for name in EXTREMES.keys() & stacked.keys()}
        by_policy = {name: stacked.pop(name) for name in [name for name, x in stacked.items() if x.ndim > 1]}
        metrics = {name: _mean(x, active) for name, x in stacked.items()} | extremes  # empty minibatches do not count
        for name, values in by_policy.items():  # [minibatches, n]
            metrics |= {f"{name}_min": jnp.min(values, axis=0), f"{name}_max": jnp.max(values, axis=0)}
        if "logprob_diff" in stacked:  # before the first step, where learner and sampler should agree
            metrics["logprob_diff"] = stacked["logprob_diff"][jnp.argmax(active)]
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
    """Draw a random order of the rows in which groups stay together, int32 [N].

    Minibatches taken from this order contain complete groups if their size is a multiple of the rows per group. A split
    group could leave one minibatch with its successes and another with its failures. Rows without a completion are
    spread over all minibatches unless they contribute to the loss.
    """
    exists = (samples.completion_lengths[:, 0] > 0) | samples.active()
    label = jnp.where(exists, samples.group[:, 0], samples.n_groups + jnp.arange(samples.n))
    return jnp.argsort(jax.random.permutation(key, samples.n_groups + samples.n)[label], stable=True)


def update_active_rows(update: Callable, state: TrainState, samples: Samples, key: jax.Array, max_rows: int) -> tuple:
    """Run `update(state, samples, key)` on the active rows only, if there are at most `max_rows`.

    Rows of other models, bots and frozen policies would be processed in vain. Their number is known only at run time,
    so the program contains both cases.
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
    """Reorder rows so that `split` puts active ones into its first parts.

    Args:
        picks: int32 [M, N], row indices of each minibatch.
        active: bool [...], whether each row is active, by row index.
        parts: Number of parts.
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
    """Compute float32 gradients and metrics of a minibatch, summed over its parts."""
    weighed = objective.loss_weights_for(samples, algo)
    trained = policy.cast_for_compute(state.trained)  # once, not in every layer of every part

    def loss(trained, samples, weighed, packed=None):
        scores = scoring.score(policy, {**state.frozen, **trained}, samples, packed, legal=algo.legal_coef > 0)
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
    """Compute `summed_gradients` over packed rows, in at most `algo.grad_accum_steps` parts."""
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
    """Sum part(*given(i)) for i < count.

    A loop is used because sums passed into a branch would be copied.
    """
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, *given(0)))

    def add(i, total):
        (all_grads, all_metrics), (grads, metrics) = total, part(*given(i))
        join = lambda name, x: jax.tree.map(EXTREMES.get(name, (jnp.add,))[0], all_metrics[name], x)  # noqa: E731
        joined = {name: join(name, x) for name, x in metrics.items()}
        return jax.tree.map(jnp.add, all_grads, grads), joined

    return jax.lax.fori_loop(0, count, add, nothing)


def learning(policy: Policy, samples: Samples) -> jax.Array:
    """Return the adapters with a completion that contributes to the loss, bool [n].

    Without adapters the result is bool [1], for the model.
    """
    if policy.lora is None:
        return jnp.any(samples.active())[None]
    is_own = samples.policy[:, None] == jnp.arange(policy.lora.n)
    return jnp.any(is_own & samples.active()[:, None], axis=0)


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
        policy: The policy.
        optimizer: The optimizer.
        state: The train state.
        grads: Gradients of the trained weights.
        metrics: Metrics of the minibatch, with "loss".
        learns: bool [n], the policies with a completion in the minibatch. The others keep their parameters and moments.
            The optimizer's counts, which the learning-rate schedule reads, always advance.
        lr_scale: float32 [n], factor on the step of each policy. It is applied after Adam, which would undo a factor on
            the gradients.
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
    """Apply `function(value, array)` to all arrays of trained weights, by policy.

    Args:
        function: Receives the value of the policy and an array of its weights.
        per_policy: [n]. Arrays of adapters are [L, n, …, …]; weights that all policies share get the largest value.
        tree: Trained weights.
    """

    def one(path, x):
        return function(per_policy[:, None, None] if _named("adapters", path) else jnp.max(per_policy), x)

    return jax.tree.map_with_path(one, tree)


def where_policies(chosen: jax.Array, new: Any, old: Any, counts: jax.Array | None = None) -> Any:
    """Select the arrays of some policies from `new` and those of the others from `old`.

    Args:
        chosen: bool [n]. Weights that all policies share are new if any policy is chosen.
        new: Trained weights, or an optimizer state over them.
        old: The same before the step.
        counts: bool [], the same choice for the counts of an optimizer; by default whether any policy is chosen.
    """

    def one(path, new, old):
        if _named("adapters", path):
            return jnp.where(chosen[:, None, None], new, old)
        is_weight = any(_named(name, path) for name in ("model", "critic"))
        return jnp.where(jnp.any(chosen) if is_weight or counts is None else counts, new, old)

    return jax.tree.map_with_path(one, new, old)


def _named(name: str, path: tuple) -> bool:
    """Return whether a tree path contains a dict key."""
    return any(getattr(key, "key", None) == name for key in path)


def _mean(x, weights):
    """Compute a weighted mean, 0 without weights."""
    return jnp.sum(x * weights) / jnp.maximum(jnp.sum(weights), 1e-8)
