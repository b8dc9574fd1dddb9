"""95 % intervals of statistics that tables compute from episodes.

`marl_jax.evaluation.intervals` does the same for runs, but experiments only import configs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from experiments.tables.runs import Rate

Z = 1.959964
RESAMPLES = 10_000


def rate(values: Sequence[float]) -> Rate:
    """Return the mean of values between 0 and 1 with a Wilson interval."""
    n, p = len(values), sum(values) / len(values)
    center = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return Rate(p, max(0.0, min(center - half, p)), min(1.0, max(center + half, p)))


def difference(ours: Sequence[float], baseline: Sequence[float]) -> Rate:
    """Return the mean difference on the same questions with a paired bootstrap interval.

    Half a question that only ours gets right, half a question that only the baseline gets right, and one on which they
    are equal are added before resampling (Agresti and Min 2005), because a handful of questions with equal results
    prove nothing.
    """
    if len(ours) != len(baseline):
        raise ValueError(f"there are {len(ours)} and {len(baseline)} values, but both must have the same questions")
    differences = np.asarray(ours, float) - np.asarray(baseline, float)
    values, n = np.concatenate([differences, [1.0, -1.0, 0.0]]), len(ours)
    weights = np.concatenate([np.ones(n), [0.5, 0.5, 1.0]]) / (n + 2)
    distinct, places = np.unique(values, return_inverse=True)
    chances = np.bincount(places, weights)
    drawn = np.random.default_rng(0).multinomial(n, chances / chances.sum(), size=RESAMPLES) @ distinct / n
    mean = float(differences.mean())
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Rate(mean, min(float(low), mean), max(float(high), mean))
