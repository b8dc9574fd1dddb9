"""First stages: one command trains both stages and resumes either."""

import shutil
import types

import jax
import numpy as np
import pytest

from experiments import hanabi_selfplay
from marl_jax import setup as setups
from marl_jax.devices.aot import SharedPrograms
from marl_jax.errors import ConfigError
from marl_jax.evaluation import contestants
from marl_jax.modes import train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import flags, saved, stages, validate
from marl_jax.setup.weights import restore_weights
from tests.marl_jax import tiny_run

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compiled_once")]


def get_config():
    """Return a run with two steps of imitation, then four steps of PPO, with adapters.

    Adapters are the harder case: their base comes from the seed, and the reference is adapters too.
    """
    config = tiny_run.get_config()
    config.steps, config.checkpoint.every = 4, 1
    config.algo.update(dict(kl_coef=0.1, entropy_ratio=0.0))
    config.first_stage = dict(steps=2, algo=dict(name="sft", minibatches=2), optim=dict(lr=1e-2))
    config.model.lora.update(dict(rank=2, alpha=4.0, targets=("q", "v")))
    return config


def state(workdir):
    """Return the contents of the newest checkpoint."""
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    return restored


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A complete run with two stages: (config, folder)."""
    config = get_config()
    validate.check(config)
    workdir = tmp_path_factory.mktemp("stages") / "run"
    train.train(config, workdir)
    return config, workdir


def test_a_stage_has_the_fields_of_its_run_but_those_it_names():
    config = get_config()
    config.env.params.size = 4
    config.optim.b1 = 0.5
    stage = stages.first_stage(config)
    assert (stage.steps, stage.optim.lr, stage.algo.minibatches) == (2, 1e-2, 2)
    assert (stage.env.params.size, stage.optim.b1, stage.rollout.num_envs) == (4, 0.5, 16)
    assert stage.algo.name == "sft" and "kl_coef" not in stage.algo and stage.algo.noise == 0.1  # its own defaults
    assert stages.first_stage(stage) is None
    config.first_stage.first_stage = dict(steps=1)
    assert stages.first_stage(stages.first_stage(config)).steps == 1


@pytest.mark.parametrize("model", ["tiny", "smollm2", "smollm2-lora", "qwen2.5-7b"])
def test_hanabi_has_both_stages_or_one_of_them(model):
    both = hanabi_selfplay.get_config(model)
    assert (stages.first_stage(both).algo.name, both.algo.name) == ("sft", "ppo") and both.algo.kl_coef > 0
    assert hanabi_selfplay.get_config(f"sft+{model}").to_dict() == stages.first_stage(both).to_dict()
    scratch = hanabi_selfplay.get_config(f"scratch+{model}")
    assert stages.first_stage(scratch) is None and scratch.algo.kl_coef == 0


def test_fields_of_a_stage_on_the_command_line(tmp_path):
    command = ["launch.py", "--config=tests/marl_jax/tiny_run.py", "--config.first_stage.algo.name=sft"]
    config = flags.parse([*command, "--config.first_stage.optim.lr=0.01", "--config.seed=3"], ("train",)).config
    assert config.first_stage.to_dict() == {"algo": {"name": "sft"}, "optim": {"lr": 0.01}}
    assert stages.first_stage(config).seed == 3
    config = flags.parse([*command, "--config.first_stage.algo.noize=0.5", "--config.first_stage.steps=-1"], ()).config
    with pytest.raises(ConfigError) as refused:
        validate.check(config)
    assert "first stage: config.steps is -1, but must be an integer >= 1" in str(refused.value)
    assert "first stage: config.algo.noize is not a field of sft" in str(refused.value)


def test_the_run_starts_from_what_was_imitated_and_is_compared_with_it(run):
    config, workdir = run
    imitated = state(workdir / stages.FOLDER)
    assert (imitated.step, imitated.meta["run"]["algorithm"]) == (2, "sft")
    trained, frozen = setups.make(stages.started(config, workdir)).backbone.weights_at_start()
    expected = imitated.state["trained"]["main"]["adapters"]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(trained["adapters"]), expected)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(frozen["reference"]), expected)
    assert any(x.any() for x in jax.tree.leaves(expected))
    rows = read_json_lines(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and rows[0]["kl"] < 1e-3


def test_the_folder_is_that_of_one_run(run):
    config, workdir = run
    assert saved.read(workdir).model.init_from == ""  # the path of the stage follows from the folder
    assert saved.read(workdir).first_stage.algo.name == "sft"
    page = (workdir / "report.html").read_text()
    assert page.count("<h2>First stage: sft</h2>") == 1 and "step</span><b>2 of 2</b>" in page


@pytest.mark.nightly
def test_a_run_interrupted_in_its_first_stage_equals_one_that_was_not(run, tmp_path):
    _, workdir = run
    again = tmp_path / "again"
    shutil.copytree(workdir, again)
    shutil.rmtree(again / "checkpoints")
    shutil.rmtree(again / stages.FOLDER / "checkpoints" / "2")
    train.train(saved.read(again), again)
    for folder in ("", stages.FOLDER):
        jax.tree.map(np.testing.assert_array_equal, state(workdir / folder).state, state(again / folder).state)


@pytest.mark.nightly
def test_a_first_stage_whose_last_checkpoint_is_damaged_is_finished_again(run, tmp_path):
    _, workdir = run
    again = tmp_path / "again"
    shutil.copytree(workdir, again)
    shutil.rmtree(again / "checkpoints")
    (again / stages.FOLDER / "checkpoints" / "2" / "state" / "_METADATA").write_bytes(b"{}")
    train.train(saved.read(again), again)
    for folder in ("", stages.FOLDER):
        jax.tree.map(np.testing.assert_array_equal, state(workdir / folder).state, state(again / folder).state)


def test_a_finished_run_is_done_without_its_first_stage(run, tmp_path, caplog):
    _, workdir = run
    again = tmp_path / "again"
    shutil.copytree(workdir, again)
    shutil.rmtree(again / stages.FOLDER)
    with caplog.at_level("INFO", "marl_jax"):
        train.train(saved.read(again), again)
    assert "all 4 steps are done" in caplog.text and not (again / stages.FOLDER).exists()


def test_a_stop_in_the_first_stage_keeps_the_second_from_starting(tmp_path):
    config = get_config()
    stop = types.SimpleNamespace(asked=True, name="SIGTERM")
    assert not train.train_stages(config, tmp_path, stop, SharedPrograms())
    assert state(tmp_path / stages.FOLDER).step == 1
    assert not (tmp_path / "checkpoints").exists()
    assert saved.read(tmp_path).steps == 4  # so the folder alone is enough to continue


def test_a_run_that_was_moved_can_be_evaluated(run, tmp_path):
    config, workdir = run
    moved = tmp_path / "moved"
    shutil.copytree(workdir, moved)
    setup = setups.make(stages.started(saved.read(moved), moved))
    step, weights = restore_weights(setup, moved)
    expected = restore_weights(setups.make(stages.started(config, workdir)), workdir)[1]
    assert step == 4
    jax.tree.map(np.testing.assert_array_equal, weights, expected)
    assert contestants.find_contestant(str(moved), setup).name == "moved"
