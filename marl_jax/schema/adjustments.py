"""Fields that follow an override of another field, unless they are overridden themselves.

--config.eval.opponents=('minimax',)    checkpoint.best_metric names an opponent that is left
--config.eval.every=0                   checkpoint.best_metric is ''
--config.steps=3                        optim.warmup is at most 2
--config.agents.user=runs/mine          a frozen policy of that run plays the role
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from marl_jax import fields


def adjust(config: ConfigDict, overridden: Container[str], opponents: Sequence[str]) -> tuple[str, ...]:
    """Adjust fields that cannot keep their values after overrides.

    Args:
        config: Config with all overrides, updated in place.
        overridden: Dotted names of the overridden fields.
        opponents: Value of `eval.opponents` before the overrides.

    Returns:
        Warnings to log, one per adjusted field.
    """
    warnings = []
    if any(str(player) not in config.policies for player in config.agents.values()):
        from marl_jax.schema import frozen_agents  # imported here because models import JAX

        warnings += frozen_agents.expand(config, overridden)
    if "checkpoint.best_metric" not in overridden:
        if "eval.opponents" in overridden:
            warnings += _follow_opponents(config, opponents)
        if "eval.every" in overridden and config.eval.every == 0 and config.checkpoint.best_metric:
            metric, config.checkpoint.best_metric = config.checkpoint.best_metric, ""
            warnings.append(
                f"checkpoint.best_metric was {metric!r}, but eval.every is 0; only the newest checkpoints are kept"
            )
    if "optim.warmup" not in overridden and 0 < config.steps <= config.optim.warmup:
        warmup, config.optim.warmup = config.optim.warmup, config.steps - 1
        warnings.append(
            f"optim.warmup was {warmup}, but must be less than steps ({config.steps}); it is now {config.optim.warmup}"
        )
    return tuple(warnings)


def _follow_opponents(config: ConfigDict, before: Sequence[str]) -> list[str]:
    """Replace a removed opponent in `checkpoint.best_metric` by the first one that is left."""
    metric = config.checkpoint.best_metric
    if not fields.TEXTS.holds(config.eval.opponents):
        return []  # reported with the other fields
    opponent, _, figure = metric.partition("/")
    names = [Path(name).name for name in config.eval.opponents]
    if opponent in names or opponent not in [Path(name).name for name in before]:
        return []
    config.checkpoint.best_metric = f"{names[0]}/{figure}" if names else ""
    change = f"it is now {config.checkpoint.best_metric!r}" if names else "only the newest checkpoints are kept"
    return [f"checkpoint.best_metric was {metric!r}, but eval.opponents no longer has {opponent!r}; {change}"]
