"""Settings and checks of the preference algorithms. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import check_no_other_players
from marl_jax.errors import not_divisible
from marl_jax.fields import SWITCH, TEXT, choice, integer, number
from marl_jax.learning.settings import LearnerSettings, redefault, setting


def held_out_setting() -> float:
    """Declare `held_out`, for algorithms that learn from a file of pairs."""
    words = "Fraction of the prompts to hold out for evaluation, half in validation and half in test"
    return setting(0.1, number(0, 0.9), words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreferenceSettings(LearnerSettings):
    """Settings of all algorithms that learn from pairs of completions."""

    minibatches: int = redefault(LearnerSettings, "minibatches", 1)
    pairs: str = setting(
        "episode",
        choice("episode", "completion"),
        "Sides of a sampled pair; episode: two episodes of an example; completion: two candidates of a turn",
    )
    labels: str = setting(
        "hard",
        choice("hard", "difference", "bradley_terry"),
        "Preference from rewards; hard: the higher one wins; difference: 1/2 + half the difference, for probabilities "
        "of a judge; bradley_terry: sigmoid of the difference, for scores of a reward model",
    )
    average_tokens: bool = setting(
        False, SWITCH, "Whether log-ratios are averaged over the tokens of a completion instead of summed"
    )

    group_size: int = 2
    drops_ties: bool = False
    previous_reference: bool = False
    beta: float = 0.1
    data: str = ""
    n_pairs: int = 1
    label_smoothing: float = 0.0
    mixture: float = 0.0

    @property
    def reference(self) -> bool:
        """Whether the learner keeps the weights of the initial policy."""
        return not self.previous_reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastiveSettings(PreferenceSettings):
    """Settings of the algorithms that can also learn from a file of pairs."""

    data: str = setting("", TEXT, "JSONL file of pairs with prompt, chosen and rejected; '': pairs are sampled")
    n_pairs: int = setting(32, integer(1, 1 << 20), "Number of pairs of the file per step")
    held_out: float = held_out_setting()

    drops_ties: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPOSettings(ContrastiveSettings):
    """Settings of DPO."""

    beta: float = setting(0.1, number(0, above=True), "Strength of the pull to the initial policy")
    label_smoothing: float = setting(
        0.0, number(0, 0.5), "Assumed probability that a label is wrong (conservative DPO)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IPOSettings(ContrastiveSettings):
    """Settings of IPO."""

    beta: float = setting(
        0.1, number(0, above=True), "Strength of the pull to the initial policy; the gap is 1/(2 beta)"
    )
    average_tokens: bool = redefault(PreferenceSettings, "average_tokens", True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SPPOSettings(PreferenceSettings):
    """Settings of SPPO."""

    epochs: int = redefault(LearnerSettings, "epochs", 2)
    beta: float = setting(1.0, number(0, above=True), "Inverse step size; the target of a winner is 1/(2 beta)")

    previous_reference: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class NashMDSettings(PreferenceSettings):
    """Settings of Nash-MD."""

    beta: float = setting(0.01, number(0), "Weight of the KL divergence from the initial policy")
    mixture: float = setting(
        0.125, number(0, 1), "Share of the initial policy in the geometric mixture that the policy competes with"
    )


def check(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config that learns from pairs."""
    yield from check_no_other_players(c, "compares the learner with itself")
    if c.algo.get("data", ""):
        yield from check_pair_file(c)
        return
    if c.algo.pairs == "completion":
        return
    if not c.task.name:
        yield f"config.algo.pairs is 'episode' with env.name {c.env.name!r}, but must be 'completion' for games"
    elif c.task.n_episodes % 2:
        yield not_divisible("task.n_episodes", c.task.n_episodes, 2, "the episodes of a pair")


def check_pair_file(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config that reads pairs from a file."""
    if not c.task.name:
        yield f"config.algo.data is {c.algo.data!r} with env.name {c.env.name!r}, but pairs of a file need a task"
    if len(c.policies) != 1 or any(policy.frozen for policy in c.policies.values()):
        names = ", ".join(c.policies)
        yield f"config.policies has {names} with algo.data {c.algo.data!r}, but must have one policy that learns"
    parts = c.algo.minibatches * c.algo.grad_accum_steps
    if c.algo.n_pairs % parts:
        yield not_divisible("algo.n_pairs", c.algo.n_pairs, parts, "the microbatches of a step")
