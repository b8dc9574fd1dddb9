"""AdamW with a schedule, global-norm clipping and a separate learning rate for the critic."""

from __future__ import annotations

from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from marl_jax.learning.moments import scale_by_adam


def schedule(optim: ConfigDict, updates: int) -> optax.Schedule:
    """Learning rate by update: up over the warm-up, then constant, or down to `min_lr_ratio` of it."""
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


def make_optimizer(optim: ConfigDict, steps: int, updates_per_step: int) -> optax.GradientTransformation:
    """AdamW with clipping by the global norm; the critic may have its own learning rate."""
    optim = _by_updates(optim, updates_per_step)
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


def learning_rate(optim: ConfigDict, steps: int, updates_per_step: int, state: Any) -> jax.typing.ArrayLike | None:
    """Return the scheduled rate of the next optimizer step; None for an optimizer without a schedule.

    Args:
      state: the optimizer's state, whose count says how far the schedule has advanced.
    """
    is_schedule = lambda x: isinstance(x, optax.ScaleByScheduleState)  # noqa: E731
    found = [x for x in jax.tree.leaves(state, is_leaf=is_schedule) if is_schedule(x)]
    return schedule(_by_updates(optim, updates_per_step), steps * updates_per_step)(found[0].count) if found else None


def _by_updates(optim: ConfigDict, updates_per_step: int) -> ConfigDict:
    return ConfigDict({**optim, "warmup_updates": optim.warmup * updates_per_step})


def decays(params: dict) -> dict:
    """Which weights decay, as a tree of bools: matrices, and neither norms nor biases, stacked over layers or not."""
    spared = lambda path: any(word in jax.tree_util.keystr(path[-1:]) for word in ("norm", "bias"))  # noqa: E731
    return jax.tree_util.tree_map_with_path(lambda path, x: x.ndim > 1 and not spared(path), params)
