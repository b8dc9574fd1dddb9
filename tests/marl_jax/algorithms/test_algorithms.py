"""The registry of algorithms: unknown names are errors everywhere, and one that is added trains like any other."""

import jax
import numpy as np
import pytest

from marl_jax import setup as setups
from marl_jax.algorithms import ALGORITHMS
from marl_jax.algorithms.ppo import PPO
from marl_jax.errors import ConfigError
from marl_jax.modes import train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from tests.marl_jax import tiny_run

PLUGIN = """
from marl_jax.algorithms import ALGORITHMS
from marl_jax.algorithms import ppo_config
from marl_jax.algorithms.ppo import PPO, ClippedObjective, compute_advantages, rollout
from marl_jax.algorithms.algorithm import Algorithm

MINE = Algorithm(
    "mine", ppo_config.PPOSettings, rollout, compute_advantages, ClippedObjective(critic=True), check=ppo_config.check,
    critic=True,
)
ALGORITHMS.add("mine", MINE)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The name of a module that adds PPO once more, as `mine`; forgotten after the test."""
    (tmp_path / "my_algorithm.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))
    return "my_algorithm"


def small(name="ppo"):
    config = tiny_run.get_config("pool")
    config.steps, config.checkpoint.every = 2, 2
    config.opponents.snapshot_every = 1
    config.algo.name = name
    config.mesh.data = 1
    return config


@pytest.mark.parametrize("name", ["gpro", "PPO", "", "ppo "])
def test_an_unknown_name_is_an_error_everywhere(name):
    config = small(name)
    with pytest.raises(ValueError, match=f"unknown algorithm {name!r}; must be one of: ppo, grpo, at_grpo, sft"):
        ALGORITHMS.get(name)
    with pytest.raises(ValueError, match=f"unknown algorithm {name!r}"):
        setups.make(config)
    with pytest.raises(ConfigError, match=f"config.algo.name is {name!r}, but must be one of: ppo, grpo, at_grpo, sft"):
        validate.check(config)


def test_every_algorithm_is_whole():
    for name in ALGORITHMS:
        algorithm = ALGORITHMS.get(name)
        assert algorithm.name == name and {"epochs", "minibatches", "grad_accum_steps"} <= set(algorithm.fields)
        assert algorithm.critic == (algorithm.settings().critic != "none")
        assert all(callable(getattr(algorithm.objective, part)) for part in ("loss_weights_for", "loss", "summary"))


@pytest.mark.nightly
def test_an_algorithm_that_a_module_adds_trains_as_its_original(tmp_path, plugin):
    """PPO under another name: the same samples, the turns that look ahead among them, and the same parameters."""
    original, added = small(), small("mine")
    added.plugins = (plugin,)
    states = {}
    for name, config in (("original", original), ("added", added)):
        validate.check(config)
        train.train(config, tmp_path / name)
        checkpoints = Checkpoints(tmp_path / name, read_only=True)
        states[name] = checkpoints.restore().state
        checkpoints.close()
    assert set(states["added"]) == {"trained", "optimizer", "skipped", "lr_factor", "rollout"}
    jax.tree.map(np.testing.assert_array_equal, states["original"], states["added"])
    ours, theirs = (read_json_lines(tmp_path / name / "metrics.jsonl") for name in ("added", "original"))
    assert ours[0]["completions_trained"] == theirs[0]["completions_trained"] > 0
    assert all(row["value_loss"] == other["value_loss"] for row, other in zip(ours, theirs, strict=True))
    # The last turns of a rollout are learnt from as well: all answers of the learner count in the first update.
    assert ours[0]["completions_trained"] == ours[0]["completions"]


def test_a_name_that_exists_is_refused(plugin):
    with pytest.raises(ValueError, match="algorithm 'ppo' already exists"):
        ALGORITHMS.add("ppo", PPO)
