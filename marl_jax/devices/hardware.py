"""What chips can hold and do: the figures that forecasts are judged against.

Sizes are bytes, speeds are bytes or operations a second, of one chip. Links count one direction.

memory    what a program may fill. TPUs: the capacity that the TPU compiler names when a program does not fit, a little
          under the nominal 16, 95 and 32 GB, because the runtime keeps some. GPUs: what the driver reports; of this JAX
          reserves a share, see `usable`.
bf16      peak of dense bfloat16 matrix products: vendors' data sheets (NVIDIA's figures without sparsity).
hbm       memory bandwidth: the same sheets.
link      one link between neighbours, one direction: published interconnect bandwidth of a chip (v5e 1,600 Gbit/s,
          v5p 4,800, v6e 3,584) over its links; NVLink's 900 GB/s count both directions.
links     of one chip: 2-D torus 4, 3-D torus 6; NVLink through a switch counts as one wide link.
slice     chips joined by those links: the largest slice sold, or the GPUs of one machine.
outside   to chips of another slice: the chip's share of its machine's network (TPU hosts: v5e 25 Gbit/s a chip, v5p
          50, v6e 100; GPU machines: one 400 Gbit/s card per GPU).
"""

from __future__ import annotations

import dataclasses
import os

GIB, GB, TERA = 2**30, 1e9, 1e12


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of chip; the fields are explained above."""

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
        """Bytes that a program may fill: on GPUs, the share that JAX reserves (75 % unless told otherwise)."""
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
    """An n-th of this machine, to try a forecast on a laptop; its speeds are round numbers of no machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / n
    return Chip("cpu", "cpu", memory, 1 * TERA, 50 * GB, 10 * GB, 1, n, 1 * GB)
