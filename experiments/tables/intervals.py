"""95 % intervals of statistics that tables compute from episodes.

`marl_jax.evaluation.intervals` does the same for runs, but experiments only import configs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Z = 1.959964
RESAMPLES = 10_000


class Rate(NamedTuple):
    """A rate or a difference of rates with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    def points(self) -> str:
        """Format a difference in percentage points."""
        return f"{100 * self.value:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def rate(values: Sequence[float] | np.ndarray) -> Rate:
    """Return the mean of values between 0 and 1 with a Wilson interval."""
    n = len(values)
    p = float(sum(values)) / n
    center = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(max(p * (1 - p), 0.0) / n + Z * Z / (4 * n * n))
    return Rate(p, max(0.0, min(center - half, p)), min(1.0, max(center + half, p)))


def mean(strata: Sequence[np.ndarray]) -> Rate:
    """Return the mean over strata with a bootstrap interval over seeds and examples.

    A stratum, such as a game, has the values [S, L] of S seeds on the same L examples. Seeds and examples are drawn
    within each stratum. The interval is at least as wide as Wilson's for the examples of one seed, because equal
    results of all examples would otherwise have an interval without width. With one seed and one stratum it is
    Wilson's.

    Args:
        strata: float [S, L] per stratum, values between 0 and 1.
    """
    value = float(np.mean([stratum.mean() for stratum in strata]))
    wilson = [rate(stratum.mean(0)) for stratum in strata]
    half = [math.hypot(*(getattr(one, end) - one.value for one in wilson)) / len(wilson) for end in ("low", "high")]
    least = Rate(value, max(0.0, value - half[0]), min(1.0, value + half[1]))
    if len(strata) == 1 and len(strata[0]) == 1:
        return least
    low, high = np.quantile(np.mean([_resampled(stratum) for stratum in strata], axis=0), [0.025, 0.975])
    return Rate(value, min(float(low), least.low), max(float(high), least.high))


def difference(ours: np.ndarray | Sequence, baseline: np.ndarray | Sequence) -> Rate:
    """Return the mean difference on the same examples with a paired bootstrap interval.

    Seeds and examples are drawn. Half an example that only ours gets right, half an example that only the baseline gets
    right, and one on which they are equal are added before resampling (Agresti and Min 2005), because a handful of
    examples with equal results prove nothing.

    Args:
        ours: float [L] or [S, L], S seeds on L examples.
        baseline: The same; one seed is compared with all seeds of ours.
    """
    first, second = np.atleast_2d(np.asarray(ours, float)), np.atleast_2d(np.asarray(baseline, float))
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"there are {first.shape[1]} and {second.shape[1]} values, but both must have the same examples"
        )
    differences = first - second
    value = float(differences.mean())
    low, high = np.quantile(_resampled(differences, ((1.0, 0.5), (-1.0, 0.5), (0.0, 1.0))), [0.025, 0.975])
    return Rate(value, min(float(low), value), max(float(high), value))


def _resampled(values: np.ndarray, added: Sequence[tuple[float, float]] = ()) -> np.ndarray:
    """Return RESAMPLES means of values [S, L], with seeds and examples drawn independently.

    Args:
        values: float [S, L].
        added: Further examples as (value, weight).
    """
    seeds, n = values.shape
    # Multinomial counts of distinct examples need less memory than resamples x examples.
    distinct, weights = np.unique(values, axis=1, return_counts=True)
    distinct = np.concatenate([distinct, *(np.full((seeds, 1), value) for value, _ in added)], axis=1)
    chances = np.concatenate([weights, [weight for _, weight in added]])
    rng = np.random.default_rng(0)
    examples = rng.multinomial(n, chances / chances.sum(), size=RESAMPLES) / n
    drawn = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    return ((examples @ distinct.T) * drawn).sum(1)
