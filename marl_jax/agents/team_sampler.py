"""A batcher thread that serves the episodes of host tasks for a team.

Every process has its own sampler, with its own devices and a full copy of the weights.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marl_jax.agents.team import Backbone, Team
from marl_jax.devices import placement
from marl_jax.devices.aot import SharedPrograms
from marl_jax.errors import RunError
from marl_jax.sampling.batcher import MEMORY_FRAC, Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.engine import Engine
from models import lora
from models.sharding import MESH_AXES


class TeamSampler(BatcherThread):
    """A batcher thread for all policies of a team, started by the first `publish`.

    Args:
        team: The team. Policies keep their indices.
        mesh: The run's mesh, arranged for sampling. Each process samples on its part of it.
        programs: Programs of the run; an engine in them is given new weights.
        memory_frac: Fraction of a device's memory for the KV cache, shared by the batchers.
        **settings: Further arguments of each `Batcher`.
    """

    def __init__(
        self,
        team: Team,
        mesh: Mesh,
        *,
        programs: SharedPrograms | None = None,
        memory_frac: float = MEMORY_FRAC,
        **settings: Any,
    ):
        super().__init__()
        self.team, self.mesh, self._programs = team, mesh, programs or SharedPrograms()
        self._local = local_mesh(mesh)
        self._settings: dict[str, Any] = settings | dict(memory_frac=memory_frac / len(team.backbones))

    def publish(self, params: Mapping[str, dict], version: int) -> None:
        """Give every policy its weights, and return when later requests will use them.

        All processes have to call it, because weights that are sharded over processes are gathered.

        Args:
            params: Weights by backbone name.
            version: Reported with the tokens that these weights generate.
        """
        backbones = self.team.backbones
        parts = ("adapters",) if self.batchers else ("model", "adapters")  # the base model does not change
        own = {b.name: self._whole(_acting(params[b.name], parts)) for b in backbones}
        with contextlib.nullcontext() if self._local is None else jax.set_mesh(self._local):
            if not self.batchers:
                batchers = [self._batcher(backbone, own[backbone.name], version) for backbone in backbones]
                self._start(batchers, [_route(backbones, name) for name in self.team.policies])
                return
            for backbone in backbones:
                for index, name in enumerate(backbone.policies):
                    weights = own[backbone.name]
                    weights = _adapter(weights["adapters"], index) if "adapters" in weights else weights["model"]
                    self.set_weights(self.team.policies.index(name), weights, version)

    def close(self) -> None:
        """End the thread and free its memory. A later `publish` starts it again."""
        super().close()
        self.batchers = ()

    def _batcher(self, backbone: Backbone, weights: dict, version: int) -> Batcher:
        """Create the batcher of a backbone, and on accelerators start compiling its programs."""
        policy = backbone.policy
        more: dict[str, Any] = {}
        if policy.lora is not None:
            scale = lora.scales(policy.lora.n, policy.lora.rank, policy.lora.alpha)
            more = dict(adapters=weights["adapters"], lora_scale=scale)
        name = ("engine", backbone.name)
        known = name in self._programs
        build = functools.partial(Engine, backbone.model, weights["model"], dtype=policy.dtype, mesh=self._local)
        engine = self._programs.get(name, lambda: build(**more))
        if known:
            engine.update(weights["model"], **more)
        engine.versions = [version] * engine.n_policies
        try:
            batcher = Batcher(engine, tokenizer=backbone.tokenizer, **self._settings)
        except ValueError as error:
            raise RunError(f"cannot create the sampler of {backbone.name}: {error}") from error
        if jax.default_backend() != "cpu":  # accelerators, where compiling takes longer than running
            batcher.compile()
        return batcher

    def _whole(self, weights: dict) -> dict:
        """Return weights as arrays that this process can access alone."""
        if jax.process_count() == 1:
            return weights
        assert self._local is not None
        return jax.tree.map(functools.partial(_own_copy, self._local), _gather(self.mesh)(weights))


def local_mesh(mesh: Mesh) -> Mesh | None:
    """Return this process's part of a mesh; None for a single device.

    Rows are sharded over the devices of the process, and heads if the mesh has a tensor axis.
    """
    if mesh.size == 1:
        return None
    if jax.process_count() == 1:
        return mesh
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    shape = (len(devices) // mesh.shape["tensor"], 1, mesh.shape["tensor"])
    return jax.make_mesh(shape, MESH_AXES, devices=devices, axis_types=(jax.sharding.AxisType.Auto,) * len(MESH_AXES))


@functools.cache
def _gather(mesh: Mesh):
    return jax.jit(lambda tree: tree, out_shardings=placement.replicated(mesh))


def _acting(weights: Mapping[str, Any], parts: Sequence[str]) -> dict:
    """Select the given parts, or the model if there are no adapters."""
    return {name: weights[name] for name in parts if name in weights} or {"model": weights["model"]}


def _own_copy(mesh: Mesh, x: jax.Array) -> jax.Array:
    """Convert an array that is replicated everywhere to one on this process's devices."""
    pieces = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, NamedSharding(mesh, PartitionSpec()), pieces)


def _route(backbones: Sequence[Backbone], name: str) -> tuple[int, int]:
    """Return the batcher of a policy and the policy's index there."""
    return next((b.number, b.policies.index(name)) for b in backbones if name in b.policies)


def _adapter(adapters: dict, index: int) -> dict:
    """Select one of n adapters: arrays [L, n, …] -> [L, …]."""
    return jax.tree.map(lambda x: jnp.asarray(x[:, index]), adapters)
