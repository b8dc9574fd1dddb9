"""Settings and checks of reward models. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.preference_config import check_pair_file, held_out_setting
from marl_jax.fields import TEXT, choice, integer, number
from marl_jax.learning.settings import LearnerSettings, redefault, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardModelSettings(LearnerSettings):
    """Settings of a reward model."""

    minibatches: int = redefault(LearnerSettings, "minibatches", 1)
    critic: str = setting("head", choice("head"), "Critic; head: the score is a head on the model")
    data: str = setting("", TEXT, "JSONL file of pairs with prompt, chosen and rejected")
    n_pairs: int = setting(32, integer(1, 1 << 20), "Number of pairs per step")
    held_out: float = held_out_setting()
    center_coef: float = setting(
        0.0, number(0), "Weight of the squared scores in the loss, which keeps them near 0; 0 disables it"
    )

    group_size: int = 2


def check(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config that trains a reward model."""
    if not c.algo.data:
        yield "config.algo.data is '', but must be a JSONL file of pairs with prompt, chosen and rejected"
    yield from check_pair_file(c)
