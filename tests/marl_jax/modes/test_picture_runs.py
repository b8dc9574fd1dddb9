"""A run that reads pictures: trained, resumed, recorded, reported and measured without its pictures."""

import jax
import numpy as np
import pytest

from benchmarks import pictures
from experiments import pictures as experiment
from marl_jax.modes import export, report, train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from models.weights.load import load

pytestmark = pytest.mark.long


def config_of(steps):
    config = experiment.get_config("plan_path+image")
    config.first_stage = {}
    config.steps = steps
    config.mesh.data = 1
    config.env.params.update(dict(n_train=16, n_test=8))
    config.model.shape.update(dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16))
    config.rollout.update(dict(num_envs=8, unroll_length=4))
    config.algo.update(dict(minibatches=2))
    config.optim.update(dict(warmup=1))
    config.eval.update(dict(every=0, games=8))
    config.checkpoint.every = 1
    config.log.update(dict(games=1, games_every=1, every=1, tensorboard=False, progress=False))
    return config


@pytest.mark.quick
@pytest.mark.parametrize("game", experiment.GAMES)
@pytest.mark.parametrize("observation", experiment.OBSERVATIONS)
@pytest.mark.parametrize("algorithm", experiment.ALGORITHMS)
def test_every_form_is_valid(game, observation, algorithm):
    config = experiment.get_config(f"{game}+{observation}+{algorithm}")
    validate.check(config)
    assert (config.env.name, config.env.observation, config.algo.name) == (game, observation, algorithm)


@pytest.mark.quick
def test_other_forms_are_refused():
    for form, word in (("chess", "chess"), ("plan_path+smell", "smell"), ("plan_path+image+dqn", "dqn")):
        with pytest.raises(ValueError, match=f"'{word}' must be one of"):
            experiment.get_config(form)
    with pytest.raises(ValueError, match="must be GAME, GAME"):
        experiment.get_config("plan_path+image+ppo+more")


def trained(folder):
    checkpoints = Checkpoints(folder, read_only=True)
    state = checkpoints.restore().state["trained"]
    checkpoints.close()
    return state


@pytest.mark.nightly
def test_a_run_from_pictures(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.train(config_of(3), whole)
    train.train(config_of(2), parts)
    train.train(config_of(3), parts)
    expected, resumed = trained(whole), trained(parts)
    jax.tree.map(np.testing.assert_array_equal, resumed, expected)
    tower = expected["main"]["model"]["vision"]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(tower))

    games = list(read_json_lines(whole / "games.jsonl"))
    moves = [move for game in games for move in game["moves"]]
    assert moves and all(move["image"].startswith("data:image/png;base64,") for move in moves)
    report.main(whole)
    assert moves[0]["image"] in (whole / "report.html").read_text()

    rows = pictures.measure(whole, games=8, step="newest")
    assert [row["picture"] for row in rows] == [*pictures.PICTURES, "random moves"]
    assert all(0 <= row["success_low"] <= row["success"] <= row["success_high"] <= 1 for row in rows)

    params = load(export.main(config_of(3), whole)[0])[1]
    jax.tree.map(np.testing.assert_allclose, params["vision"], tower)
