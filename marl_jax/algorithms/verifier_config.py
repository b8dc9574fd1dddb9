"""Settings and checks of verifier training. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.fields import SWITCH, TEXT, choice, integer
from marl_jax.learning.settings import LearnerSettings, redefault, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifierSettings(LearnerSettings):
    """Settings of verifier training."""

    minibatches: int = redefault(LearnerSettings, "minibatches", 1)
    critic: str = setting("head", choice("head"), "Critic; head: the score is a head on the model")
    data: str = setting("", TEXT, "Folder of the run that labelled the completions; '': this run")
    questions: int = setting(2000, integer(1, 1 << 24), "Maximum number of questions of the train split to label")
    held_out: int = setting(
        256, integer(1, 1 << 24), "Maximum number of questions of the validation and test splits to label, each"
    )
    samples: int = setting(16, integer(2, 1 << 12), "Number of completions to sample per question")
    per_side: int = setting(
        4, integer(1, 1 << 12), "Maximum number of correct and of wrong completions per question to train on"
    )
    balanced: bool = setting(
        True, SWITCH, "Whether to train on as many correct as wrong completions per question; False: as sampled"
    )
    gold: bool = setting(False, SWITCH, "Whether the dataset's solution may replace one missing correct completion")
    completions: int = setting(64, integer(1, 1 << 20), "Number of completions per step")
    label_tokens: str = setting(
        "last_half", choice("last_half", "all", "last"), "Tokens of a completion to apply its label to"
    )


def check(c: ConfigDict) -> Iterator[str]:
    """One policy, and a task of one role whose answers are labelled."""
    from envs.tasks import TASKS

    if not c.task.name:
        yield f"config.algo.name is 'verifier' with env.name {c.env.name!r}, but must be a task of one role"
        return
    roles = tuple(TASKS.get(c.task.name)(**c.task.params.to_dict()).roles)
    if len(roles) != 1:
        found = f"config.task.name is {c.task.name!r} with the roles {', '.join(roles)} and algo.name 'verifier'"
        yield f"{found}, which labels the answers of one, but must be a task, or params of it, with one role"
    if len(c.policies) != 1 or any(policy.frozen for policy in c.policies.values()):
        yield f"config.policies has {', '.join(c.policies)} with algo.name 'verifier', but must be one that learns"
    if c.algo.per_side > c.algo.samples:
        yield f"config.algo.per_side is {c.algo.per_side}, but it must be <= algo.samples ({c.algo.samples})."
