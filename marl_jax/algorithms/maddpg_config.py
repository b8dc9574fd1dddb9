"""Settings and checks of MADDPG. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses

from marl_jax.algorithms.common_config import PolicyGradientSettings, check_named_actions
from marl_jax.fields import choice, number
from marl_jax.learning.settings import LearnerSettings, redefault, setting

check = check_named_actions


@dataclasses.dataclass(frozen=True, kw_only=True)
class MADDPGSettings(LearnerSettings):
    """Settings of MADDPG."""

    gamma: float = setting(1.0, number(0, 1), "Discount factor per turn of the agent")
    lam: float = setting(0.8, number(0, 1), "Weight of the next return against the next value in the critic's targets")
    gradient: str = setting(
        "exact",
        choice("exact", "gumbel"),
        "Gradient of the policy; exact: sum over all actions; gumbel: straight-through Gumbel-softmax, which is biased",
    )
    gumbel_temperature: float = setting(1.0, number(0, above=True), "Temperature of the relaxation if gradient=gumbel")
    entropy_coef: float = redefault(PolicyGradientSettings, "entropy_coef", 0.01)
    entropy_ratio: float = redefault(PolicyGradientSettings, "entropy_ratio", 1.0)
    value_coef: float = setting(0.5, number(0), "Weight of the critic's loss")
    target_decay: float = setting(
        0.9, number(0, 1, above=True), "Decay per step of the moving average that computes targets"
    )

    critic: str = "q_central"
