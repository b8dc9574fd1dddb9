"""The mesh of devices from the config, and whether a batch fits it.

Axes: `data` (copies), `fsdp` (parameters split, batch split the same way), `tensor` (heads and feed-forward split).
What lies where on a mesh is decided in `models/sharding.py`.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from ml_collections import ConfigDict

from marl_jax.errors import ConfigError
from marl_jax.validate import nearest, samples
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
    """The mesh over all devices (or those given), neighbours on the tensor axis."""
    devices = jax.devices() if devices is None else list(devices)
    shape = tuple(sizes(config, len(devices)).values())
    types = (AxisType.Auto,) * len(MESH_AXES)
    if len(devices) == jax.device_count():
        return jax.make_mesh(shape, MESH_AXES, axis_types=types)
    return Mesh(np.asarray(devices).reshape(shape), MESH_AXES, axis_types=types)


def batch_ways(mesh: Mesh) -> int:
    """In how many parts a batch is split."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_batches(config: ConfigDict, ways: int) -> None:
    """Refuses batches that the `ways` parts do not divide, with the nearest sizes that do."""
    problems = []
    if config.rollout.games % ways:
        near = " or ".join(map(str, nearest(config.rollout.games, ways)))
        problems.append(
            f"config.rollout.games is {config.rollout.games}, not a multiple of the {ways} parts of the batch "
            f"(mesh.data x mesh.fsdp); nearest: {near}"
        )
    if config.eval.games % ways:
        near = " or ".join(map(str, nearest(config.eval.games, ways)))
        problems.append(f"config.eval.games is {config.eval.games}, not a multiple of {ways}; nearest: {near}")
    parts = config.algo.minibatches * config.algo.accumulate * ways
    total = samples(config)
    if not problems and total % parts:
        step = math.lcm(ways, parts // math.gcd(parts, total // config.rollout.games))
        near = " or ".join(map(str, nearest(config.rollout.games, step)))
        problems.append(
            f"config.rollout.games is {config.rollout.games}: {total} samples do not split into algo.minibatches "
            f"{config.algo.minibatches} x algo.accumulate {config.algo.accumulate} x {ways} parts of the mesh; "
            f"nearest: {near}"
        )
    if problems:
        raise ConfigError(problems)
