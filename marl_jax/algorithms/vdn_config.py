"""Settings and checks of VDN. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses

from marl_jax.algorithms.common_config import check_factored
from marl_jax.fields import number
from marl_jax.learning.settings import LearnerSettings, setting

check = check_factored


@dataclasses.dataclass(frozen=True, kw_only=True)
class VDNSettings(LearnerSettings):
    """Settings of VDN."""

    gamma: float = setting(1.0, number(0, 1), "Discount factor per round")
    lam: float = setting(
        0.6, number(0, 1), "Weight of the next target against the next best value; 0 for uniform exploration"
    )
    epsilon: float = setting(
        0.1, number(0, 1), "Probability of a random action in training; others are sampled by value"
    )
    target_decay: float = setting(
        0.9, number(0, 1, above=True), "Decay per step of the moving average that computes targets"
    )

    critic: str = "q"
    joint: bool = True
    minibatch_groups: bool = True
