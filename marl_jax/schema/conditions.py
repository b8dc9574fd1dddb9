"""Conditions on metrics for `stop_when`."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping

from marl_jax.fields import Rule

_TERM = re.compile(r"\s*([\w/@.:-]+)\s*(>=|<=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclasses.dataclass(frozen=True)
class StopCondition:
    """A comparison of a metric with a number."""

    metric: str
    sign: str
    bound: float

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the metrics meet the condition."""
        return bool(_COMPARE[self.sign](metrics[self.metric], self.bound))


def parse(text: str) -> tuple[StopCondition, ...]:
    """Parse conditions joined by "and".

    Args:
        text: Conditions such as "success>=0.99 and zero_std_groups>=0.95", or "" for none.

    Raises:
        ValueError: If a part is not a comparison.
    """
    conditions = []
    for part in re.split(r"\band\b", text) if text.strip() else ():
        match = _TERM.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()!r} is not a condition such as success>=0.99")
        conditions.append(StopCondition(match[1], match[2], float(match[3])))
    return tuple(conditions)


def _holds(value: object) -> bool:
    try:
        return isinstance(value, str) and parse(value) is not None
    except ValueError:
        return False


CONDITIONS = Rule("'' (never) or conditions such as 'success>=0.99', joined by 'and'", _holds)
