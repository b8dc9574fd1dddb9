"""Automatic gradient accumulation, so that the update fits in device memory.

The compiled update reports how much memory it needs. If less is free, `algo.grad_accum_steps` is multiplied by 2, 4, ….
Gradients are the same up to rounding, and the step takes a little longer. The multiplier only grows during a run and is
stored in its checkpoints. Devices that do not report their memory (CPUs) are assumed to have enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax

from marl_jax.devices.aot import AotCompiler, Program
from marl_jax.learning.settings import LearnerSettings
from marl_jax.running import processes
from marl_jax.samples import Samples

log = logging.getLogger(__name__)

GIB = 1 << 30
SPARE = 0.97
"""Fraction of the free memory that an update may use, since fragmented memory is not fully usable."""


class AutoMicrobatch:
    """An update program with as many accumulation steps as memory requires.

    Args:
        make: Builds the update program for a multiplier of `algo.grad_accum_steps`.
        algo: Settings of the algorithm, with the user's `grad_accum_steps`.
        num_shards: Number of shards of a batch on the mesh.

    Attributes:
        accum_multiplier: The present multiplier of `algo.grad_accum_steps`.
    """

    def __init__(self, make: Callable[[int], Program], algo: LearnerSettings, num_shards: int):
        self._make, self._algo, self._num_shards = make, algo, num_shards
        self._programs: dict[int, Program] = {}
        self._checked: set[Any] = set()
        self.accum_multiplier = 1

    @property
    def jitted(self) -> Any:
        """Jitted function of the present multiplier."""
        return self._program().jitted

    def compile_ahead(self, ahead: AotCompiler, arguments: Callable[[], tuple]) -> Any:
        """Call `Program.compile_ahead` of the present program."""
        return self._program().compile_ahead(ahead, arguments)

    def __call__(self, states: dict, samples: Samples, *rest: Any) -> Any:
        """Run the update, with more accumulation steps if samples of this size need them."""
        sizes = tuple(leaf.shape for leaf in jax.tree.leaves(samples))
        if (self.accum_multiplier, sizes) not in self._checked:
            # A multiplier that was restored from a run on another mesh may not divide the rows.
            while self.accum_multiplier > 1 and not self._divides(samples.n, self.accum_multiplier):
                self.accum_multiplier //= 2
            if (free := free_bytes()) is not None:
                self._fit(max(SPARE * free, 1.0), states, samples, *rest)
            self._checked.add((self.accum_multiplier, sizes))
        return self._program()(states, samples, *rest)

    def _program(self) -> Program:
        if self.accum_multiplier not in self._programs:
            self._programs[self.accum_multiplier] = self._make(self.accum_multiplier)
        return self._programs[self.accum_multiplier]

    def _fit(self, free: float, *args: Any) -> None:
        """Raise the multiplier until the update fits in `free` bytes or cannot be split further."""
        first_needs, before = None, self.accum_multiplier
        while processes.anyone((needs := self._program().bytes_needed(*args)) > free):
            first_needs = first_needs or needs
            accum_multiplier = self._next(args[1].n, needs / free)
            if accum_multiplier is None:
                break
            del self._programs[self.accum_multiplier]
            self.accum_multiplier = accum_multiplier
        if self.accum_multiplier > before:
            assert first_needs is not None
            parts = self._algo.grad_accum_steps
            log.info(
                "the update would need %.1f GiB, but %.1f GiB are free; using %d gradient accumulation steps instead "
                "of %d, which need %.1f GiB",
                first_needs / GIB,
                free / GIB,
                parts * self.accum_multiplier,
                parts * before,
                needs / GIB,
            )
        if needs > free:
            log.warning(
                "the update needs %.1f GiB, but %.1f GiB are free, and minibatches cannot be split further; if it "
                "fails, lower sampling.memory_frac or set model.remat to full", needs / GIB, free / GIB,
            )  # fmt: skip

    def _next(self, rows: int, excess: float) -> int | None:
        """Return a larger multiplier that divides the rows and covers the excess; None if impossible."""
        excess, accum_multiplier, largest = max(processes.gather(min(excess, 1e6))), 2 * self.accum_multiplier, None
        while self._divides(rows, accum_multiplier):
            largest = accum_multiplier
            if accum_multiplier >= excess * self.accum_multiplier:
                break
            accum_multiplier *= 2
        return largest

    def _divides(self, rows: int, accum_multiplier: int) -> bool:
        """Return whether the rows can be split into the accumulation steps of a multiplier."""
        per_way = rows // (self._algo.minibatches * self._num_shards)
        parts = self._algo.grad_accum_steps * accum_multiplier
        return parts <= per_way if self._algo.pack else per_way % parts == 0


def free_bytes() -> float | None:
    """Return the free memory of this process's fullest device; None if it is not reported."""
    known = [stats for device in jax.local_devices() if "bytes_limit" in (stats := device.memory_stats() or {})]
    return min(map(_free, known), default=None)


def _free(stats: dict[str, int]) -> float:
    """Return the bytes that one allocation can use, from the device's memory statistics."""
    limit = stats["bytes_limit"]
    free = limit - stats.get("bytes_in_use", 0)
    if "largest_free_block_bytes" not in stats or "pool_bytes" not in stats:
        return free
    # Temporaries need one contiguous block, either in the allocator's pool or outside of it.
    return min(free, max(stats["largest_free_block_bytes"], limit - stats["pool_bytes"]))
