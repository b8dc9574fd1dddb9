"""Algorithm settings as frozen dataclasses. Importing this module does not import JAX.

An algorithm declares its config fields as a subclass of `LearnerSettings`:

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class MySettings(LearnerSettings):
        beta: float = setting(0.1, number(0, 1), "Weight of the bonus")

`fields_of(MySettings)` returns the fields of `config.algo`, and `MySettings.from_config(config.algo)` their values.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ml_collections import ConfigDict

from marl_jax.fields import Field, Rule, integer


def setting(default: Any, rule: Rule, help: str) -> Any:
    """Declare an attribute of a settings class that is also a config field."""
    return dataclasses.field(default=default, metadata={"rule": rule, "help": help})


def redefault(settings: type[LearnerSettings], name: str, default: Any) -> Any:
    """Declare a config field of a base class again with another default."""
    field = fields_of(settings)[name]
    return setting(default, field.rule, field.help)


def fields_of(settings: type[LearnerSettings]) -> dict[str, Field]:
    """Return the config fields of a settings class: its attributes with a rule."""
    declared = (field for field in dataclasses.fields(settings) if "rule" in field.metadata)
    return {field.name: Field(field.default, field.metadata["rule"], field.metadata["help"]) for field in declared}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """Settings that the learner reads for every algorithm.

    Attributes without a rule are options that an algorithm can offer by declaring them again with `setting`. Their
    defaults here switch them off. `joint` says whether the rows of a round are learned together.
    """

    epochs: int = setting(1, integer(1, 1000), "Number of passes over the samples of a rollout")
    minibatches: int = setting(4, integer(1, 1 << 20), "Number of updates per pass over the samples of a rollout")
    grad_accum_steps: int = setting(
        1, integer(1, 1 << 20), "Number of gradient accumulation steps per minibatch; more need less memory"
    )

    pack: int = 0
    minibatch_groups: bool = False
    group_size: int = 1
    refill: int = 0

    critic: str = "none"
    critic_reads: str = "chat"
    baseline: str = "critic"
    baseline_decay: float = 0.0

    joint: bool = False
    epsilon: float = 0.0
    target_decay: float = 0.0

    kl_coef: float = 0.0
    magnet_coef: float = 0.0
    magnet_decay: float = 0.0
    entropy_coef: float = 0.0
    entropy_ratio: float = 1.0
    legal_coef: float = 0.0

    signal_frac: float = 0.0
    guard: str = "off"
    guard_drop: float = 0.0
    guard_completions: int = 1

    overlong: str = "none"
    overlong_buffer: int = 1
    train_turns: tuple[int, ...] = ()
    turn_block: int = 0
    seat_block: int = 0

    @property
    def reference(self) -> bool:
        """Whether the learner keeps the weights of the initial policy."""
        return self.kl_coef > 0

    @classmethod
    def from_config(cls, algo: ConfigDict) -> Self:
        """Build the settings from `config.algo`, whose fields have been checked."""
        values = {name: algo[name] for name in fields_of(cls) if name in algo}
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**settings)
