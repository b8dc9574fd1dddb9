"""Settings and checks of PPO. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import (
    PolicyGradientSettings,
    check_overlong,
    check_packing,
    check_train_turns,
    has_free_answers,
    pack_setting,
)
from marl_jax.fields import choice, number
from marl_jax.learning.settings import setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOSettings(PolicyGradientSettings):
    """Settings of PPO."""

    pack: int = pack_setting()
    gamma: float = setting(1.0, number(0, 1), "discount per turn of the agent")
    gamma_token: float = setting(1.0, number(0, 1), "discount per token, where gae is token")
    lam: float = setting(0.95, number(0, 1), "GAE's trade of bias for variance")
    gae: str = setting(
        "turn", choice("turn", "token"), "turn: one advantage for all tokens of a turn; token: GAE over them"
    )
    critic: str = setting(
        "head", choice("head", "separate", "central"), "a head on the policy, a model of its own, one for all seats"
    )
    baseline: str = setting(
        "critic",
        choice("critic", "seat_ema"),
        "values that returns are compared with; seat_ema: no critic, an exponential average of each seat's returns",
    )
    critic_reads: str = setting(
        "chat",
        choice("chat", "completion"),
        "tasks: the whole chat before a token, or its question and this answer alone",
    )
    baseline_decay: float = setting(
        0.95, number(0, 1), "decay per step of the average of returns, for baseline=seat_ema"
    )
    value_clip: float = setting(0.2, number(0), "values are clipped around those of the rollout; 0 is off")
    value_coef: float = setting(0.5, number(0), "weight of the value loss")
    whiten: str = setting(
        "agent",
        choice("none", "agent", "turn"),
        "advantages are standardised per agent, or (tasks) per agent and turn",
    )


def check(c: ConfigDict) -> Iterator[str]:
    """PPO: one sample per prompt, values from a critic."""
    yield from check_train_turns(c)
    yield from check_overlong(c)
    yield from check_packing(c)
    if c.task.name and c.algo.critic == "central":
        yield (
            f"config.algo.critic is 'central' with task.name {c.task.name!r}, whose seats share no position to read; "
            "accepted: 'head' or 'separate'"
        )
    if c.algo.pack and c.algo.critic != "head":
        found = f"config.algo.pack is {c.algo.pack} with algo.critic {c.algo.critic!r}"
        yield f"{found}; accepted: 0, or algo.critic 'head'"
    if c.algo.pack and c.algo.critic_reads == "completion":
        yield f"config.algo.pack is {c.algo.pack} with algo.critic_reads 'completion'; accepted: 0, or 'chat'"
    for name, of_tasks, default in (("critic_reads", "completion", "chat"), ("whiten", "turn", "agent")):
        if c.algo[name] == of_tasks and not c.task.name:
            yield f"config.algo.{name} is {of_tasks!r} with env.name {c.env.name!r}; accepted: {default!r}, or a task"
    if c.algo.gae == "token" and not has_free_answers(c):
        yield (
            "config.algo.gae is 'token' with rollout.completion 'constrained'; accepted: 'turn', or "
            "rollout.completion 'free'"
        )
    if c.algo.gae == "token" and (c.algo.critic == "central" or c.algo.baseline == "seat_ema"):
        found = "baseline 'seat_ema'" if c.algo.baseline == "seat_ema" else "critic 'central'"
        yield (
            f"config.algo.gae is 'token' with algo.{found}, which has one value a turn; accepted: 'turn', or "
            "algo.critic 'head' or 'separate'"
        )
    if c.algo.baseline == "seat_ema" and c.algo.whiten != "none":
        yield (
            f"config.algo.whiten is {c.algo.whiten!r} with algo.baseline 'seat_ema': it subtracts each "
            "agent's mean, and the "
            "average with it; accepted: 'none'"
        )
