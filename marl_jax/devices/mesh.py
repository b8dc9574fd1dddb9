"""Device meshes from the config.

Axes: `data` (replicas), `fsdp` (parameters sharded, and the batch likewise), `tensor` (heads and feed-forward sharded).
`models/sharding.py` defines the sharding of arrays on a mesh.
"""

from __future__ import annotations

import logging
import math

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh
from ml_collections import ConfigDict

from marl_jax.errors import ConfigError
from models.sharding import MESH_AXES

log = logging.getLogger(__name__)


def sizes(config: ConfigDict, n_devices: int) -> dict[str, int]:
    """Return the size of each mesh axis; an axis of -1 takes the remaining devices."""
    wanted = {axis: config.mesh[axis] for axis in MESH_AXES}
    fixed = math.prod(num_shards for num_shards in wanted.values() if num_shards != -1)
    words = " x ".join(f"{axis} {num_shards}" for axis, num_shards in wanted.items())
    if n_devices % fixed or (-1 not in wanted.values() and fixed != n_devices):
        divisors = [n for n in range(1, n_devices + 1) if n_devices % n == 0]
        needs = f"{'a multiple of ' if -1 in wanted.values() else ''}{fixed}"
        rule = f"axes must be one of: {', '.join(map(str, divisors))}, with a product of {n_devices}"
        raise ConfigError([f"config.mesh is {words}, which needs {needs} devices, but there are {n_devices}; {rule}"])
    return {axis: n_devices // fixed if num_shards == -1 else num_shards for axis, num_shards in wanted.items()}


def make(config: ConfigDict, devices=None) -> Mesh:
    """Build the mesh over `devices`, with neighbouring devices on the tensor axis.

    Args:
        config: The run's config.
        devices: The devices to use, which may belong to another machine. By default all of them, or in a run of one
            process as many as `config.mesh` names.
    """
    devices = _devices_for(config) if devices is None else list(devices)
    shape = tuple(sizes(config, len(devices)).values())
    types = (AxisType.Auto,) * len(MESH_AXES)
    # On TPUs this follows the physical topology; axes that do not match it may be split.
    ordered = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(ordered, MESH_AXES, axis_types=types)


def _devices_for(config: ConfigDict) -> list[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]  # JAX declares it as a variable
    """Return all devices, or the first few if `config.mesh` uses fewer.

    The latter needs a single process, because another one could not use the rest.
    """
    devices, num_shards = jax.devices(), math.prod(config.mesh[axis] for axis in MESH_AXES)
    if 0 < num_shards < len(devices) and jax.process_count() == 1:
        log.warning("config.mesh uses %d of %d devices", num_shards, len(devices))
        return devices[:num_shards]
    return devices


def for_sampling(mesh: Mesh, kind: str) -> Mesh:
    """Rearrange the devices of a mesh for sampling, in the same order.

    Args:
        mesh: The mesh for learning.
        kind: "same" keeps the mesh. With "replicated", every device has all weights and its own rows, so decoding needs
            no communication. With "tensor", heads and feed-forward stay sharded and FSDP shards become replicas, so
            decoding communicates activations only.
    """
    shape = {
        "same": tuple(mesh.shape.values()),
        "replicated": (mesh.size, 1, 1),
        "tensor": (mesh.size // mesh.shape["tensor"], 1, mesh.shape["tensor"]),
    }[kind]
    return Mesh(mesh.devices.reshape(shape), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def batch_shards(mesh: Mesh) -> int:
    """Return the number of shards of a batch."""
    return mesh.shape["data"] * mesh.shape["fsdp"]
