"""Meshes from the config on eight virtual devices, and batches that fit them."""

import jax
import pytest

from configs import defaults, meshes
from marl_jax import mesh
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
