"""The hardware to compile for, by name, and its devices, whether this machine has them or not."""

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

DIMENSIONS = {"v5e": 2, "v5p": 3, "v6e": 2}  # of the torus that a slice is
MOST_HOST_DEVICES = 2048  # with which JAX starts and ends in 6 s; with 4,096 it takes 43 s
ACCEPTED = "v5e:4x4, v6e:8x8 (2-D), v5p:2x2x2 (3-D), h100:8, h200:1, cpu:8"

Devices: TypeAlias = list[jax.Device]  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX


@dataclasses.dataclass(frozen=True)
class Topology:
    """So many chips of a kind; `shape` is that of a TPU slice, or one number."""

    chip: Chip
    shape: tuple[int, ...]

    @property
    def n(self) -> int:
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"


def parse(text: str) -> Topology:
    """The topology called e.g. `v5e:4x4`."""
    if not text:
        raise ConfigError([f"--mode=compile needs --topology, but must be {ACCEPTED}"])
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", text)
    kind, shape = (match[1], tuple(map(int, match[2].split("x")))) if match else (text.partition(":")[0], ())
    known = (*hardware.CHIPS, "cpu")
    if kind not in known:
        raise ConfigError([f"--topology={text}: no such chip; known are {', '.join(known)}, but must be {ACCEPTED}"])
    expected = DIMENSIONS.get(kind, 1)
    if len(shape) != expected or 0 in shape:
        what = f"{expected} sizes, as in {kind}:{'x'.join(['2'] * expected)}" if expected > 1 else f"a number: {kind}:8"
        raise ConfigError([f"--topology={text}: {kind} takes {what}, but must be {ACCEPTED}"])
    n = math.prod(shape)
    if kind not in DIMENSIONS and n > MOST_HOST_DEVICES:
        raise ConfigError([f"--topology={text}: at most {MOST_HOST_DEVICES:,} devices, but must be {ACCEPTED}"])
    return Topology(hardware.cpu(n) if kind == "cpu" else hardware.CHIPS[kind], shape)


def devices(topology: Topology) -> tuple[Devices, str]:
    """The devices to compile for, and what must be said about them ("" where they are what was asked for)."""
    if topology.chip.platform == "tpu":
        return _tpu(topology), ""
    if topology.chip.platform == "gpu":
        return _gpu(topology)
    return _cpu(topology.n), ""


def prepare(topology: Topology) -> None:
    """Sets JAX up to compile for a topology; to be called before it looks at its own devices."""
    if topology.chip.platform != "tpu":
        jax.config.update("jax_num_cpu_devices", topology.n)
    if topology.chip.platform != "gpu" and jax.config.jax_platforms is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_platforms", "cpu")  # an accelerator that is here is left alone


def _cpu(n: int) -> Devices:
    found = jax.devices("cpu")
    if len(found) < n:
        raise RunError(
            f"{n} virtual CPU devices are needed and JAX has started with {len(found)}; set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={n}"
        )
    return found[:n]


def _tpu(topology: Topology) -> Devices:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "true")  # there is no TPU here whose metadata could be asked for
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # nor one that only one process at a time may use
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology.name).devices
    except (RuntimeError, AttributeError) as error:
        if "not installed" not in str(error) and "get_library_path" not in str(error):
            raise RunError(f"--topology={topology.name}: libtpu does not accept it: {error}") from error
        raise RunError(_no_libtpu(topology.name)) from error
    return list(found)


def _no_libtpu(name: str) -> str:
    here = f"{machine.system()} {machine.machine()}"
    how = "`pip install libtpu` installs it"
    if (machine.system(), machine.machine()) != ("Linux", "x86_64"):
        how = f"it exists for Linux x86_64 only and this is {here}: run the same command on such a machine, where {how}"
    return (
        f"--topology={name} needs the TPU compiler, libtpu, which is not here; {how} (or TPU_LIBRARY_PATH names its "
        "libtpu.so). No TPU is needed."
    )


def _gpu(topology: Topology) -> tuple[Devices, str]:
    try:
        found = list(topologies.get_topology_desc(platform="cuda", topology=f"1x1x{topology.n}").devices)
    except (NotImplementedError, RuntimeError) as error:
        log.debug("no CUDA compiler: %s", error)
        return _cpu(topology.n), (
            f"No CUDA compiler here, so this is the program for {topology.n} CPU devices: what lies where and what "
            f"travels is the same as on {topology.name}, temporaries and kernels are not."
        )
    kind = found[0].device_kind
    same = topology.chip.name in kind.lower()
    return found, "" if same else f"Compiled for the card in this machine, {kind}; memory is that of {topology.name}."
