"""Meshes from the config on eight virtual devices."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from configs import defaults, meshes
from marl_jax.devices import mesh, placement
from marl_jax.errors import ConfigError


def config_with(data=1, fsdp=1, tensor=1, games=256, turns=16, minibatches=4):
    config = defaults.get_config()
    config.mesh.update(dict(data=data, fsdp=fsdp, tensor=tensor))
    config.rollout.update(dict(num_envs=games, unroll_length=turns))
    config.algo.minibatches = minibatches
    return config


def test_one_axis_takes_the_devices_left():
    made = mesh.make(config_with(data=-1, tensor=2), jax.devices())
    assert dict(made.shape) == {"data": 4, "fsdp": 1, "tensor": 2}
    assert made.size == jax.device_count() == 8 and mesh.batch_shards(made) == 4


def test_some_of_the_devices():
    assert dict(mesh.make(config_with(fsdp=-1), jax.devices()[:2]).shape) == {"data": 1, "fsdp": 2, "tensor": 1}


def test_a_mesh_that_names_fewer_devices_uses_the_first_ones_and_warns(caplog):
    made = mesh.make(config_with(fsdp=2, tensor=2))
    assert made.devices.flatten().tolist() == jax.devices()[:4]
    assert caplog.messages == ["config.mesh uses 4 of 8 devices"]


def test_a_smaller_mesh_is_refused_when_there_are_other_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match="which needs 4 devices, but there are 8"):
        mesh.make(config_with(fsdp=2, tensor=2))


def test_the_ready_made_meshes():
    config = defaults.get_config()
    ready = {(8, 1, 1): meshes.automatic(), (1, 8, 1): meshes.sharded(), (1, 2, 4): meshes.tensor_parallel(4)}
    for expected, config.mesh in ready.items():
        assert tuple(mesh.sizes(config, 8).values()) == expected


@pytest.mark.parametrize("ways", [dict(data=3), dict(data=-1, tensor=3), dict(data=2, fsdp=2), dict(data=16)])
def test_ways_that_do_not_fit_the_devices_are_refused(ways):
    with pytest.raises(ConfigError, match="there are 8; axes must be one of: 1, 2, 4, 8, with a product of 8"):
        mesh.make(config_with(**ways), jax.devices())


@pytest.mark.parametrize(
    "kind, shape", [("same", (2, 2, 2)), ("replicated", (8, 1, 1)), ("tensor", (4, 1, 2))], ids=str
)
def test_the_same_devices_arranged_for_sampling(kind, shape):
    made = mesh.make(config_with(data=2, fsdp=2, tensor=2))
    other = mesh.for_sampling(made, kind)
    assert tuple(other.shape.values()) == shape
    assert other.devices.flatten().tolist() == made.devices.flatten().tolist()


def test_state_that_belongs_to_parameters_lies_where_they_do():
    made = mesh.make(config_with(data=2, fsdp=2, tensor=2))
    place = NamedSharding(made, PartitionSpec("fsdp", "tensor"))
    parameters = {"model": {"up": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=place)}}
    like = lambda *shape: {"model": {"up": jax.ShapeDtypeStruct(shape, jnp.float32)}}  # noqa: E731
    state = {"mu": like(8, 4), "top": like(8, 1), "pool": like(3, 8, 4), "other": like(5), "count": like(8, 4)["model"]}
    found = placement.like_parameters(made, state, parameters)
    specs = {name: jax.tree.leaves(part)[0].spec for name, part in found.items()}
    assert specs == {
        "mu": PartitionSpec("fsdp", "tensor"), "top": PartitionSpec("fsdp", None),
        "pool": PartitionSpec(None, "fsdp", "tensor"), "other": PartitionSpec(), "count": PartitionSpec(),
    }  # fmt: skip
