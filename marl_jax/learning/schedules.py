"""Fields of an algorithm that change from step to step."""

from __future__ import annotations

import jax
from ml_collections import ConfigDict


def algo_at(config: ConfigDict, step: jax.Array | int) -> ConfigDict:
    """The fields of the algorithm at a step: the entropy bonus may fall."""
    algo = config.algo
    if algo.get("entropy_ratio", 1.0) == 1.0:
        return algo
    done = step / max(config.steps - 1, 1)
    return ConfigDict({**algo, "entropy_coef": algo.entropy_coef * (1.0 + (algo.entropy_ratio - 1.0) * done)})
