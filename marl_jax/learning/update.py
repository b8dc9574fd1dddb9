"""The update: epochs over minibatches in one XLA program, with the learner's state donated.

A minibatch may be cut into parts whose gradients are added before the optimiser moves. Rows that teach nothing (bots,
groups whose answers were all paid alike) are gathered in the last parts, and a part of nothing else is not read. An
update whose loss or gradient is not finite changes nothing and is counted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from marl_jax.agents import packing
from marl_jax.agents.policy import Policy
from marl_jax.devices import placement
from marl_jax.learning import losses
from marl_jax.learning.moments import scale_by_adam
from marl_jax.learning.ppo import value_mask
from marl_jax.samples import Samples, split, take
from models.sharding import ways


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that an update reads and writes.

    trained    weights that learn: {"model" or "adapters", "critic"}
    frozen     weights that are only read: {"model"} under LoRA, {"reference"} with a KL
    optimiser  the optimiser's state
    skipped    int32 [], updates skipped in a row because something was not finite
    """

    trained: dict
    frozen: dict
    optimiser: Any
    skipped: jax.Array

    @property
    def weights(self) -> dict:
        """All weights, for `Policy`."""
        return {**self.frozen, **self.trained}


def new_train_state(
    trained: dict, frozen: dict, optimiser: optax.GradientTransformation, mesh: Mesh | None = None
) -> TrainState:
    """A learner that has learnt nothing yet; on a mesh, what belongs to a parameter lies where it does."""
    begin = lambda trained: (optimiser.init(trained), jnp.zeros((), jnp.int32))  # noqa: E731
    if mesh is None:
        return TrainState(trained, frozen, *begin(trained))
    places = functools.partial(placement.like_parameters, mesh, parameters=trained)
    return TrainState(trained, frozen, *placement.init_sharded(begin, places, trained))


def schedule(optim: ConfigDict, updates: int) -> optax.Schedule:
    """Learning rate by update: up over the warm-up, then constant, or down to `final` of it at the last update."""
    start = optim.warmup_updates
    rest = max(updates - start, 1)
    if optim.schedule == "constant":
        after = optax.constant_schedule(optim.lr)
    elif optim.schedule == "linear":
        after = optax.linear_schedule(optim.lr, optim.lr * optim.min_lr_ratio, rest)
    else:
        after = optax.cosine_decay_schedule(optim.lr, rest, alpha=optim.min_lr_ratio)
    if not start:
        return after
    # The first update already moves: a rate of exactly 0 would waste a rollout.
    return optax.join_schedules([optax.linear_schedule(optim.lr / start, optim.lr, max(start - 1, 1)), after], [start])


def make_optimiser(optim: ConfigDict, steps: int, updates_per_step: int) -> optax.GradientTransformation:
    """AdamW with clipping by the global norm; the critic may have its own learning rate."""
    optim = ConfigDict({**optim, "warmup_updates": optim.warmup * updates_per_step})
    ratio = optim.critic_lr / optim.lr if optim.critic_lr else 1.0

    def critic_rate(updates, _):
        return {k: jax.tree.map(lambda x: x * ratio, v) if k == "critic" else v for k, v in updates.items()}

    return optax.chain(
        optax.clip_by_global_norm(optim.max_grad_norm) if optim.max_grad_norm else optax.identity(),
        scale_by_adam(optim.b1, optim.b2, optim.eps, optim.adam_state_dtype),
        optax.add_decayed_weights(optim.weight_decay, mask=decays),
        optax.scale_by_learning_rate(schedule(optim, steps * updates_per_step)),
        optax.stateless(critic_rate),
    )


def decays(params: dict) -> dict:
    """Which weights decay, as a tree of bools: matrices, and neither norms nor biases, stacked over layers or not."""
    spared = lambda path: any(word in jax.tree_util.keystr(path[-1:]) for word in ("norm", "bias"))  # noqa: E731
    return jax.tree_util.tree_map_with_path(lambda path, x: x.ndim > 1 and not spared(path), params)


