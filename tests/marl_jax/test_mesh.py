"""Meshes from the config on eight virtual devices, and batches that fit them."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from configs import algorithms, defaults, meshes
from marl_jax.devices import mesh, placement
from marl_jax.errors import ConfigError


def config_with(data=1, fsdp=1, tensor=1, games=256, turns=16, minibatches=4):
    config = defaults.get_config()
    config.mesh.update(dict(data=data, fsdp=fsdp, tensor=tensor))
    config.rollout.update(dict(games=games, turns=turns))
    config.algo.minibatches = minibatches
    return config


def test_one_axis_takes_the_devices_left():
    made = mesh.make(config_with(data=-1, tensor=2))
    assert dict(made.shape) == {"data": 4, "fsdp": 1, "tensor": 2}
    assert made.size == jax.device_count() == 8 and mesh.batch_ways(made) == 4


def test_some_of_the_devices():
    assert dict(mesh.make(config_with(fsdp=-1), jax.devices()[:2]).shape) == {"data": 1, "fsdp": 2, "tensor": 1}


def test_the_ready_made_meshes():
    config = defaults.get_config()
    ready = {(8, 1, 1): meshes.automatic(), (1, 8, 1): meshes.sharded(), (1, 2, 4): meshes.tensor_parallel(4)}
    for expected, config.mesh in ready.items():
        assert tuple(mesh.sizes(config, 8).values()) == expected


@pytest.mark.parametrize("ways", [dict(data=3), dict(data=-1, tensor=3), dict(data=2, fsdp=2), dict(data=16)])
def test_ways_that_do_not_fit_the_devices_are_refused(ways):
    with pytest.raises(ConfigError, match="there are 8, accepted: ways out of 1, 2, 4, 8 whose product is 8"):
        mesh.make(config_with(**ways))


def test_batches_that_do_not_divide_are_refused_with_the_nearest():
    mesh.check_batches(config_with(games=256), ways=8)
    with pytest.raises(ConfigError, match=r"rollout.games is 250, not a multiple of the 8 .*nearest: 248 or 256"):
        mesh.check_batches(config_with(games=250), ways=8)
    config = config_with()
    config.eval.games = 100
    with pytest.raises(ConfigError, match=r"eval.games is 100, not a multiple of 8; nearest: 96 or 104"):
        mesh.check_batches(config, ways=8)


def test_minibatches_must_divide_too_and_the_nearest_do():
    config = config_with(games=24, turns=1, minibatches=2)
    with pytest.raises(ConfigError, match="24 samples do not split .* nearest: 16 or 32"):
        mesh.check_batches(config, ways=8)
    for games in (16, 32):
        mesh.check_batches(config_with(games=games, turns=1, minibatches=2), ways=8)


def test_samples_that_share_a_prompt_stay_on_one_device():
    config = config_with(games=8, turns=2, minibatches=2)
    config.algo = algorithms.at_grpo(4)
    config.algo.minibatches = 2
    mesh.check_batches(config, ways=8)  # 16 groups in 2 minibatches of 8 parts; 64 samples would go further
    config.algo.minibatches = 4
    with pytest.raises(ConfigError, match=r"16 groups of 4 samples that share a prompt do not .* nearest: 16$"):
        mesh.check_batches(config, ways=8)
    config.rollout.games = 16
    mesh.check_batches(config, ways=8)
    config.rollout.games, config.algo.share_prefix = 8, False
    mesh.check_batches(config, ways=8)


@pytest.mark.parametrize(
    "kind, shape", [("same", (2, 2, 2)), ("replicated", (8, 1, 1)), ("tensor", (4, 1, 2))], ids=str
)
def test_the_same_devices_arranged_for_sampling(kind, shape):
    made = mesh.make(config_with(data=2, fsdp=2, tensor=2))
    other = mesh.for_sampling(made, kind)
    assert tuple(other.shape.values()) == shape
    assert other.devices.flatten().tolist() == made.devices.flatten().tolist()


def test_games_must_divide_by_the_parts_of_sampling_too():
    config = config_with(games=4, turns=8, minibatches=1)
    config.eval.games = 16
    config.mesh.sampling = "replicated"
    mesh.check_batches(config, ways=2)
    with pytest.raises(
        ConfigError, match=r"4, not a multiple of the 8 parts .*mesh.sampling 'replicated'.*nearest: 8$"
    ):
        mesh.check_batches(config, ways=2, sampling_ways=8)


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
