"""Config fields and checks of verifier training. Importing this does not import JAX."""

from __future__ import annotations

from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import BATCHES
from marl_jax.fields import SWITCH, TEXT, Field, choice, integer, with_defaults

FIELDS = {
    "epochs": Field(1, integer(1, 1000), "passes over the answers of a step"),
    **with_defaults(BATCHES, minibatches=1),
    "critic": Field("head", choice("head"), "the score is a head on the model"),
    "data": Field("", TEXT, "folder of the run that labelled the answers; '' is the run's own"),
    "questions": Field(2000, integer(1, 1 << 24), "questions of the train part to label at most"),
    "held_out": Field(256, integer(1, 1 << 24), "questions of validation and of test to label at most, of each"),
    "samples": Field(16, integer(2, 1 << 12), "answers to sample to each question"),
    "per_side": Field(4, integer(1, 1 << 12), "right answers to learn from of each question, and as many wrong ones"),
    "balanced": Field(True, SWITCH, "as many right as wrong answers of each question; False: as they were sampled"),
    "gold": Field(False, SWITCH, "the dataset's own solution may take the place of one missing right answer"),
    "completions": Field(64, integer(1, 1 << 20), "completions per step"),
    "label_tokens": Field("last_half", choice("last_half", "all", "last"), "tokens of an answer that carry its label"),
}


def check(c: ConfigDict) -> Iterator[str]:
    """One policy, and a task of one role whose answers are labelled."""
    from envs.tasks import TASKS

    if not c.task.name:
        yield f"config.algo.name is 'verifier' with env.name {c.env.name!r}; accepted: a task of one role"
        return
    roles = tuple(TASKS.get(c.task.name)(**c.task.params.to_dict()).roles)
    if len(roles) != 1:
        found = f"config.task.name is {c.task.name!r} with the roles {', '.join(roles)} and algo.name 'verifier'"
        yield f"{found}, which labels the answers of one; accepted: a task, or params of it, with one role"
    if len(c.policies) != 1 or any(policy.frozen for policy in c.policies.values()):
        yield f"config.policies has {', '.join(c.policies)} with algo.name 'verifier'; accepted: one that learns"
    if c.algo.per_side > c.algo.samples:
        yield f"config.algo.per_side is {c.algo.per_side}, but it must be <= algo.samples ({c.algo.samples})."
