"""Settings and checks of GRPO. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import (
    PolicyGradientSettings,
    check_legal_coef,
    check_no_other_players,
    check_overlong,
    check_packing,
    check_train_turns,
    pack_setting,
)
from marl_jax.errors import not_divisible
from marl_jax.fields import SWITCH, choice, integer, number
from marl_jax.learning.settings import redefault, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSettings(PolicyGradientSettings):
    """Settings of the algorithms that compare completions within groups."""

    epochs: int = redefault(PolicyGradientSettings, "epochs", 1)
    loss_agg: str = redefault(PolicyGradientSettings, "loss_agg", "sequence")
    entropy_coef: float = redefault(PolicyGradientSettings, "entropy_coef", 0.0)
    group_size: int = setting(8, integer(2, 1 << 16), "Number of completions or episodes per group")
    group_std: bool = setting(
        True, SWITCH, "Whether advantages are divided by the standard deviation of the rewards; False: Dr. GRPO"
    )
    group_baseline: str = setting("mean", choice("mean", "leave_one_out"), "Baseline of a group; leave_one_out: RLOO")
    normalize: str = setting(
        "group",
        choice("group", "agent", "batch"),
        "Scope of the standard deviation; agent: per agent (Dr. MAS); batch: all informative groups (ScaleRL)",
    )
    std_ddof: int = setting(
        0,
        integer(0, 1),
        "Degrees of freedom of the variance, which is divided by group size - std_ddof (1: as in PyTorch)",
    )
    filter_zero_std_groups: bool = setting(True, SWITCH, "Whether groups with equal rewards are excluded from the loss")
    signal_frac: float = setting(
        0.5,
        number(0, 1),
        "Fraction of informative completions, among the informative and the solved ones, below which the learning rate "
        "is reduced in proportion to its square root; 0 disables this",
    )
    minibatch_groups: bool = setting(True, SWITCH, "Whether the completions of a group stay in one minibatch")
    refill: int = setting(
        0, integer(0), "Maximum number of extra rollouts per update to replace groups with equal rewards"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOSettings(GroupSettings):
    """Settings of GRPO."""

    pack: int = pack_setting()


def check(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config with GRPO."""
    from envs.games import registry as games

    yield from check_train_turns(c)
    yield from check_overlong(c)
    yield from check_legal_coef(c)
    yield from check_packing(c)
    yield from check_no_other_players(c, "compares the learner with itself")
    field, size = ("task.n_episodes", c.task.n_episodes) if c.task.name else ("rollout.num_envs", c.rollout.num_envs)
    if size % c.algo.group_size:
        yield not_divisible(field, size, c.algo.group_size, "algo.group_size")
    if c.task.name:
        return
    longest = games.make(c.env.name, **c.env.params.to_dict()).max_turns
    if c.rollout.unroll_length < longest:
        yield (
            f"config.rollout.unroll_length is {c.rollout.unroll_length} with algo.name 'grpo', but must be >= "
            f"{longest} to finish every episode of {c.env.name}"
        )