def make_update(policy: Policy, optimiser: optax.GradientTransformation, algo: ConfigDict) -> Callable:
    """`update(learner, rows, key) -> (learner, metrics)` for the rows [N, …] that an algorithm has prepared."""

    def update(train_state: TrainState, rows: Samples, key: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        runs = rows.n // policy.share  # rows that share a prompt stay together
        size = runs // algo.minibatches

        def minibatch(train_state, picked):
            picked = take(rows, (picked[:, None] * policy.share + jnp.arange(policy.share)).reshape(-1))
            train_state, figures = _learn(policy, optimiser, algo, train_state, picked)
            return train_state, {**figures, "active": jnp.any(picked.weights > 0)}

        orders = jax.vmap(lambda k: jax.random.permutation(k, runs))(jax.random.split(key, algo.epochs))
        picks = orders[:, : size * algo.minibatches].reshape(algo.epochs * algo.minibatches, size)
        if algo.grad_accum_steps > 1 and not algo.pack:
            active = jnp.any(rows.weights.reshape(runs, policy.share) > 0, axis=1)
            picks = active_first(picks, active, algo.grad_accum_steps)
        train_state, metrics = jax.lax.scan(minibatch, train_state, picks)
        active, skipped, logprob_diff = (metrics.pop(name) for name in ("active", "skipped", "logprob_diff"))
        figures = {name: _mean(x, active) for name, x in metrics.items()}  # minibatches of nothing say nothing
        figures |= {
            "logprob_diff": logprob_diff[
                jnp.argmax(active)
            ],  # before the first change, learner and sampler should agree
            "skipped": jnp.sum(skipped),
            "skipped_in_a_row": train_state.skipped,
            "rows": jnp.sum(rows.weights > 0),
        }
        if policy.critic == "none":
            return train_state, figures
        asked = value_mask(rows, algo.gae) * rows.weights[:, None]
        return train_state, figures | {
            "explained_variance": losses.explained_variance(rows.values, rows.returns, asked),
            "value": _mean(rows.values, asked),
            "return": _mean(rows.returns, asked),
        }

    return update


def active_first(picks: jax.Array, active: jax.Array, parts: int) -> jax.Array:
    """Rows of minibatches, int32 [M, N], in the order from which `split` puts those that teach into its first parts.

    teaches  bool [...], of every row by its number
    """
    order = jnp.argsort(~active[picks], axis=1, stable=True)
    picks = jnp.take_along_axis(picks, order, axis=1).reshape(len(picks), parts, -1)
    return jnp.swapaxes(picks, 1, 2).reshape(len(picks), -1)


@jax.named_scope("forward_backward")
def summed_gradients(policy, algo, train_state: TrainState, rows: Samples):
    """(gradients in float32, figures) of a minibatch, by parts."""
    policy_weights = losses.token_weights(rows.mask(), rows.weights, algo.loss_agg, rows.width)
    value_weights = losses.token_weights(value_mask(rows, algo.gae), rows.weights, "token")
    trained = policy.cast_for_compute(train_state.trained)  # once, not in every layer of every part

    def part(*given):
        (_, figures), grads = jax.value_and_grad(_objective, argnums=2, has_aux=True)(
            policy, algo, trained, train_state.frozen, *given
        )
        return _float32(grads), figures

    given = (rows, policy_weights, value_weights)
    if algo.pack:
        return _over_packed_rows(part, policy, algo, given)
    if algo.grad_accum_steps == 1:
        return part(*given)
    parts = split(given, algo.grad_accum_steps, policy.share)
    nothing = _zeros(part, *jax.tree.map(lambda x: x[0], parts))

    more = lambda total, *xs: jax.tree.map(jnp.add, total, part(*xs))  # noqa: E731

    def add(total, xs):
        return jax.lax.cond(jnp.any(xs[0].weights > 0), more, lambda total, *_: total, total, *xs), None

    return jax.lax.scan(add, nothing, parts)[0]


def _over_packed_rows(part, policy, algo, given):
    """The same over packed rows, as many parts as they fill, `algo.grad_accum_steps` at most."""
    multiple = algo.grad_accum_steps * ways("B", given[0].n)
    places = packing.plan(given[0], algo.pack, len(policy.prefix) if policy.keeps_prefix else 0, multiple)
    size = len(places.table) // algo.grad_accum_steps

    def one(i):
        rows = places.cut(i * size, size)
        number = rows.table.reshape(-1)
        samples, *weights = take(given, jnp.maximum(number, 0))
        weights = [jnp.where((number >= 0)[:, None], x, 0.0) for x in weights]
        return samples, *weights, rows

    add = lambda i, total: jax.tree.map(jnp.add, total, part(*one(i)))  # noqa: E731
    return jax.lax.fori_loop(0, -(-places.used() // size), add, _zeros(part, *one(0)))


def _zeros(part, *given):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, *given))


def _learn(policy, optimiser, algo, train_state: TrainState, rows: Samples):
    """One step of the optimiser on one minibatch."""
    return move(policy, optimiser, train_state, *summed_gradients(policy, algo, train_state, rows))


@jax.named_scope("optimiser")
def move(policy: Policy, optimiser, train_state: TrainState, grads: dict, figures: dict) -> tuple[TrainState, dict]:
    """The learner after a step along these gradients, and figures; a loss or gradient not finite changes nothing."""
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm) & jnp.isfinite(figures["loss"])
    changes, state = optimiser.update(grads, train_state.optimiser, train_state.trained)
    trained = optax.apply_updates(train_state.trained, policy.changes(changes))
    keep = lambda new, old: jnp.where(finite, new, old)  # noqa: E731
    train_state = TrainState(
        trained=jax.tree.map(keep, trained, train_state.trained),
        frozen=train_state.frozen,
        optimiser=jax.tree.map(keep, state, train_state.optimiser),
        skipped=jnp.where(finite, 0, train_state.skipped + 1),
    )
    return train_state, {**figures, "grad_norm": norm, "skipped": (~finite).astype(jnp.int32)}


