"""Sweeps: members share programs, resume, and do not stop each other."""

import json

import pytest

from marl_jax import cli
from marl_jax.modes import report
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import sweeps
from marl_jax.setup.trainer import Trainer
from tests.marl_jax.devices.test_aot import Compiled

CONFIG = "--config=tests/marl_jax/tiny_run.py"
SHORT = ("--config.steps=2", "--config.rollout.num_envs=8", "--config.rollout.unroll_length=2",
         "--config.eval.every=2", "--config.eval.games=8", "--config.eval.opponents=('random',)",
         "--config.checkpoint.best_metric=random/win_rate")  # fmt: skip


@pytest.fixture
def run(tmp_path, own_console):
    """Start a command with a sweep in a folder, and return its exit status."""
    return lambda *flags: cli.main(["launch.py", CONFIG, f"--workdir={tmp_path}", "--compilation_cache=off", *SHORT,
                                       *flags])  # fmt: skip


@pytest.fixture
def steps(monkeypatch):
    """Record (seed, learning rate, step) of every update; seed 1 fails if it is in `failing`."""
    done, failing, update = [], set(), Trainer.update

    def recorded(self, samples, step, lr_scale, clock):
        config = self._setup.config
        done.append((config.seed, config.optim.lr, step))
        if config.seed in failing:
            raise RuntimeError("the device caught fire\nwith details")
        return update(self, samples, step, lr_scale, clock)

    monkeypatch.setattr(Trainer, "update", recorded)
    return done, failing


def test_members_share_programs_resume_and_do_not_stop_each_other(run, steps, tmp_path, capsys):
    done, failing = steps
    failing.add(1)
    with Compiled() as compiled:
        assert run("--seeds=0,1", "--sweep.optim.lr=1e-3,3e-4") == 1
    names = compiled.names
    assert [names.count(name) for name in ("__call__", "learn_step", "_play")] == [1, 1, 1]
    assert done == [(0, 1e-3, 0), (0, 1e-3, 1), (1, 1e-3, 0), (0, 3e-4, 0), (0, 3e-4, 1), (1, 3e-4, 0)]
    error = capsys.readouterr().err
    assert "2 of 4 runs of the sweep failed" in error
    assert "optim.lr=0.001_seed=1: RuntimeError: the device caught fire\n" in error

    rates = [read_json_lines(tmp_path / f"optim.lr={lr}_seed=0" / "metrics.jsonl")[-1] for lr in (0.001, 0.0003)]
    assert rates[0]["learning_rate"] == pytest.approx(1e-3) and rates[1]["learning_rate"] == pytest.approx(3e-4)
    assert rates[0]["loss"] != rates[1]["loss"]
    result = json.loads((tmp_path / "sweep.json").read_text())
    assert [member["state"].partition(":")[0] for member in result["members"]] == [
        "finished, 2 steps", "failed at step 0", "finished, 2 steps", "failed at step 0"]  # fmt: skip

    failing.clear()
    done.clear()
    assert run("--seeds=0,1", "--sweep.optim.lr=1e-3,3e-4") == 0
    assert done == [(1, 1e-3, 0), (1, 1e-3, 1), (1, 3e-4, 0), (1, 3e-4, 1)], "finished members are skipped"
    result = json.loads((tmp_path / "sweep.json").read_text())
    assert [group["values"] for group in result["groups"]] == [{"optim.lr": 1e-3}, {"optim.lr": 3e-4}]
    won = result["groups"][0]["results"]["random/win_rate"]
    assert won["runs"] == 2 and won["mean"] == pytest.approx(sum(won["values"]) / 2) and won["low"] <= won["mean"]
    table = (tmp_path / "report.md").read_text()
    assert "| optim.lr | finished |" in table and "| 0.001 | 2 of 2 |" in table
    page = (tmp_path / "report.html").read_text()
    assert 'href="optim.lr=0.0003_seed=1/report.html"' in page and "t interval" in page

    folders = [str(tmp_path / member["name"]) for member in result["members"][:2]]
    assert cli.main(["launch.py", "--mode=report", f"--workdir={','.join(folders)}"]) == 0
    assert "comparison of 2 runs" in (tmp_path / "comparison.html").read_text()


