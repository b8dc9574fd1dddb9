"""95 % intervals of what a table computes itself; evaluations bring those of their own metrics.

`marl_jax.evaluation.intervals` has the same for runs; experiments import nothing but configs.
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
    center = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return Rate(p, max(0.0, min(center - half, p)), min(1.0, max(center + half, p)))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Rate:
    """The mean of `ours` less that of `theirs` on the same questions, in the same order; a paired bootstrap.

    Half a question that only ours gets right, half one that only theirs does, and one on which they are equal are added
    before it is resampled (Agresti and Min 2005): a handful of questions that all say the same prove nothing.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} values; expected the same questions")
    differences = np.asarray(ours, float) - np.asarray(theirs, float)
    values, n = np.concatenate([differences, [1.0, -1.0, 0.0]]), len(ours)
    weights = np.concatenate([np.ones(n), [0.5, 0.5, 1.0]]) / (n + 2)
    found, places = np.unique(values, return_inverse=True)
    chances = np.bincount(places, weights)
    drawn = np.random.default_rng(0).multinomial(n, chances / chances.sum(), size=RESAMPLES) @ found / n
    mean = float(differences.mean())
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Rate(mean, min(float(low), mean), max(float(high), mean))
