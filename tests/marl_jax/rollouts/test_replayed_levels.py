"""Rollouts on replayed levels: first states, recorded results and loss weights."""

import jax
import numpy as np
import pytest

from experiments import level_replay
from marl_jax import setup as setups
from marl_jax.errors import ConfigError
from marl_jax.rollouts.replayed_levels import ReplayedLevels
from marl_jax.schema import validate
from tests.models.tiny_models import quick_jit

ROWS, TURNS = 8, 12


def small(form):
    config = level_replay.get_config(form)
    config.model.shape.update(dict(d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=8, d_ff=8))
    config.env.params.update(dict(n_train=24, n_test=8))
    config.rollout.update(dict(num_envs=ROWS, unroll_length=TURNS))
    config.level_replay.update(dict(capacity=6, candidates=4))
    return config


@pytest.mark.nightly_for("plr", "robust_plr")
@pytest.mark.parametrize("method", ["plr", "robust_plr", "accel"])
def test_games_start_on_levels_of_the_buffer(method):
    setup = setups.make(small(method))
    rollout = setup.rollout
    assert isinstance(rollout, ReplayedLevels)
    weights = {b.name: {**b.weights_at_start()[1], **b.weights_at_start()[0]} for b in setup.backbones}
    state = quick_jit(rollout.init)(jax.random.key(0), weights)
    assert set(np.asarray(state.inner.games.state.level)) <= {0, 1, 2, 3}  # nothing is replayed yet
    step, games, before = quick_jit(rollout), 0, state
    for number in range(3):
        before = state
        samples, state, metrics = step(weights, state, jax.random.key(number))
        games += int(metrics["games"])
    buffer = state.buffer
    assert int(buffer.time) == 3 and int(metrics["levels/held"]) == np.sum(np.asarray(buffer.number[:6]) >= 0) > 0
    assert 0 < float(buffer.games.sum()) <= games
    known = np.asarray(buffer.number)
    started = np.asarray(state.inner.games.state.level)[np.asarray(state.inner.games.turn) == 0]
    before_exchange = np.asarray(before.buffer.number)
    assert set(started) <= set(known) | set(before_exchange)
    # The learner excludes games on candidates, if it is robust.
    active = np.asarray(samples.loss_weights[:, 0])[: ROWS * TURNS].reshape(TURNS, ROWS)
    assert (active == 0).any() == (method != "plr")
    assert (active > 0).any()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env.params.roles": "two"}, "but roles must be 'one'"),
        ({"curriculum.enabled": True}, "with curriculum.enabled True, but they are mutually exclusive"),
        ({"env.context": "history"}, "but env.context must be 'turn'"),
    ],
)
def test_what_cannot_be_replayed_is_refused(changes, message):
    config = small("plr").unlock()
    validate.check(config)
    config.update_from_flattened_dict(changes)
    with pytest.raises(ConfigError, match=message):
        validate.check(config)


@pytest.mark.parametrize("changes, message", [
    ({"env.params.shaping_reward": 1.0}, "shaping_reward 1, but sokoban has this reward on levels of the pool only"),
    ({"env.params.boxes": 2}, "boxes 2, but boxes must be 1"),
    ({"env.params.boxes": 2, "level_replay.method": "plr", "level_replay.score": "regret"}, "but boxes must be 1"),
])  # fmt: skip
def test_levels_of_sokoban_that_cannot_be_solved_in_jit_are_refused(changes, message):
    config = small("accel+sokoban").unlock()
    config.first_stage = {}
    validate.check(config)
    config.update_from_flattened_dict(changes)
    with pytest.raises(ConfigError, match=message):
        validate.check(config)


@pytest.mark.quick
def test_forms_of_the_experiment():
    assert level_replay.get_config("uniform+sokoban").level_replay.method == ""
    with pytest.raises(ValueError, match="'pl' must be one of: uniform, plr"):
        level_replay.get_config("pl")
