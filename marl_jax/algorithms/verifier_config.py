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
    """Yield the problems of a config with verifier training."""
    from envs.tasks import make_task

    if not c.task.name:
        yield f"config.algo.name is 'verifier' with env.name {c.env.name!r}, but it must be a task of one role"
        return
    roles = tuple(make_task(c.task.name, **c.task.params.to_dict()).roles)
    if len(roles) != 1:
        subject = f"config.task.name is {c.task.name!r} with the roles {', '.join(roles)} and algo.name 'verifier'"
        yield f"{subject}, but must be a task of one role. Choose another task or other task.params"
    if len(c.policies) != 1 or any(policy.frozen for policy in c.policies.values()):
        names = ", ".join(c.policies)
        yield f"config.policies has {names} with algo.name 'verifier', but must have one policy that learns"
    if c.algo.per_side > c.algo.samples:
        yield f"config.algo.per_side is {c.algo.per_side}, but must be <= algo.samples ({c.algo.samples})"
