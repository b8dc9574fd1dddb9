"""Runs that began with the weights of another one, when that one is damaged or gone."""

import logging
import shutil

import jax
import numpy as np
import pytest

from marl_jax import setup as setups
from marl_jax.errors import ConfigError, RunError
from marl_jax.modes import train
from marl_jax.schema import validate
from marl_jax.setup import warm_start
from marl_jax.setup.weights import present_weights
from tests.marl_jax import tiny_run
from tests.marl_jax.modes.test_stages import state

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("compiled_once")]


def get_config(start="", **changes):
    """Two steps, each with a checkpoint."""
    config = tiny_run.get_config()
    config.steps, config.checkpoint.every = 2, 1
    config.model.init_from = str(start)
    config.algo.kl_coef = changes.get("kl", 0.0)
    config.model.lora.rank = changes.get("rank", 0)
    return config


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The run that others start from."""
    folder = tmp_path_factory.mktemp("first")
    train.train(get_config(), folder)
    return folder


KINDS = {"all weights": {}, "a reference": dict(kl=0.1), "adapters": dict(rank=2)}


@pytest.fixture(scope="module")
def runs(first, tmp_path_factory):
    """By kind: a run that started from a folder that is gone by now, as (config, folder)."""
    gone, found = tmp_path_factory.mktemp("gone") / "first", {}
    shutil.copytree(first, gone)
    for kind, changes in KINDS.items():
        found[kind] = get_config(gone, **changes), tmp_path_factory.mktemp("run")
        train.train(*found[kind])
    shutil.rmtree(gone)
    return found


def copied(run, folder, *without):
    """The config and a copy of a run, without the checkpoints of some steps."""
    config, original = run
    shutil.copytree(original, folder, dirs_exist_ok=True)
    for step in without:
        shutil.rmtree(folder / "checkpoints" / str(step))
    return config, folder


def damage(folder, *steps):
    for step in steps:
        file = max((folder / "checkpoints" / str(step) / "state").rglob("*"), key=lambda path: path.stat().st_size)
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")


def test_the_newest_whole_checkpoint_is_the_start(first, tmp_path, caplog):
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    assert warm_start.find(str(tmp_path), "main").step == 2
    damage(tmp_path, 2)
    files = sorted(tmp_path.rglob("*"))
    with caplog.at_level(logging.WARNING, "marl_jax"):
        weights = setups.make(get_config(tmp_path)).backbone.weights_at_start()[0]["model"]
    assert f"{tmp_path}/checkpoints: the checkpoint of step 2 cannot be used" in caplog.text
    assert sorted(tmp_path.rglob("*")) == files  # it is the folder of another run
    expected = warm_start.find(f"{first}@1", "main").params(setups.make(get_config(first)).backbone)
    jax.tree.map(np.testing.assert_array_equal, weights, expected)
    damage(tmp_path, 1)
    with pytest.raises(RunError, match=r"config.model.init_from is .*: all checkpoints \[2, 1\] are damaged"):
        warm_start.find(str(tmp_path), "main")


def test_a_run_with_all_weights_continues_exactly(runs, tmp_path):
    config, folder = copied(runs["all weights"], tmp_path, 2)
    with pytest.raises(ConfigError, match="init_from is .*, but must be '' or the folder of an existing run"):
        validate.check(config)
    validate.check(config, workdir=folder)
    train.train(config, folder)
    again, original = state(folder), state(runs["all weights"][1])
    assert again.step == 2 and again.meta["run"] == original.meta["run"]
    jax.tree.map(np.testing.assert_array_equal, again.state, original.state)


def test_a_run_with_all_weights_continues_when_its_start_is_damaged(first, tmp_path):
    start, folder = tmp_path / "start", tmp_path / "run"
    shutil.copytree(first, start)
    config = get_config(start)
    train.train(config, folder)
    original = state(folder)
    shutil.rmtree(folder / "checkpoints" / "2")
    damage(start, 2)
    train.train(config, folder)
    jax.tree.map(np.testing.assert_array_equal, state(folder).state, original.state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_is_done(runs, tmp_path, caplog, kind):
    config, folder = copied(runs[kind], tmp_path)
    with caplog.at_level(logging.INFO, "marl_jax"):
        train.train(config, folder)
    assert "all 2 steps are done" in caplog.text


@pytest.mark.parametrize(
    "kind, why", [("a reference", "the initial policy, which the loss refers to"), ("adapters", "the base of adapters")]
)
def test_weights_that_are_in_no_checkpoint_are_missed(runs, tmp_path, kind, why):
    config, folder = copied(runs[kind], tmp_path, 2)
    with pytest.raises(RunError, match=f"has no checkpoints; it is required because checkpoints do not have {why}"):
        train.train(config, folder)


def test_a_run_that_has_yet_to_save_anything_needs_its_start(runs, tmp_path):
    config, folder = copied(runs["all weights"], tmp_path, 1, 2)
    with pytest.raises(RunError, match="config.model.init_from is .* has no checkpoints"):
        train.train(config, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_evaluated_with_what_it_has(runs, kind):
    config, folder = runs[kind]
    validate.check(config, "eval", folder)
    setup = setups.make(config, workdir=folder)
    if config.model.lora.rank:
        with pytest.raises(RunError, match="it is required because checkpoints do not have the base of adapters"):
            present_weights(setup, folder)
        return
    step, weights = present_weights(setup, folder)
    expected = state(folder).state["trained"]["main"]["model"]
    jax.tree.map(np.testing.assert_array_equal, weights["main"]["model"], expected)
    assert step == 2
