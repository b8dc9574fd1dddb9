"""Target hardware by name, and its devices, which need not be present."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import platform as machine
import re
from typing import TypeAlias

import jax
from jax.experimental import topologies

from marl_jax.devices import hardware
from marl_jax.devices.hardware import Chip
from marl_jax.errors import ConfigError, RunError

log = logging.getLogger(__name__)

DIMENSIONS = {"v5e": 2, "v5p": 3, "v6e": 2}  # of the torus of a slice
MOST_HOST_DEVICES = 2048  # JAX starts and exits in 6 s with 2,048 devices and in 43 s with 4,096
ACCEPTED = "v5e:4x4, v6e:8x8 (2-D), v5p:2x2x2 (3-D), h100:8, h200:1, cpu:8"

Devices: TypeAlias = list[jax.Device]  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX


@dataclasses.dataclass(frozen=True)
class Topology:
    """A number of chips of one kind.

    Attributes:
        chip: Kind of chip.
        shape: Shape of a TPU slice, or the number of chips.
    """

    chip: Chip
    shape: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of chips."""
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        """Name such as "v5e:4x4"."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"


def parse(text: str) -> Topology:
    """Parse a topology such as "v5e:4x4"."""
    if not text:
        raise ConfigError([f"--mode=compile needs a --topology, such as {ACCEPTED}"])
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", text)
    kind, shape = (match[1], tuple(map(int, match[2].split("x")))) if match else (text.partition(":")[0], ())
    known = (*hardware.CHIPS, "cpu")
    if kind not in known:
        raise ConfigError([f"--topology is {text}, but its chip must be one of: {', '.join(known)}, as in {ACCEPTED}"])
    expected = DIMENSIONS.get(kind, 1)
    if len(shape) != expected or 0 in shape:
        example = f"{kind}:{'x'.join(['2'] * expected)}" if expected > 1 else f"{kind}:8"
        sizes = f"{expected} sizes" if expected > 1 else "one number of devices"
        raise ConfigError([f"--topology is {text}, but must have {sizes}, as in {example}"])
    n = math.prod(shape)
    if kind not in DIMENSIONS and n > MOST_HOST_DEVICES:
        raise ConfigError([f"--topology is {text}, but must have at most {MOST_HOST_DEVICES:,} devices"])
    return Topology(hardware.cpu(n) if kind == "cpu" else hardware.CHIPS[kind], shape)


def devices(topology: Topology) -> tuple[Devices, str]:
    """Return the target devices, and a note for the user if others are used instead."""
    if topology.chip.platform == "tpu":
        return _tpu(topology), ""
    if topology.chip.platform == "gpu":
        return _gpu(topology)
    return _cpu(topology.n), ""


def prepare(topology: Topology) -> None:
    """Configure JAX to compile for a topology; call it before JAX initializes its devices."""
    if topology.chip.platform != "tpu":
        jax.config.update("jax_num_cpu_devices", topology.n)
    if topology.chip.platform != "gpu" and jax.config.jax_platforms is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_platforms", "cpu")  # do not occupy an accelerator of this machine


def _cpu(n: int) -> Devices:
    cpus = jax.devices("cpu")
    if len(cpus) < n:
        raise RunError(
            f"{n} virtual CPU devices are required, but JAX has {len(cpus)}; set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={n}"
        )
    return cpus[:n]


def _tpu(topology: Topology) -> Devices:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "true")  # there is no TPU with metadata
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # nor one that is limited to one process
    try:
        chips = topologies.get_topology_desc(platform="tpu", topology_name=topology.name).devices
    except (RuntimeError, AttributeError) as error:
        if "not installed" not in str(error) and "get_library_path" not in str(error):
            raise RunError(f"--topology is {topology.name}, but libtpu rejects it: {error}") from error
        raise RunError(_no_libtpu(topology.name)) from error
    return list(chips)


def _no_libtpu(name: str) -> str:
    here = f"{machine.system()} {machine.machine()}"
    how = "install the version for this JAX with `pip install 'jax[tpu]'`"
    if (machine.system(), machine.machine()) != ("Linux", "x86_64"):
        how = f"it is only available for Linux x86_64, but this is {here}. On such a machine, {how}"
    return (
        f"--topology={name} needs the TPU compiler, libtpu, which is not installed; {how}, or set TPU_LIBRARY_PATH to "
        "libtpu.so. No TPU is required."
    )


def _gpu(topology: Topology) -> tuple[Devices, str]:
    try:
        gpus = list(topologies.get_topology_desc(platform="cuda", topology=f"1x1x{topology.n}").devices)
    except (NotImplementedError, RuntimeError) as error:
        log.debug("no CUDA compiler: %s", error)
        return _cpu(topology.n), (
            f"There is no CUDA compiler, so this is compiled for {topology.n} CPU devices: shardings and collectives "
            f"are the same as on {topology.name}, but temporaries and kernels are not."
        )
    kind = gpus[0].device_kind
    same = topology.chip.name in kind.lower()
    return gpus, "" if same else f"Compiled for the GPU of this machine, {kind}; memory is that of {topology.name}."
