"""Averages that follow training without a gradient: a slow copy of the policy, and what each seat usually earns.

They are part of the train state, so they are checkpointed and resumed with it:

    magnet    the weights that decide how the policy acts (under LoRA its adapters), an exponential average over the
              steps: what `algo.magnet_coef` holds the policy close to
    baseline  float32 [P], an exponential average of the returns of each seat: what `algo.baseline=seat_ema` subtracts
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents.policy import Policy
from marl_jax.learning.settings import LearnerSettings
from marl_jax.samples import Samples


def init(policy: Policy, trained: dict, algo: LearnerSettings, n_seats: int) -> dict:
    """The averages that an algorithm asks for, as they are before the first update; {} where there are none."""
    averages = {}
    if trained and algo.magnet_coef:
        averages["magnet"] = jax.tree.map(jnp.copy, policy.acting_params(trained))
    if trained and algo.baseline == "seat_ema":
        averages["baseline"] = jnp.zeros((n_seats,), jnp.float32)
    return averages


def ema_update(policy: Policy, averages: dict, trained: dict, samples: Samples, algo: LearnerSettings) -> dict:
    """The averages after a step: new weights, and the samples it was made from, with their returns."""
    followed = {}
    if "magnet" in averages:
        keep = algo.magnet_decay
        followed["magnet"] = jax.tree.map(
            lambda slow, now: (keep * slow + (1 - keep) * now).astype(slow.dtype),
            averages["magnet"],
            policy.acting_params(trained),
        )
    if "baseline" in averages:
        followed["baseline"] = follow_returns(averages["baseline"], samples, algo.baseline_decay)
    return followed


def follow_returns(baseline: jax.Array, samples: Samples, decay: float) -> jax.Array:
    """float32 [P]: each seat's average, moved towards the mean return of its answers that count, if there are any."""
    own = jax.nn.one_hot(samples.seat, len(baseline)) * samples.loss_weights[..., None]  # [N, S, P]
    count = jnp.sum(own, axis=(0, 1))
    mean = jnp.sum(own * samples.at_first(samples.returns)[..., None], axis=(0, 1)) / jnp.maximum(count, 1e-8)
    return jnp.where(count > 0, decay * baseline + (1 - decay) * mean, baseline)
