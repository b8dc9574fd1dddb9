"""Settings and checks of GRPO. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import (
    PolicyGradientSettings,
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
    group_size: int = setting(8, integer(2, 1 << 16), "samples that are compared with each other")
    group_std: bool = setting(
        True, SWITCH, "group advantages are divided by their standard deviation; False is Dr.GRPO"
    )
    group_baseline: str = setting("mean", choice("mean", "leave_one_out"), "leave_one_out is RLOO")
    normalize: str = setting(
        "group",
        choice("group", "agent", "batch"),
        "standard deviation per group, per agent (Dr. MAS) or over all informative groups of the batch (ScaleRL)",
    )
    std_ddof: int = setting(
        0, integer(0, 1), "the variance of a group is divided by K (0) or by K - 1 (1, as torch does)"
    )
    filter_zero_std_groups: bool = setting(
        True, SWITCH, "groups whose rewards are all equal do not contribute to the loss"
    )
    signal_frac: float = setting(
        0.5,
        number(0, 1),
        "share of informative completions, among these and the solved ones, from which the full learning rate "
        "applies; below it, the rate falls with the square root of the share; 0 is off",
    )
    minibatch_groups: bool = setting(True, SWITCH, "keep the completions of a group in one minibatch")
    refill: int = setting(
        0, integer(0), "maximum number of extra rollouts per update that replace groups whose rewards are all equal"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOSettings(GroupSettings):
    """Settings of GRPO."""

    pack: int = pack_setting()


def check(c: ConfigDict) -> Iterator[str]:
    """GRPO: whole episodes from one start in groups."""
    from envs.games import registry as games

    yield from check_train_turns(c)
    yield from check_overlong(c)
    yield from check_packing(c)
    yield from check_no_other_players(c, "whose groups compare the learner with itself")
    field, size = ("task.n_episodes", c.task.n_episodes) if c.task.name else ("rollout.num_envs", c.rollout.num_envs)
    if size % c.algo.group_size:
        yield not_divisible(field, size, c.algo.group_size, "algo.group_size")
    if c.task.name:
        return
    longest = games.make(c.env.name, **c.env.params.to_dict()).max_turns
    if c.rollout.unroll_length < longest:
        yield (
            f"config.rollout.unroll_length is {c.rollout.unroll_length}, but an episode of {c.env.name} may "
            f"take {longest}, and "
            f"algo.name 'grpo' judges whole episodes; accepted: {longest} and more"
        )
