"""AdamW with a schedule, global-norm clipping and a separate learning rate for the critic."""

from __future__ import annotations

from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from marl_jax.learning.moments import scale_by_adam


def schedule(optim: ConfigDict, updates: int) -> optax.Schedule:
    """Build the learning-rate schedule, indexed by update.

    The rate warms up linearly, then stays constant or decays to `min_lr_ratio` times its peak.
    """
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
    # The warm-up does not start at 0, which would waste a rollout.
    return optax.join_schedules([optax.linear_schedule(optim.lr / start, optim.lr, max(start - 1, 1)), after], [start])


def make_optimizer(optim: ConfigDict, steps: int, updates_per_step: int) -> optax.GradientTransformation:
    """Build AdamW with global-norm clipping and an optional learning rate for the critic.

    Args:
        optim: `config.optim`.
        steps: Number of training steps.
        updates_per_step: Number of optimizer updates per training step.
    """
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
    """Return the scheduled rate of the next optimizer step; None without a schedule.

    Args:
        optim: `config.optim`.
        steps: Number of training steps.
        updates_per_step: Number of optimizer updates per training step.
        state: The optimizer's state, which counts the updates so far.
    """
    is_schedule = lambda x: isinstance(x, optax.ScaleByScheduleState)  # noqa: E731
    states = [x for x in jax.tree.leaves(state, is_leaf=is_schedule) if is_schedule(x)]
    return schedule(_by_updates(optim, updates_per_step), steps * updates_per_step)(states[0].count) if states else None


def _by_updates(optim: ConfigDict, updates_per_step: int) -> ConfigDict:
    """Convert the warm-up from training steps to updates."""
    return ConfigDict({**optim, "warmup_updates": optim.warmup * updates_per_step})


def decays(params: dict) -> dict:
    """Mark the weights that decay: matrices, but neither norms nor biases."""
    spared = lambda path: any(word in jax.tree_util.keystr(path[-1:]) for word in ("norm", "bias"))  # noqa: E731
    return jax.tree_util.tree_map_with_path(lambda path, x: x.ndim > 1 and not spared(path), params)
