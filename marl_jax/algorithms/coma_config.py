"""Settings and checks of COMA. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import (
    PolicyGradientSettings,
    check_cooperative,
    check_legal_coef,
    check_named_actions,
    check_train_turns,
)
from marl_jax.fields import number
from marl_jax.learning.settings import setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class COMASettings(PolicyGradientSettings):
    """Settings of COMA."""

    gamma: float = setting(1.0, number(0, 1), "Discount factor per turn of the agent")
    lam: float = setting(0.8, number(0, 1), "Weight of the next return against the next value in the critic's targets")
    value_coef: float = setting(0.5, number(0), "Weight of the critic's loss")
    target_decay: float = setting(
        0.9, number(0, 1, above=True), "Decay per step of the moving average that computes targets"
    )

    critic: str = "q_central"


def check(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config with COMA."""
    yield from check_train_turns(c)
    yield from check_legal_coef(c)
    yield from check_named_actions(c)
    yield from check_cooperative(c)
