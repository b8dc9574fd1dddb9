"""Settings and checks of PPO. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import (
    PolicyGradientSettings,
    check_legal_coef,
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
    gamma: float = setting(1.0, number(0, 1), "Discount factor per turn of the agent")
    gamma_token: float = setting(1.0, number(0, 1), "Discount factor per token if gae=token")
    lam: float = setting(0.95, number(0, 1), "GAE lambda, which trades bias for variance")
    gae: str = setting(
        "turn", choice("turn", "token"), "Advantage estimation; turn: one advantage per turn; token: GAE over tokens"
    )
    critic: str = setting(
        "head",
        choice("head", "separate", "central"),
        "Critic; head: value head on the policy; separate: another model; central: reads the prompts of all seats",
    )
    baseline: str = setting(
        "critic",
        choice("critic", "seat_ema"),
        "Baseline of the returns; seat_ema: moving average of the returns per seat instead of a critic",
    )
    critic_reads: str = setting(
        "chat",
        choice("chat", "completion"),
        "Critic input in tasks; chat: the full conversation; completion: only the prompt and this completion",
    )
    baseline_decay: float = setting(0.95, number(0, 1), "Decay per step of the moving average if baseline=seat_ema")
    value_clip: float = setting(0.2, number(0), "Clip range of values around those of the rollout; 0 disables clipping")
    value_coef: float = setting(0.5, number(0), "Weight of the value loss")
    whiten: str = setting(
        "agent",
        choice("none", "agent", "turn"),
        "Standardization of advantages; agent: per agent; turn: per agent and turn (tasks only)",
    )


def check(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config with PPO."""
    yield from check_train_turns(c)
    yield from check_overlong(c)
    yield from check_legal_coef(c)
    yield from check_packing(c)
    if c.task.name and c.algo.critic == "central":
        yield (
            f"config.algo.critic is 'central' with task.name {c.task.name!r}, but must be 'head' or 'separate' for "
            "tasks, whose seats share no position"
        )
    if c.algo.pack and c.algo.critic != "head":
        subject = f"config.algo.pack is {c.algo.pack} with algo.critic {c.algo.critic!r}"
        yield f"{subject}, but must be 0 unless algo.critic is 'head'"
    if c.algo.pack and c.algo.critic_reads == "completion":
        subject = f"config.algo.pack is {c.algo.pack} with algo.critic_reads 'completion'"
        yield f"{subject}, but must be 0 unless algo.critic_reads is 'chat'"
    for name, of_tasks, default in (("critic_reads", "completion", "chat"), ("whiten", "turn", "agent")):
        if c.algo[name] == of_tasks and not c.task.name:
            yield f"config.algo.{name} is {of_tasks!r} with env.name {c.env.name!r}, but must be {default!r} for games"
    if c.algo.gae == "token" and not has_free_answers(c):
        yield (
            "config.algo.gae is 'token' with rollout.completion 'constrained', but must be 'turn' unless "
            "rollout.completion is 'free'"
        )
    if c.algo.gae == "token" and (c.algo.critic == "central" or c.algo.baseline == "seat_ema"):
        source = "baseline 'seat_ema'" if c.algo.baseline == "seat_ema" else "critic 'central'"
        yield (
            f"config.algo.gae is 'token' with algo.{source}, which has one value per turn, but must be 'turn' unless "
            "algo.critic is 'head' or 'separate'"
        )
    if c.algo.baseline == "seat_ema" and c.algo.whiten != "none":
        yield (
            f"config.algo.whiten is {c.algo.whiten!r} with algo.baseline 'seat_ema', but must be 'none': whitening "
            "subtracts the mean of each agent, and the baseline with it"
        )
