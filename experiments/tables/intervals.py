"""95 % intervals of what a table computes itself; evaluations bring those of their own metrics.

`marl_jax.running.stats` has the same for runs; experiments import nothing but configs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from experiments.tables.runs import Rate

Z = 1.959964
RESAMPLES = 10_000


def rate(values: Sequence[float]) -> Rate:
    """The mean of values between 0 and 1, one for each question, with Wilson's interval."""
    n, p = len(values), sum(values) / len(values)
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return Rate(p, max(0.0, min(centre - half, p)), min(1.0, max(centre + half, p)))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Rate:
    """The mean of `ours` less that of `theirs` on the same questions, in the same order; a paired bootstrap."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} values; expected the same questions")
    found, counts = np.unique(np.asarray(ours, float) - np.asarray(theirs, float), return_counts=True)
    n = len(ours)
    drawn = np.random.default_rng(0).multinomial(n, counts / n, size=RESAMPLES) @ found / n
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Rate(float(found @ counts / n), float(low), float(high))
