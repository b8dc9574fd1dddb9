"""The update in as many parts as the memory of the device makes necessary.

Its compiled program says how much it needs. Where less is free, minibatches are read in twice, four times, … as many
parts as `algo.grad_accum_steps` says: gradients are the same up to rounding, and the step takes a little longer. The
factor only grows during a run and is kept in its checkpoints. Devices that do not say how much they hold (CPUs) are
taken to hold everything.
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
"""Of what is free, how much an update may take: memory in pieces is not all of use."""


class AutoMicrobatch:
    """The update as a program for samples of any size, in so many parts that it fits.

    make   from a factor of `algo.grad_accum_steps` to the update's program
    algo   of the run, with the parts that the user asked for
    num_shards  parts of a batch on the mesh
    """

    def __init__(self, make: Callable[[int], Program], algo: LearnerSettings, num_shards: int):
        self._make, self._algo, self._num_shards = make, algo, num_shards
        self._programs: dict[int, Program] = {}
        self._checked: set[Any] = set()
        self.accum_multiplier = 1

    @property
    def jitted(self) -> Any:
        """The jitted function of the present factor."""
        return self._program().jitted

    def compile_ahead(self, ahead: AotCompiler, arguments: Callable[[], tuple]) -> Any:
        """As `Program.compile_ahead`."""
        return self._program().compile_ahead(ahead, arguments)

    def __call__(self, states: dict, samples: Samples, *rest: Any) -> Any:
        sizes = tuple(leaf.shape for leaf in jax.tree.leaves(samples))
        if (self.accum_multiplier, sizes) not in self._checked:
            while self.accum_multiplier > 1 and not self._divides(
                samples.n, self.accum_multiplier
            ):  # it is that of another mesh
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
        """Raises the factor until the update needs no more than `free` bytes, or nothing is left to divide."""
        asked, before = None, self.accum_multiplier
        while processes.anyone((needs := self._program().bytes_needed(*args)) > free):
            asked = asked or needs
            accum_multiplier = self._next(args[1].n, needs / free)
            if accum_multiplier is None:
                break
            del self._programs[self.accum_multiplier]
            self.accum_multiplier = accum_multiplier
        if self.accum_multiplier > before:
            assert asked is not None
            parts = self._algo.grad_accum_steps
            log.info(
                "the update would need %.1f GiB, and %.1f are free: minibatches are read in %d parts instead of %d, "
                "which need %.1f GiB",
                asked / GIB,
                free / GIB,
                parts * self.accum_multiplier,
                parts * before,
                needs / GIB,
            )
        if needs > free:
            log.warning(
                "the update needs %.1f GiB, %.1f are free, and minibatches cannot be read in more parts; if it fails, "
                "lower sampling.memory_frac, or set model.remat to full", needs / GIB, free / GIB,
            )  # fmt: skip

    def _next(self, rows: int, excess: float) -> int | None:
        """The next factor by which the rows divide, about as large as the excess asks for; None if there is none."""
        excess, accum_multiplier, found = max(processes.gather(min(excess, 1e6))), 2 * self.accum_multiplier, None
        while self._divides(rows, accum_multiplier):
            found = accum_multiplier
            if accum_multiplier >= excess * self.accum_multiplier:
                break
            accum_multiplier *= 2
        return found

    def _divides(self, rows: int, accum_multiplier: int) -> bool:
        per_way = rows // (self._algo.minibatches * self._num_shards)
        parts = self._algo.grad_accum_steps * accum_multiplier
        return parts <= per_way if self._algo.pack else per_way % parts == 0


def free_bytes() -> float | None:
    """What the fullest device of this process still has; None where devices do not say."""
    found = [stats for device in jax.local_devices() if "bytes_limit" in (stats := device.memory_stats() or {})]
    return min(map(_free, found), default=None)


def _free(stats: dict[str, int]) -> float:
    limit = stats["bytes_limit"]
    free = limit - stats.get("bytes_in_use", 0)
    if "largest_free_block_bytes" not in stats or "pool_bytes" not in stats:
        return free
    # Temporaries are one block: in what the process has taken from the device, or in the rest.
    return min(free, max(stats["largest_free_block_bytes"], limit - stats["pool_bytes"]))
