"""Moving averages of the policy's weights and of the return of each seat.

They are checkpointed and resumed with the rest of the train state:

- `magnet`: an exponential moving average of the weights that determine how the policy acts (the adapters under LoRA).
  `algo.magnet_coef` penalizes the distance to it.
- `target`: the same of all trained weights, from which the targets of Q-values are computed (`algo.target_decay`).
- `baseline`: float32 [P], an exponential moving average of the returns of each seat, which `algo.baseline=seat_ema`
  subtracts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents.policy import Policy
from marl_jax.learning.settings import LearnerSettings
from marl_jax.samples import Samples


def init(policy: Policy, trained: dict, algo: LearnerSettings, n_seats: int) -> dict:
    """Initialize the averages that an algorithm needs; {} if it needs none."""
    averages = {}
    if trained and algo.magnet_coef:
        averages["magnet"] = jax.tree.map(jnp.copy, policy.acting_params(trained))
    if trained and algo.target_decay:
        averages["target"] = jax.tree.map(jnp.copy, trained)
    if trained and algo.baseline == "seat_ema":
        averages["baseline"] = jnp.zeros((n_seats,), jnp.float32)
    return averages


def ema_update(policy: Policy, averages: dict, trained: dict, samples: Samples, algo: LearnerSettings) -> dict:
    """Update the averages after a step.

    Args:
        policy: The policy.
        averages: The averages before the step.
        trained: The weights after the step.
        samples: The samples of the step, with their returns.
        algo: Settings of the algorithm.
    """
    followed = {}
    if "magnet" in averages:
        followed["magnet"] = _follow(averages["magnet"], policy.acting_params(trained), algo.magnet_decay)
    if "target" in averages:
        followed["target"] = _follow(averages["target"], trained, algo.target_decay)
    if "baseline" in averages:
        followed["baseline"] = follow_returns(averages["baseline"], samples, algo.baseline_decay)
    return followed


def _follow(slow: dict, now: dict, keep: float) -> dict:
    """Move average weights toward the present ones."""
    return jax.tree.map(lambda slow, now: (keep * slow + (1 - keep) * now).astype(slow.dtype), slow, now)


def follow_returns(baseline: jax.Array, samples: Samples, decay: float) -> jax.Array:
    """Move each seat's average towards the mean return of its weighted completions, float32 [P].

    Seats without completions keep their average.
    """
    own = jax.nn.one_hot(samples.seat, len(baseline)) * samples.loss_weights[..., None]  # [N, S, P]
    count = jnp.sum(own, axis=(0, 1))
    mean = jnp.sum(own * samples.at_first(samples.returns)[..., None], axis=(0, 1)) / jnp.maximum(count, 1e-8)
    return jnp.where(count > 0, decay * baseline + (1 - decay) * mean, baseline)
