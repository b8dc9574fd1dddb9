"""Fields of an algorithm that change as a run goes on."""

from __future__ import annotations

import jax
from ml_collections import ConfigDict


def scheduled(algo: ConfigDict, progress: jax.Array | float) -> ConfigDict:
    """The algorithm's fields, with `entropy_scale` where the entropy bonus falls: the share of it that is left.

    progress  the share of the run's steps that are done, float32 []
    """
    if algo.get("min_entropy_ratio", 1.0) == 1.0:
        return algo
    algo = algo.copy_and_resolve_references().unlock()
    algo.entropy_scale = 1.0 - (1.0 - algo.min_entropy_ratio) * progress
    return algo
