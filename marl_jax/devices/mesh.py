"""The mesh of devices from the config, and whether a batch fits it.

Axes: `data` (copies), `fsdp` (parameters split, batch split the same way), `tensor` (heads and feed-forward split).
What lies where on a mesh is decided in `models/sharding.py`.
"""

from __future__ import annotations

import math

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh
from ml_collections import ConfigDict

from marl_jax.config.validate import nearest, samples
from marl_jax.errors import ConfigError
from models.sharding import MESH_AXES


def sizes(config: ConfigDict, n_devices: int) -> dict[str, int]:
    """Ways of each axis on so many devices; an axis of -1 takes what the others leave."""
    wanted = {axis: config.mesh[axis] for axis in MESH_AXES}
    fixed = math.prod(ways for ways in wanted.values() if ways != -1)
    words = " x ".join(f"{axis} {ways}" for axis, ways in wanted.items())
    if n_devices % fixed or (-1 not in wanted.values() and fixed != n_devices):
        divisors = [n for n in range(1, n_devices + 1) if n_devices % n == 0]
        needs = f"{'a multiple of ' if -1 in wanted.values() else ''}{fixed}"
        accepted = f"ways out of {', '.join(map(str, divisors))} whose product is {n_devices}"
        raise ConfigError(
            [f"config.mesh is {words}, which needs {needs} devices; there are {n_devices}, accepted: {accepted}"]
        )
    return {axis: n_devices // fixed if ways == -1 else ways for axis, ways in wanted.items()}


def make(config: ConfigDict, devices=None) -> Mesh:
    """The mesh over all devices (or those given, also of another machine), neighbours on the tensor axis."""
    devices = jax.devices() if devices is None else list(devices)
    shape = tuple(sizes(config, len(devices)).values())
    types = (AxisType.Auto,) * len(MESH_AXES)
    # On TPUs this follows the wires; axes that do not match them are cut anyway.
    ordered = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(ordered, MESH_AXES, axis_types=types)


def for_sampling(mesh: Mesh, kind: str) -> Mesh:
    """The devices of a mesh in the same order, arranged for sampling.

    same        as they are
    replicated  every device has all weights and its own rows: nothing travels while answers are written
    tensor      heads and feed-forward stay split, FSDP becomes copies: no weights travel, only activations do
    """
    shape = {
        "same": tuple(mesh.shape.values()),
        "replicated": (mesh.size, 1, 1),
        "tensor": (mesh.size // mesh.shape["tensor"], 1, mesh.shape["tensor"]),
    }[kind]
    return Mesh(mesh.devices.reshape(shape), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def batch_ways(mesh: Mesh) -> int:
    """In how many parts a batch is split."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_batches(config: ConfigDict, ways: int, sampling_ways: int | None = None) -> None:
    """Refuses batches that the parts do not divide, with the nearest sizes that do.

    ways           parts of a batch that is learnt from
    sampling_ways  parts of a batch of games, where that is another number; the first divides it
    """
    problems = []
    play_ways = sampling_ways or ways
    if config.rollout.games % play_ways:
        near = " or ".join(map(str, nearest(config.rollout.games, play_ways)))
        axes = "mesh.data x mesh.fsdp" if play_ways == ways else f"mesh.sampling {config.mesh.sampling!r}"
        problems.append(
            f"config.rollout.games is {config.rollout.games}, not a multiple of the {play_ways} parts of the batch "
            f"({axes}); nearest: {near}"
        )
    if config.eval.games % play_ways:
        near = " or ".join(map(str, nearest(config.eval.games, play_ways)))
        problems.append(f"config.eval.games is {config.eval.games}, not a multiple of {play_ways}; nearest: {near}")
    parts = config.algo.minibatches * config.algo.grad_accum_steps * ways
    # The learner reads samples that share a prompt as one row, so they lie on one device.
    together = config.algo.group_size if config.algo.share_prefix else 1
    total = samples(config) // together
    if not problems and total % parts:
        step = math.lcm(play_ways, parts // math.gcd(parts, total // config.rollout.games))
        near = " or ".join(map(str, nearest(config.rollout.games, step)))
        what = "samples" if together == 1 else f"groups of {together} samples that share a prompt"
        problems.append(
            f"config.rollout.games is {config.rollout.games}: {total} {what} do not split into algo.minibatches "
            f"{config.algo.minibatches} x algo.grad_accum_steps {config.algo.grad_accum_steps} x {ways} parts of the "
            f"mesh; nearest: {near}"
        )
    if problems:
        raise ConfigError(problems)
