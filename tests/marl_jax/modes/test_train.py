"""Training loop: complete runs, interrupted runs and runs that fail."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import arithmetic
from marl_jax import setup as setups
from marl_jax.errors import RunError
from marl_jax.evaluation import contestants
from marl_jax.modes import evaluate, train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.events import read_events
from marl_jax.running.metric_help import explain
from marl_jax.running.metrics import read_json_lines, write_config
from marl_jax.running.monitor import Alarm, Monitor
from marl_jax.setup.run_fingerprint import model_fingerprint
from tests.conftest import ROUGH
from tests.marl_jax import tiny_run
from tests.marl_jax.devices.test_aot import Compiled

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Folder of compiled programs, shared by the processes of these tests."""
    return tmp_path_factory.mktemp("compiled")


def launch(workdir, cache, *flags, config=f"--config={ROOT}/tests/marl_jax/tiny_run.py:pool"):
    """Train in a separate process."""
    environment = dict(os.environ, JAX_PLATFORMS="cpu", JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0", XLA_FLAGS=ROUGH)
    return subprocess.Popen(
        [sys.executable, "launch.py", config, f"--workdir={workdir}", f"--compilation_cache={cache}", *flags],
        cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def state(workdir, step=None):
    """Return the contents of the newest checkpoint."""
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore(step=step)
    checkpoints.close()
    return restored.step, restored.state


def steps_done(workdir):
    return len(read_json_lines(workdir / "metrics.jsonl"))


@pytest.mark.nightly
def test_killed_and_started_again_equals_never_interrupted(tmp_path, cache):
    whole = launch(tmp_path / "whole", cache)
    assert whole.wait(600) == 0, whole.stderr.read()

    broken = launch(tmp_path / "broken", cache)
    deadline = time.monotonic() + 600
    while steps_done(tmp_path / "broken") < 5 and broken.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    broken.send_signal(signal.SIGKILL)
    broken.wait()
    resumed = launch(tmp_path / "broken", cache)
    assert resumed.wait(600) == 0, resumed.stderr.read()

    (step, expected), (other_step, found) = state(tmp_path / "whole"), state(tmp_path / "broken")
    assert step == other_step == 8
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    pool = expected["rollout"]["pool"]  # past policies and their results against the learner
    assert pool["step"].tolist() == [6, 3] and (pool["games"] > 0).any()
    first, second = (jax.tree.map(lambda x, i=i: x[i], pool["snapshots"]) for i in (0, 1))
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, first, second)))
    ours, theirs = (read_json_lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "broken"))
    timed = ("time", "seconds/rollout", "seconds/update", "games_per_s", "tokens_per_s")
    plain = lambda rows: [{k: v for k, v in row.items() if k not in timed} for row in rows]  # noqa: E731
    assert plain(ours) == plain(theirs) and [row["step"] for row in ours] == list(range(1, 9))

    again = launch(tmp_path / "whole", cache)
    assert again.wait(600) == 0
    assert "all 8 steps are done" in again.stderr.read()


@pytest.mark.nightly
def test_a_polite_stop_saves_and_the_next_start_goes_on(tmp_path, cache):
    run = launch(tmp_path, cache, "--config.steps=100000", "--config.checkpoint.every=100000")
    deadline = time.monotonic() + 600
    while steps_done(tmp_path) < 3 and run.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGTERM)
    assert run.wait(600) == 0
    assert "stopped at step" in run.stderr.read()
    assert state(tmp_path)[0] == steps_done(tmp_path) >= 3


