"""The models of a team behind the interface of one batcher, for episodes on the host.

Every process has a sampler of its own, on its own devices and with whole copies of the weights. `publish` hands it new
ones; policies have the numbers that they have in the team.
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
from marl_jax.errors import RunError
from marl_jax.sampling.batcher import MEMORY_FRAC, Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.batchers import Batchers
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.requests import OnTokens, Usage
from marl_jax.sampling.settings import Sampling
from models import lora
from models.sharding import MESH_AXES


class TeamSampler:
    """Answers for all policies of a team, with the weights that were published last.

    mesh               of the run, arranged for sampling; a process samples on its own part of it
    settings           of each `Batcher`; several of them share `memory_frac`
    """

    def __init__(self, team: Team, mesh: Mesh, *, memory_frac: float = MEMORY_FRAC, **settings):
        self.team, self.mesh = team, mesh
        self._local = local_mesh(mesh)
        self._settings = settings | dict(memory_frac=memory_frac / len(team.backbones))
        self._thread: BatcherThread | None = None

    def publish(self, params: Mapping[str, dict], version: int) -> None:
        """Gives every policy its weights, by the names of the backbones; returns when they are in place.

        All processes call it, because weights that are split over them are gathered.
        """
        backbones = self.team.backbones
        parts = ("model", "adapters") if self._thread is None else ("adapters",)  # the base of adapters stays
        own = {b.name: self._whole(_acting(params[b.name], parts)) for b in backbones}
        with contextlib.nullcontext() if self._local is None else jax.set_mesh(self._local):
            if self._thread is None:
                batchers = [self._batcher(backbone, own[backbone.name], version) for backbone in backbones]
                routes = [_route(backbones, name) for name in self.team.policies]
                self._thread = BatcherThread(Batchers(batchers, routes))
                return
            for backbone in backbones:
                for index, name in enumerate(backbone.policies):
                    weights = own[backbone.name]
                    weights = _adapter(weights["adapters"], index) if "adapters" in weights else weights["model"]
                    self._thread.set_weights(self.team.policies.index(name), weights, version)

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[Completion]:  # fmt: skip
        """As `BatcherThread.answer`."""
        return await self._thread.answer(ids, sampling, policy, n, deadline, on_tokens)

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int = 0, k: int = 5):
        """As `BatcherThread.top_logprobs`."""
        return self._thread.top_logprobs(ids, start, sampling, policy, k)

    @property
    def running(self) -> bool:
        """As `BatcherThread.running`; False before the first weights."""
        return self._thread is not None and self._thread.running

    def pause(self) -> None:
        """As `BatcherThread.pause`."""
        self._thread.pause()

    def resume(self) -> None:
        """As `BatcherThread.resume`."""
        self._thread.resume()

    def drain(self) -> None:
        """As `BatcherThread.drain`."""
        self._thread.drain()

    @property
    def usage(self) -> Usage:
        """As `BatcherThread.usage`; zeros before the first weights."""
        return Usage() if self._thread is None else self._thread.usage

    @property
    def compile_seconds(self) -> float:
        """As `Batcher.compile_seconds`; 0 before the first weights."""
        return 0.0 if self._thread is None else self._thread.compile_seconds

    def close(self) -> None:
        """Ends the thread. Weights that are published later start another one."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _batcher(self, backbone: Backbone, weights: dict, version: int) -> Batcher:
        policy, more = backbone.policy, {}
        if policy.lora is not None:
            scale = lora.scales(policy.lora.n, policy.lora.rank, policy.lora.alpha)
            more = dict(adapters=weights["adapters"], lora_scale=scale)
        engine = Engine(backbone.model, weights["model"], dtype=policy.dtype, mesh=self._local, **more)
        engine.versions = [version] * engine.n_policies
        try:
            batcher = Batcher(engine, tokenizer=backbone.tokenizer, **self._settings)
        except ValueError as error:
            raise RunError(f"the sampler of {backbone.name} cannot be made: {error}") from error
        if jax.default_backend() != "cpu":  # where a program takes longer to compile than to run
            batcher.compile()
        return batcher

    def _whole(self, weights: dict) -> dict:
        """Weights as arrays that this process can read alone."""
        if jax.process_count() == 1:
            return weights
        return jax.tree.map(functools.partial(_own_copy, self._local), _gather(self.mesh)(weights))


def local_mesh(mesh: Mesh) -> Mesh | None:
    """This process's part of a mesh; None where there is one device in all.

    With several processes, each has its devices to itself: rows are split over them, or heads where the mesh says so.
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
    """The parts that are there; those of a policy that is no adapter are the model."""
    return {name: weights[name] for name in parts if name in weights} or {"model": weights["model"]}


def _own_copy(mesh: Mesh, x: jax.Array) -> jax.Array:
    """An array that every device has all of, as one of this process's devices alone."""
    pieces = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, NamedSharding(mesh, PartitionSpec()), pieces)


def _route(backbones: Sequence[Backbone], name: str) -> tuple[int, int]:
    """The batcher of a policy, and its number there."""
    return next((b.number, b.policies.index(name)) for b in backbones if name in b.policies)


def _adapter(adapters: dict, index: int) -> dict:
    """One of n adapters: arrays [L, n, …] -> [L, …]."""
    return jax.tree.map(lambda x: jnp.asarray(x[:, index]), adapters)