@pytest.mark.nightly
def test_a_member_is_the_run_that_it_would_be_alone(run, steps, tmp_path):
    """The shared programs of another seed and learning rate change nothing."""
    assert run("--seeds=3,4", "--sweep.optim.lr=1e-3,2e-3") == 0
    alone = tmp_path / "alone"
    flags = ("--config.seed=4", "--config.optim.lr=2e-3", f"--workdir={alone}")
    assert cli.main(["launch.py", CONFIG, "--compilation_cache=off", *SHORT, *flags]) == 0
    ours, theirs = (read_json_lines(folder / "metrics.jsonl") for folder in (tmp_path / "optim.lr=0.002_seed=4", alone))
    timed = ("time", "seconds/", "games_per_s", "tokens_per_s")
    for row, other in zip(ours, theirs, strict=True):
        assert {k: v for k, v in row.items() if not k.startswith(timed)} == {
            k: v for k, v in other.items() if not k.startswith(timed)
        }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds="], "--seeds is '', but must be values separated by commas"),
        (["--seeds=0,,1"], "--seeds is '0,,1', but must be values separated by commas"),
        (["--seeds=0,1,0"], "--seeds is '0,1,0', but must have each value once"),
        (["--seeds=0,one"], "--config.seed=one: the value must be an integer"),
        (["--seeds=0", "--seeds=1"], "--seeds is given twice, but must be given once with all values"),
        (["--sweep.seed=0,1"], "--sweep.seed is not a flag; use --seeds=0,1"),
        (["--sweep.optm.lr=1"], "--config.optm.lr is not a field; did you mean optim.lr?"),
        (["--sweep.optim=1"], "--config.optim is a group of fields"),
        (["--sweep.optim.lr=1e-3,fast"], "--config.optim.lr=fast: the value must be a number"),
        (["--sweep.optim.lr=1e-3,0.001"], "two runs of the sweep are optim.lr=0.001, but each must have other values"),
        (["--sweep.optim.lr=1e-3,-1"], "config.optim.lr is -1.0, but must be"),
        (["--seeds=0,1", "--mode=eval"], "--mode is eval, but must be train with --seeds or --sweep"),
        (["--seeds=0", "--config.distributed.enabled=true"], "config.distributed.enabled is True, but must be False"),
    ],
)  # fmt: skip
def test_a_bad_grid_is_refused_in_one_line(run, capsys, tmp_path, flags, message):
    assert run(*flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"launch.py: {message}") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_grid_keeps_brackets_together_and_members_with_the_same_shapes_next_to_each_other():
    grid, rest = sweeps.take(["launch.py", "--seeds=0,1", "--sweep.eval.opponents=('random','minimax'),()", "--x=1"])
    assert rest == ["launch.py", "--x=1"]
    assert grid == {"eval.opponents": ("('random','minimax')", "()"), "seed": ("0", "1")}

    def parse(overrides):
        return cli.flags.parse(["launch.py", CONFIG, *overrides], tuple(cli.MODES)).config

    grid, _ = sweeps.take(["--sweep.optim.lr=1e-3,2e-3", "--sweep.rollout.num_envs=8,16", "--seeds=0,1"])
    members = sweeps.members(grid, parse)
    assert [member.values["rollout.num_envs"] for member in members] == [8] * 4 + [16] * 4
    assert members[0].name == "optim.lr=0.001_rollout.num_envs=8_seed=0"
    assert len({member.shapes for member in members}) == 2


def test_the_folder_of_a_single_run_is_no_sweep(run, tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert run("--seeds=0,1") == 1
    assert "is the folder of a single run; choose another --workdir for the sweep" in capsys.readouterr().err


def test_the_folder_of_a_sweep_is_no_single_run(run, tmp_path, capsys):
    (tmp_path / "sweep.json").write_text("{}")
    assert run() == 1
    assert "is the folder of a sweep; add its --seeds or --sweep" in capsys.readouterr().err


def test_a_damaged_list_of_members_is_left_out(tmp_path, caplog):
    for text in ("{", "[]", '{"members": [{"name": 3}]}'):
        (tmp_path / "sweep.json").write_text(text)
        assert report.read_sweep(tmp_path) == []


@pytest.mark.nightly
def test_members_with_a_task_share_the_programs_of_the_sampler(own_console, tmp_path, monkeypatch):
    before, init = [], Trainer.__init__

    def recorded(self, setup):
        before.append(len(compiled.names))
        init(self, setup)

    monkeypatch.setattr(Trainer, "__init__", recorded)
    flags = ("--config.steps=2", "--config.eval.every=2", "--config.checkpoint.best_metric=self/success", "--seeds=0,1")
    with Compiled() as compiled:
        task = "--config=tests/marl_jax/tiny_task.py:grpo"
        assert cli.main(["launch.py", task, f"--workdir={tmp_path}", "--compilation_cache=off", *flags]) == 0
    first, second = compiled.names[before[0] : before[1]], compiled.names[before[1] :]
    assert "run" in first and "learn_step" in first, "the programs of the sampler, and the update"
    assert not {"run", "learn_step", "make", "<lambda>", "begin"} & set(second), second
