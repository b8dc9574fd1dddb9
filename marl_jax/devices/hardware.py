"""Memory and speed of accelerator chips, for forecasts of memory and time.

Sources of the fields of `Chip`:

- memory: On TPUs, the capacity that the compiler reports when a program does not fit, which is slightly below the
  nominal 16, 95 and 32 GB because the runtime reserves some. On GPUs, the capacity that the driver reports.
- bf16, hbm: Vendors' data sheets, NVIDIA's without sparsity.
- link, links: Published interconnect bandwidth of a chip (v5e 1,600 Gbit/s, v5p 4,800, v6e 3,584) divided by its links,
  4 in a 2-D and 6 in a 3-D torus. NVLink's 900 GB/s count both directions, and a switch counts as one link.
- slice: The largest slice on offer, or the GPUs of one machine.
- outside: The chip's share of its host's network (TPU hosts: v5e 25 Gbit/s per chip, v5p 50, v6e 100; GPU hosts: one
  400 Gbit/s card per GPU).
"""

from __future__ import annotations

import dataclasses
import os

GIB, GB, TERA = 2**30, 1e9, 1e12


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of chip. Units are bytes, and bytes or operations per second.

    Attributes:
        name: Name of the chip.
        platform: JAX platform.
        memory: Memory that a program can use.
        bf16: Peak of dense bfloat16 matrix products.
        hbm: Memory bandwidth.
        link: Bandwidth of one link to a neighbour, in one direction.
        links: Number of links.
        slice: Number of chips that are connected by links.
        outside: Bandwidth to chips of another slice.
    """

    name: str
    platform: str
    memory: float
    bf16: float
    hbm: float
    link: float
    links: int
    slice: int
    outside: float

    @property
    def usable(self) -> float:
        """Bytes available to JAX: by default 75 % of a GPU's memory."""
        if self.platform != "gpu":
            return self.memory
        return self.memory * float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75))


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", "tpu", 15.75 * GIB, 197 * TERA, 819 * GB, 50 * GB, 4, 256, 3.125 * GB),
        Chip("v5p", "tpu", 95.74 * GIB, 459 * TERA, 2_765 * GB, 100 * GB, 6, 8_960, 6.25 * GB),
        Chip("v6e", "tpu", 31.25 * GIB, 918 * TERA, 1_640 * GB, 112 * GB, 4, 256, 12.5 * GB),
        Chip("h100", "gpu", 79.6 * GIB, 989 * TERA, 3_350 * GB, 450 * GB, 1, 8, 50 * GB),
        Chip("h200", "gpu", 140.4 * GIB, 989 * TERA, 4_800 * GB, 450 * GB, 1, 8, 50 * GB),
    )
}


def cpu(n: int) -> Chip:
    """Return 1/n of this machine as a chip, to try a forecast locally.

    Its speeds are round numbers that were not measured.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / n
    return Chip("cpu", "cpu", memory, 1 * TERA, 50 * GB, 10 * GB, 1, n, 1 * GB)
