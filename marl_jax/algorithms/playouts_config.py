"""Settings and checks of policy improvement by playouts. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import PolicyGradientSettings, check_known_bot, check_named_actions
from marl_jax.fields import TEXT
from marl_jax.learning.settings import LearnerSettings, redefault, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayoutSettings(LearnerSettings):
    """Settings of policy improvement by playouts."""

    bot: str = setting("", TEXT, "Bot that finishes the games; '': the best one of the game")
    entropy_coef: float = redefault(PolicyGradientSettings, "entropy_coef", 0.01)
    entropy_ratio: float = redefault(PolicyGradientSettings, "entropy_ratio", 0.1)


def check(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config with playouts."""
    yield from check_named_actions(c)
    if not c.task.name:
        yield from check_known_bot(c)
