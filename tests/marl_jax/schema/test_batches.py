"""Batches that divide into minibatches and shards, and suggestions for those that do not."""

import pytest

from configs import algorithms, defaults
from marl_jax.errors import ConfigError
from marl_jax.schema import batches

pytestmark = pytest.mark.quick


def config_with(games=256, turns=16, minibatches=4):
    config = defaults.get_config()
    config.rollout.update(dict(num_envs=games, unroll_length=turns))
    config.algo.minibatches = minibatches
    return config


def test_batches_that_do_not_divide_are_refused_with_the_nearest():
    batches.check_batches(config_with(games=256), num_shards=8)
    with pytest.raises(
        ConfigError, match=r"rollout.num_envs is 250, but must be a multiple of the 8 .*such as 248 or 256"
    ):
        batches.check_batches(config_with(games=250), num_shards=8)
    config = config_with()
    config.eval.games = 100
    with pytest.raises(
        ConfigError, match=r"eval.games is 100, but must be a multiple of the 8 batch shards, such as 96 or 104"
    ):
        batches.check_batches(config, num_shards=8)


def test_minibatches_must_divide_too_and_the_nearest_do():
    config = config_with(games=24, turns=1, minibatches=2)
    with pytest.raises(ConfigError, match="24 rows do not divide .* try 16 or 32"):
        batches.check_batches(config, num_shards=8)
    for games in (16, 32):
        batches.check_batches(config_with(games=games, turns=1, minibatches=2), num_shards=8)


def test_the_candidates_of_one_prompt_are_one_row():
    config = config_with(games=8, turns=2, minibatches=2)
    config.algo = algorithms.at_grpo(4)
    config.algo.minibatches = 2
    batches.check_batches(
        config, num_shards=8
    )  # 16 rows divide into 2 minibatches of 8 shards; 64 samples would divide further
    config.algo.minibatches = 4
    with pytest.raises(ConfigError, match=r"16 rows do not divide .* try 16$"):
        batches.check_batches(config, num_shards=8)
    config.rollout.num_envs = 16
    batches.check_batches(config, num_shards=8)


def test_a_conversation_is_one_row():
    config = config_with(games=8, turns=9, minibatches=2)
    assert batches.rows(config) == 72
    config.env.context = "history"
    assert batches.rows(config) == 16  # two seats
    batches.check_batches(config, num_shards=8)
    config.rollout.num_envs, config.algo.minibatches = 12, 4
    with pytest.raises(ConfigError, match=r"24 rows do not divide .* try 8 or 16$"):
        batches.check_batches(config, num_shards=4)


def test_a_task_makes_the_rows_it_needs():
    config = config_with(games=7, turns=1, minibatches=2)
    defaults.use_task(config, "sums")
    assert batches.rows(config) is None
    batches.check_batches(config, num_shards=8)


def test_games_must_divide_by_the_parts_of_sampling_too():
    config = config_with(games=4, turns=8, minibatches=1)
    config.eval.games = 16
    config.mesh.sampling = "replicated"
    batches.check_batches(config, num_shards=2)
    with pytest.raises(
        ConfigError, match=r"4, but must be a multiple of the 8 batch shards .mesh.sampling 'replicated'.*such as 8$"
    ):
        batches.check_batches(config, num_shards=2, sampling_shards=8)