def _objective(policy: Policy, algo, trained, frozen, rows: Samples, policy_weights, value_weights, packed=None):
    """The loss of some rows, and figures; both are sums over tokens with the minibatch's weights."""
    weights = {**frozen, **trained}
    scores = policy.score(weights, rows) if packed is None else policy.score_packed(weights, rows, packed)
    mask = rows.mask()
    old = rows.logps if rows.old_logps is None else rows.old_logps
    correction = losses.truncated_importance(old, rows.logps, algo.tis_clip) if algo.tis_clip else 1.0
    clip = losses.policy_loss(
        scores.logps, old, rows.advantages, mask, clip_low=algo.clip_low, clip_high=algo.clip_high,
        dual_clip=algo.dual_clip, ratio=algo.ratio, correction=correction,
    )  # fmt: skip
    value = losses.value_loss(scores.values, rows.values, rows.returns, algo.value_clip)
    total = lambda x: jnp.sum(policy_weights * x)  # noqa: E731
    figures = {
        "policy_loss": total(clip.loss),
        "value_loss": jnp.sum(value_weights * value),
        "entropy": total(scores.entropy),
        "ratio": total(clip.ratio),
        "clip_frac_low": total(clip.clip_frac_low),
        "clip_frac_high": total(clip.clip_frac_high),
        "approx_kl": total(losses.kl(scores.logps, old, "k3")),
        "logprob_diff": total(jnp.abs(scores.logps - rows.logps)),
    }
    loss = figures["policy_loss"]
    if algo.entropy_coef:
        loss -= algo.entropy_coef * figures["entropy"]
    if policy.critic != "none":
        loss += algo.value_coef * figures["value_loss"]
    if algo.kl_coef:
        figures["kl"] = total(losses.kl(scores.logps, rows.ref_logps, algo.kl_kind))
        loss += algo.kl_coef * figures["kl"] if algo.kl_in == "loss" else 0.0
    return loss, {**figures, "loss": loss}


def _float32(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def _mean(x, weights):
    return jnp.sum(x * weights) / jnp.maximum(jnp.sum(weights), 1e-8)
