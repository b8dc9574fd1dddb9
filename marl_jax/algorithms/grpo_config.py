"""Config fields and checks of GRPO. Importing this does not import JAX."""

from __future__ import annotations

from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import (
    COMMON,
    PACK,
    check_no_other_players,
    check_overlong,
    check_packing,
    check_train_turns,
)
from marl_jax.errors import not_divisible
from marl_jax.fields import SWITCH, Field, choice, integer, number, with_defaults

FIELDS = {
    **with_defaults(COMMON, epochs=1, loss_agg="sequence", entropy_coef=0.0),
    **PACK,
    "group_size": Field(8, integer(2, 1 << 16), "samples that are compared with each other"),
    "group_std": Field(True, SWITCH, "group advantages are divided by their standard deviation; False is Dr.GRPO"),
    "group_baseline": Field("mean", choice("mean", "leave_one_out"), "leave_one_out is RLOO"),
    "normalize": Field(
        "group",
        choice("group", "agent", "batch"),
        "standard deviation per group, per agent (Dr. MAS) or over all informative groups of the batch (ScaleRL)",
    ),
    "std_ddof": Field(0, integer(0, 1), "the variance of a group is divided by K (0) or by K - 1 (1, as torch does)"),
    "filter_zero_std_groups": Field(True, SWITCH, "groups whose rewards are all equal do not contribute to the loss"),
    "signal_frac": Field(
        0.5,
        number(0, 1),
        "share of informative completions, among these and the solved ones, from which the full learning rate "
        "applies; below it, the rate falls with the square root of the share; 0 is off",
    ),
    "minibatch_groups": Field(True, SWITCH, "keep the completions of a group in one minibatch"),
    "refill": Field(
        0, integer(0), "maximum number of extra rollouts per update that replace groups whose rewards are all equal"
    ),
}


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