@pytest.mark.nightly
def test_adapters_go_on_as_if_never_interrupted_with_the_config_of_the_last_start(tmp_path):
    config = tiny_run.get_config()
    config.steps = 3
    config.model.lora.rank = 2
    train.train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "3")
    config.log.progress = True
    train.train(config, tmp_path / "broken")
    (step, expected), (other_step, found) = state(tmp_path / "whole"), state(tmp_path / "broken")
    assert step == other_step == 3 and expected["trained"]["main"].keys() == {"adapters", "critic"}
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    assert json.loads((tmp_path / "broken" / "config.json").read_text())["log"]["progress"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run in this process with evaluation and logged games: (config, folder, program names)."""
    config = tiny_run.get_config()
    config.steps = 4
    config.eval.update(dict(every=1, opponents=("random",)))
    config.checkpoint.update(dict(every=3, best_metric="random/win_rate"))
    config.log.update(dict(games=1, games_every=2))
    config.mesh.data = 2
    workdir = tmp_path_factory.mktemp("run") / "first"
    with Compiled() as compiled:
        train.train(config, workdir)
    return config, workdir, compiled.names


def test_programs_that_were_compiled_ahead_are_compiled_once(finished):
    """On a mesh, the compiler chooses the shardings of the samples."""
    names = finished[2]
    assert [names.count(name) for name in ("__call__", "learn_step")] == [1, 1]
    assert names.count("_play") == 2  # the evaluation and the logged games


def test_a_run_leaves_metrics_games_and_a_report(finished):
    _, workdir, _ = finished
    rows = read_json_lines(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    wanted = {
        "reward/team", "reward/seat_0", "reward/process", "entropy", "clip_frac_low", "clip_frac_high", "ratio",
        "approx_kl", "grad_norm", "prompt_length", "completion_length",
        "parse_failure_rate", "explained_variance", "tokens_per_s",
        "games_per_s", "seconds/rollout", "seconds/update", "logprob_diff", "value_loss", "policy_loss", "skipped",
    }  # fmt: skip
    assert wanted <= rows[0].keys()
    assert not [name for row in rows for name in row if explain(name) is None], "metrics without an explanation"
    assert rows[0]["logprob_diff"] < 1e-4
    evals = read_json_lines(workdir / "eval.jsonl")
    assert [(row["step"], row["opponent"]) for row in evals] == [(step, "random") for step in range(5)]
    assert {"win_rate", "win_rate_low", "win_rate_high"} <= evals[0].keys()
    games = read_json_lines(workdir / "games.jsonl")
    assert [game["step"] for game in games] == [2, 4]
    assert (workdir / "report.html").stat().st_size > 1000
    assert json.loads((workdir / "config.json").read_text())["steps"] == 4


def test_the_best_evaluation_is_kept_wherever_it_falls(finished):
    _, workdir, _ = finished
    results = {row["step"]: row["win_rate"] for row in read_json_lines(workdir / "eval.jsonl") if row["step"]}
    checkpoints = Checkpoints(workdir, read_only=True)
    assert results[checkpoints.best] == max(results.values())
    checkpoints.close()


def test_a_checkpoint_is_evaluated_against_bots_and_other_checkpoints(finished):
    config, workdir, _ = finished
    config = config.copy_and_resolve_references()
    config.eval.opponents = ("random", f"{workdir}@3")
    rows = evaluate.main(config, workdir)
    assert [row["opponent"] for row in rows] == ["random", "first@3"]
    written = json.loads((workdir / "evaluation.json").read_text())
    assert written["step"] == 4 and written["names"] == ["first", "random", "first@3"]
    assert np.array(written["matrix"]).shape == (3, 3) and set(written["elo"]) == set(written["names"])
    with pytest.raises(RunError, match="opponent 'nobody' is neither a bot of tic_tac_toe"):
        contestants.find_contestant("nobody", setups.make(config))


def test_a_run_of_a_task_is_no_opponent(finished, tmp_path):
    config = finished[0]
    write_config(arithmetic.get_config(), tmp_path)
    with pytest.raises(RunError, match="is a run of the task arithmetic, but this run plays TicTacToe"):
        contestants.find_contestant(str(tmp_path), setups.make(config))


def test_a_checkpoint_of_another_model_is_refused(finished):
    config, workdir, _ = finished
    config = config.copy_and_resolve_references()
    config.model.shape.d_ff = 32
    with pytest.raises(RunError, match="d_ff is 16 there and 32 here"):
        train.train(config, workdir)


def test_weights_are_known_by_their_name_wherever_they_lie(finished):
    backbone = setups.make(finished[0]).backbone
    placed = lambda place: model_fingerprint(dataclasses.replace(backbone, place=place))["weights"]  # noqa: E731
    assert placed(None) == "random" and placed("/here/base/") == placed("there/base") == "base"
    assert placed("/here/other.gguf") == "other.gguf"


@pytest.mark.nightly
def test_updates_that_are_never_finite_end_the_run(tmp_path):
    config = tiny_run.get_config()
    config.algo.value_coef = 1e38
    config.reward.agent = 1e30
    config.log.every = 2
    write_config(config, tmp_path)
    with pytest.raises(RunError, match=r"updates were not finite and were skipped; lower optim.lr .*max_grad_norm$"):
        train.train(config, tmp_path)
    assert [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl")] == [2, 3]


# ------------------------------------------------------------------------------------------------ alarms and their ends


def monitored(**changes):
    """Return a run with adapters, which are guarded, and a checkpoint every two steps."""
    config = tiny_run.get_config()
    config.steps = 6
    config.model.lora.rank = 2
    config.update(changes)
    return config


def alarm_at(monkeypatch, *updates):
    """Raise an alarm at these updates."""
    raised = Alarm("collapse", "Success fell.")
    monkeypatch.setattr(
        Monitor, "_causes", lambda self, metrics: iter([raised] if self.state.updates in updates else [])
    )


def meta(workdir, step):
    checkpoints = Checkpoints(workdir, read_only=True)
    found = checkpoints.meta(step)
    checkpoints.close()
    return found


def test_a_rollback_continues_from_the_last_good_checkpoint_and_resumes_exactly(tmp_path, monkeypatch, shared_programs):
    alarm_at(monkeypatch, 5)
    config = monitored(alarm="rollback")
    config.checkpoint.keep = 10
    train.train(config, tmp_path / "whole")
    rows = read_json_lines(tmp_path / "whole" / "metrics.jsonl")
    rates = [row["learning_rate"] for row in rows]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6] and rates[5] == pytest.approx(rates[4] / 2)
    kinds = [(row["step"], row["kind"]) for row in read_events(tmp_path / "whole")]
    assert kinds == [(5, "alarm"), (5, "rollback")]
    good, rolled_back = state(tmp_path / "whole", 4)[1], state(tmp_path / "whole", 5)[1]  # one was saved at once
    jax.tree.map(np.testing.assert_array_equal, good["trained"], rolled_back["trained"])
    jax.tree.map(np.testing.assert_array_equal, good["optimizer"], rolled_back["optimizer"])
    expected = state(tmp_path / "whole")
    for kept in (4, 5):  # killed just before the rollback, and just after it
        shutil.copytree(tmp_path / "whole", tmp_path / f"broken_{kept}")
        for later in range(kept + 1, 7):
            shutil.rmtree(tmp_path / f"broken_{kept}" / "checkpoints" / str(later), ignore_errors=True)
        train.train(config, tmp_path / f"broken_{kept}")
        found = state(tmp_path / f"broken_{kept}")
        assert found[0] == expected[0] == 6
        jax.tree.map(np.testing.assert_array_equal, expected[1], found[1])
        assert meta(tmp_path / f"broken_{kept}", 6)["monitor"] == meta(tmp_path / "whole", 6)["monitor"]


def test_after_two_rollbacks_the_run_ends_with_an_error(tmp_path, monkeypatch, shared_programs):
    alarm_at(monkeypatch, 2, 3, 4)
    config = monitored(alarm="rollback")
    config.checkpoint.every = 1
    with pytest.raises(RunError, match="step 4: training failed again after 2 rollbacks. Lower optim.lr"):
        train.train(config, tmp_path)
    assert [row["kind"] for row in read_events(tmp_path)].count("rollback") == 2


def test_a_rollback_without_a_checkpoint_ends_with_an_error(tmp_path, monkeypatch, shared_programs):
    alarm_at(monkeypatch, 1)
    with pytest.raises(RunError, match="alarm is 'rollback', but there is no checkpoint yet. Lower checkpoint.every."):
        train.train(monitored(alarm="rollback"), tmp_path)


def test_an_alarm_can_stop_a_run_which_then_has_a_checkpoint_and_a_report(tmp_path, monkeypatch, shared_programs):
    alarm_at(monkeypatch, 3)
    with pytest.raises(RunError, match="step 3: Success fell. The run was stopped because alarm is 'stop'."):
        train.train(monitored(alarm="stop"), tmp_path)
    assert state(tmp_path)[0] == 3 and "Success fell." in (tmp_path / "report.html").read_text()


def test_a_run_whose_updates_are_all_rejected_changes_nothing_and_ends_with_an_error(tmp_path, shared_programs):
    config = monitored(steps=3)
    config.algo.guard_drop = 1e-9
    config.checkpoint.update(dict(every=1, keep=9))
    with pytest.raises(RunError, match="every update up to step 3 was skipped.*raise algo.guard_drop"):
        train.train(config, tmp_path)
    (_, first), (_, last) = state(tmp_path, 1), state(tmp_path, 3)
    jax.tree.map(np.testing.assert_array_equal, first["trained"], last["trained"])
    assert last["lr_factor"]["main"].tolist() == [0.125]
    assert [row["kind"] for row in read_events(tmp_path)] == ["rejected"] * 3
    shutil.rmtree(tmp_path / "checkpoints" / "3")  # resumed through a rejected update
    with pytest.raises(RunError, match="every update up to step 3"):
        train.train(config, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, state(tmp_path, 3)[1], last)


@pytest.mark.nightly
def test_a_solved_run_is_evaluated_saved_and_not_continued(tmp_path, caplog, shared_programs):
    config = monitored(stop_when="grad_norm>=0")
    config.eval.update(dict(every=50, opponents=("random",)))
    train.train(config, tmp_path)
    assert [row["step"] for row in read_json_lines(tmp_path / "eval.jsonl")] == [0, 3]
    assert state(tmp_path)[0] == 3 and [row["kind"] for row in read_events(tmp_path)] == ["solved"]
    with caplog.at_level("INFO"):
        train.train(config, tmp_path)
    assert steps_done(tmp_path) == 3 and "the run met stop_when (grad_norm>=0) at step 3" in caplog.text
    assert train.all_steps_done(tmp_path, 6, "grad_norm>=0") and not train.all_steps_done(tmp_path, 6)
    config.stop_when = ""
    train.train(config, tmp_path)
    assert steps_done(tmp_path) == 6
