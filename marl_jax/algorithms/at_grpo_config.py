"""Settings and checks of AT-GRPO. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import (
    check_legal_coef,
    check_no_other_players,
    check_overlong,
    check_train_turns,
)
from marl_jax.algorithms.grpo_config import GroupSettings
from marl_jax.fields import choice
from marl_jax.learning.settings import redefault, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ATGRPOSettings(GroupSettings):
    """Settings of AT-GRPO."""

    group_size: int = redefault(GroupSettings, "group_size", 4)
    continuation: str = setting("best", choice("best", "random", "first"), "Candidate that continues the episode")
    team_term: str = setting(
        "immediate",
        choice("immediate", "lookahead"),
        "Team reward of a candidate; immediate: of its step; lookahead: of the continuation",
    )


def check(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config with AT-GRPO."""
    from envs.tasks import make_task

    yield from check_train_turns(c)
    yield from check_overlong(c)
    yield from check_legal_coef(c)
    yield from check_no_other_players(c, "compares the learner with itself")
    if not c.task.name:
        if c.algo.team_term == "lookahead" and c.env.context == "history":
            yield "config.algo.team_term is 'lookahead', but must be 'immediate' unless env.context is 'turn'"
        yield from _planner(c)
        return
    for name, default in (("continuation", "best"), ("team_term", "immediate")):
        if c.algo[name] != default:
            yield (
                f"config.algo.{name} is {c.algo[name]!r}, but must be {default!r} for tasks, which score candidates "
                "and keep one themselves. Use task.params instead"
            )
    workflow = make_task(c.task.name, **c.task.params.to_dict()).graph
    for node in workflow.nodes.values() if workflow is not None else ():
        for step in node.steps if not node.is_last else ():
            if step.rewards is None:
                yield (
                    f"config.algo.name is 'at_grpo' with task.name {c.task.name!r}, but the step of {step.role!r} at "
                    f"{node.name!r} has no rewards to compare candidates by. Give every step rewards or []"
                )


def _planner(c: ConfigDict) -> Iterator[str]:
    """Yield the settings that give all proposals of a planner the same reward."""
    from marl_jax.agents.seating import seat_names

    # The step of a planner makes no move: it only gets an immediate process reward and never ends a game.
    if c.algo.team_term != "immediate" or c.env.params.get("roles") != "two":
        return
    planners = seat_names(c.agents, ("planner",))[0]
    if not any(name in c.policies and not c.policies[name].frozen for name in planners):
        return
    problems = [] if c.reward.dense else ["reward.dense is False"]
    problems += [] if c.reward.process else ["reward.process is 0"]
    if c.env.params.get("planner_weight", 1) == 0 and c.rollout.completion != "free":
        problems.append("env.params.planner_weight is 0")
    for why in problems:
        yield (
            f"config.{why} with algo.name 'at_grpo' and algo.team_term 'immediate', but then all proposals of the "
            "planner get the same reward and it never learns. Change it, or set algo.team_term to 'lookahead'"
        )
