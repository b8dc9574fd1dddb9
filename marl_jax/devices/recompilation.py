"""A line in the log when the learner is compiled again."""

from __future__ import annotations

import logging

import jax

from marl_jax.samples import Samples

log = logging.getLogger(__name__)


class Recompiles:
    """Reports when the learner is compiled again, which JAX does for samples of every new size."""

    def __init__(self):
        self._sizes = set()

    def look(self, step: int, samples: Samples, seconds: float) -> None:
        """Logs a line if a step had samples of a size that no step before it had, but the first.

        seconds  of its update, compiling included
        """
        before = len(self._sizes)
        self._sizes.add((jax.tree.structure(samples), *(leaf.shape for leaf in jax.tree.leaves(samples))))
        if before and len(self._sizes) > before:
            log.info(
                "step %d: the learner was compiled again, for %d rows of %d tokens with answers of %d (sizes so far: "
                "%d); the update took %.1f s", step, *samples.tokens.shape, samples.width, len(self._sizes), seconds,
            )  # fmt: skip
