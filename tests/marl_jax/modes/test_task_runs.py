"""Complete runs on tasks: algorithms, resuming, failed episodes, evaluation, logs, play and several policies."""

import io
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
from ml_collections import ConfigDict

from configs import defaults
from marl_jax import setup as setups
from marl_jax.errors import ConfigError, RunError
from marl_jax.evaluation import intervals
from marl_jax.interactive import task_terminal
from marl_jax.modes import compile as compiling
from marl_jax.modes import evaluate, export, train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.events import read_events
from marl_jax.running.metric_help import explain
from marl_jax.running.metrics import read_json_lines
from marl_jax.sampling.batch_rows import BatchRows
from marl_jax.schema import saved, validate
from marl_jax.setup import trainer
from marl_jax.setup.run_fingerprint import check_run, run_fingerprint
from marl_jax.setup.train_programs import programs
from marl_jax.setup.weights import untuned_weights
from tests.conftest import ROUGH, nightly_cases
from tests.marl_jax import tiny_run, tiny_task

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
TIMED = (
    "time", "seconds/rollout", "seconds/update", "seconds/generating", "seconds/device", "device_idle",
    "episodes/seconds", "episodes_per_s", "tokens_per_s",
)  # fmt: skip


def run(config, workdir):
    validate.check(config)
    train.train(config, workdir)
    return read_json_lines(workdir / "metrics.jsonl")


def state(workdir):
    """Return the contents of the newest checkpoint."""
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    return restored


def untimed(workdir):
    """Return the metrics of a run without timings."""
    rows = read_json_lines(workdir / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name not in TIMED} for row in rows]


def launch(workdir, cache, *flags):
    """Train in a separate process with one device."""
    environment = dict(
        os.environ, JAX_PLATFORMS="cpu", JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0", XLA_FLAGS=ROUGH,
        MOODY_JOURNAL=str(workdir / "journal"),
    )  # fmt: skip
    config = f"--config={ROOT}/tests/marl_jax/tiny_task.py:grpo+moody"
    return subprocess.Popen(
        [sys.executable, "launch.py", config, f"--workdir={workdir}", f"--compilation_cache={cache}", *flags],
        cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.nightly_for("arithmetic_debate-ppo", "arithmetic-grpo")
@pytest.mark.parametrize(
    ("task", "algorithm"),
    nightly_cases(
        [
            ("arithmetic", "grpo"), ("arithmetic_debate", "ppo"), ("arithmetic_debate", "at_grpo"),
            ("solver_checker", "at_grpo"),
        ],
        ("arithmetic_debate", "at_grpo"),
    ),
)  # fmt: skip
def test_every_task_runs_with_whole_episodes_and_with_candidates(task, algorithm, tmp_path):
    """PPO and GRPO sample one completion per turn, and AT-GRPO several."""
    config = tiny_task.get_config(f"{algorithm}+{task}")
    config.task.n_episodes = 2
    rows = run(config, tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["episodes"] == 2 and row["episodes/finished"] + row["episodes/failed"] == 2
        assert row["completions_trained"] == row["completions"] and row["skipped"] == 0
        assert row["logprob_diff"] < 1e-5 and row["tokens"] > row["completions"] and row["tokens_per_s"] > 0
        assert 0 < row["seconds/device"] < row["seconds/generating"] and 0 < row["device_idle"] < 1
        role = "reward/ada" if task == "arithmetic_debate" else "reward/solver"
        assert {"success", "reward/team", "reward/process", role, "completion_length"} <= set(row)
        assert not [name for name in row if explain(name) is None], "metrics without an explanation"


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", nightly_cases(["ppo", "at_grpo"], "ppo"))
def test_a_run_that_is_stopped_and_resumed_equals_one_that_never_was(algorithm, tmp_path):
    config = tiny_task.get_config(algorithm)
    config.steps = 4
    whole = run(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "4")
    assert state(tmp_path / "parts").meta["rollout"]["step"] == 2
    again = saved.read(tmp_path / "parts")
    assert again.to_dict() == config.to_dict()
    run(again, tmp_path / "parts")
    ours, theirs = state(tmp_path / "whole"), state(tmp_path / "parts")
    assert ours.meta == theirs.meta and ours.meta["rollout"]["step"] == 4
    jax.tree.map(np.testing.assert_array_equal, ours.state, theirs.state)
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "parts")
    assert all(row["grad_norm"] > 1e-4 for row in whole), "nothing is learnt, so nothing is compared"
    assert not list((tmp_path / "whole" / "journal").iterdir()), "a checkpoint makes journals superfluous"


@pytest.mark.nightly
def test_conversations_of_every_length_compile_the_learner_a_few_times(tmp_path, monkeypatch, caplog):
    learners = []

    def kept(*args):
        found = programs(*args)
        learners.append(found[1])
        return found

    monkeypatch.setattr(trainer, "programs", kept)
    config = tiny_task.get_config("grpo+lengths")
    config.task.params.n_examples = config.steps = 8
    config.task.n_episodes = 2
    with caplog.at_level("INFO", logger="marl_jax.devices.aot"):
        run(config, tmp_path)
    sizes = state(tmp_path).meta["rollout"]["sizes"]
    [learner] = learners
    assert 2 <= learner.jitted._cache_size() == len(sizes) <= 4, sizes  # for eight lengths
    lines = [record.getMessage() for record in caplog.records if record.name == "marl_jax.devices.aot"]
    assert len(lines) == len(sizes) - 1 and all("recompiled the learner for" in line for line in lines)


@pytest.mark.nightly
def test_killed_while_its_judge_hangs_a_resumed_run_equals_one_that_never_was(tmp_path):
    cache, whole, broken = tmp_path / "cache", tmp_path / "whole", tmp_path / "broken"
    flags = ("--config.steps=5", "--config.checkpoint.every=2")
    uninterrupted = launch(whole, cache, *flags)
    assert uninterrupted.wait(300) == 0, uninterrupted.stderr.read()
    started = launch(broken, cache, *flags)
    journal = broken / "journal" / "step_00000003.process_0.jsonl"
    deadline = time.monotonic() + 300
    while not (journal.exists() and '"timeout"' in journal.read_text()):
        assert started.poll() is None and time.monotonic() < deadline, started.stderr.read()
        time.sleep(0.002)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert len(journal.read_text().splitlines()) < 17, "one line and four for each of four episodes: it is over"

    resumed = launch(broken, cache, *flags)
    assert resumed.wait(300) == 0, resumed.stderr.read()
    ours, theirs = state(whole), state(broken)
    assert ours.meta == theirs.meta and ours.step == 5
    jax.tree.map(np.testing.assert_array_equal, ours.state, theirs.state)
    assert untimed(whole) == untimed(broken)


def test_broken_episodes_cost_themselves_and_not_the_run(tmp_path):
    config = tiny_task.get_config("ppo")
    config.task.params.broken = True
    config.task.update(dict(n_episodes=8, time_limit=4.0))
    config.steps = 2  # all 16 examples
    rows = run(config, tmp_path)
    for reason in ("error", "timeout", "nonsense"):
        assert sum(row.get(f"episodes/failed/{reason}", 0) for row in rows) == 1
    assert sum(row["episodes/finished"] for row in rows) == 13 and all(row["skipped"] == 0 for row in rows)


@pytest.mark.nightly_for("100000000.0", "0.5")
@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("reward", [0.5, 1e8])
def test_rewards_that_are_constant_or_not_finite_change_nothing_and_raise_an_alarm(reward, tmp_path, caplog):
    config = tiny_task.get_config("grpo")
    config.task.params.reward = reward
    config.steps, config.algo.filter_zero_std_groups = 4, True
    config.checkpoint.update(dict(every=1, keep=9))
    rows = run(config, tmp_path)
    assert [row["informative_share"] for row in rows] == [row["optimizer_steps"] for row in rows] == [0.0] * 4
    assert [(row["step"], row["kind"]) for row in read_events(tmp_path)] == [(3, "alarm")]
    assert caplog.text.count("No group of the last 3 updates has different rewards") == 1
    checkpoints = Checkpoints(tmp_path, read_only=True)
    first, last = (checkpoints.restore(step=step).state["trained"] for step in (1, 4))
    checkpoints.close()
    jax.tree.map(np.testing.assert_array_equal, first, last)


# ---------------------------------------------------------------------------------------------- evaluation and logs


@pytest.mark.nightly
def test_a_first_evaluation_that_compiles_for_longer_than_the_time_limit(tmp_path, monkeypatch):
    decode = BatchRows._decode_lazily

    def compile_slowly(self, *args, **kwargs):
        time.sleep(0.0 if hasattr(self, "slept") else 3.0)
        self.slept = True
        return decode(self, *args, **kwargs)

    monkeypatch.setattr(BatchRows, "_decode_lazily", compile_slowly)
    config = tiny_task.get_config("grpo")
    config.task.time_limit = 2.0
    config.eval.update(dict(games=6, split="validation"))
    (row,) = evaluate.main(config, tmp_path)
    assert (row["games"], row["failed"]) == (6, 0)


def test_evaluation_logs_and_report(tmp_path, capsys):
    config = tiny_task.get_config("grpo")
    config.steps = 2
    config.eval.update(dict(every=1, games=100, test="last"))
    config.checkpoint.update(dict(best_metric="self/success", every=50))
    config.log.update(dict(games=2, games_every=1))
    run(config, tmp_path)
    rows = read_json_lines(tmp_path / "eval.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert row["opponent"] == "self" and row["games"] == row["distinct"] == 16, "each test example once"
        expected = intervals.wilson(row["success"] * 16, 16)
        assert (row["success_low"], row["success_high"]) == pytest.approx((expected.low, expected.high))
        assert row["length"] > 0 and row["failed"] == 0
    assert state(tmp_path).meta["run"]["task"]["name"] == "plain"

    episodes = read_json_lines(tmp_path / "games.jsonl")
    assert [episode["step"] for episode in episodes] == [1, 1, 2, 2]
    first = episodes[0]
    assert [move["player"] for move in first["moves"]] == [0, 1, 0]
    assert first["players"] == ["writer (tiny)", "editor (tiny)"]
    assert "train" in first["moves"][0]["prompt"] and "<|im_start|>system\nWrite." in first["moves"][0]["prompt"]
    assert "Write." not in first["moves"][2]["prompt"], "a later turn shows what is new"
    assert first["moves"][0]["reward"][0] == pytest.approx(
        first["moves"][0]["reward"][1] + 0.1 * len(first["moves"][0]["answer"])
    )
    page = (tmp_path / "report.html").read_text()
    assert "plain with tiny" in page and "Episodes" in page and "4 episodes per step" in page and "success" in page
    assert "writer (tiny)" in next((tmp_path / "logs").glob("llm_conversation_*")).read_text()

    # --mode=eval on the checkpoint gives the same result as the run.
    config.eval.update(dict(step="newest", split="validation"))
    found = evaluate.main(config, tmp_path)
    assert {k: v for k, v in rows[-1].items() if k not in ("step", "time")} == pytest.approx(found[0])
    assert json.loads((tmp_path / "evaluation.json").read_text())["step"] == 2
    assert [folder.name for folder in export.main(config, tmp_path)] == ["main"]

    # --mode=eval on the test split plays the same episodes as the end of training.
    (place,) = (tmp_path / "answers").glob("test_*.jsonl")
    played = place.read_text()
    config.eval.split = "test"
    evaluate.main(config, tmp_path)
    assert place.name == "test_00000002.jsonl" and place.read_text() == played


def test_a_person_answers_for_a_role_or_watches(tmp_path):
    config = tiny_task.get_config("grpo")
    setup = setups.make(config)
    with jax.set_mesh(setup.mesh):
        weights = untuned_weights(setup)
    said = io.StringIO()
    config.play.seat = 0
    episode = task_terminal.play(setup, weights, io.StringIO("AAA\nBBBB\n"), said)
    assert episode.outcome.success == 1.0 and episode.outcome.metrics["length"] == 4
    text = said.getvalue()
    assert "Write." in text and text.count("writer reads") == 2 and "editor reads" not in text and "Success: 1" in text
    assert episode.chats[0].said[1].replies[0].text == "BBBB"

    config.play.seat, said = -1, io.StringIO()
    episode = task_terminal.play(setup, weights, io.StringIO(), said)
    assert said.getvalue().count("reads") == 3 and said.getvalue().count("AAA") == 0
    assert "editor answers" in said.getvalue() and not episode.failed

    config.play.seat = 1
    assert task_terminal.play(setup, weights, io.StringIO("quit\n"), io.StringIO()).failed == "left"
    config.play.seat = 2
    with pytest.raises(RunError, match="play.seat is 2, but must be 0 to 1"):
        task_terminal.play(setup, weights)
    setup.close()


# ------------------------------------------------------------------------------------------------ several policies


def per_role(config, lora):
    config.agents = ConfigDict(dict(writer="w", editor="e"))
    config.policies = ConfigDict(dict(w=defaults.policy(), e=defaults.policy()))
    config.model.lora.rank = 2 if lora else 0
    return config


def changes(workdir):
    """Return how far both adapters have moved: B, [L, n, r, out], is initialized with zeros."""
    (found,) = state(workdir).state["trained"].values()
    adapters = found["adapters"].values()
    return {name: sum(np.abs(x["b"][:, i]).sum() for x in adapters) for i, name in enumerate("ew")}


@pytest.mark.nightly
@pytest.mark.parametrize("lora", nightly_cases([True, False], False), ids=["adapters", "models"])
def test_a_policy_for_each_role(lora, tmp_path):
    """Models are trained on their own completions, and a frozen adapter does not change."""
    config = per_role(tiny_task.get_config("grpo"), lora)
    config.steps = 2
    config.policies.e.frozen = lora
    rows = run(config, tmp_path)
    assert all(row["logprob_diff"] < 1e-5 and row["completions"] == 12 for row in rows)
    if lora:
        assert all(row["completions_trained"] == 8 for row in rows)
        moved = changes(tmp_path)
        assert moved["w"] > 0 and moved["e"] == 0
    else:
        assert rows[-1]["w/completions_trained"] == 8 and rows[-1]["e/completions_trained"] == 4


@pytest.mark.nightly
def test_turns_of_a_role_can_have_policies_of_their_own(tmp_path):
    config = per_role(tiny_task.get_config("grpo"), lora=True)
    config.agents = ConfigDict({"all": "w", "writer@1": "e"})
    config.steps = 2
    run(config, tmp_path)
    seating = setups.make(config).seating
    assert [seating.policy_at(0, turn) for turn in (0, 1, 2)] == [1, 0, 0] and seating.policy_at(1, 5) == 1
    assert min(changes(tmp_path).values()) > 0


# -------------------------------------------------------------------------------------------------- invalid runs


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("checkpoint.best_metric", "random/win_rate", "self/success"),
        ("eval.opponents", ("random",), "opponents"),
        ("eval.swap_roles", True, "swap_roles"),
        ("eval.test", "last", "eval.every 0"),
        ("algo.critic", "central", "'head' or 'separate'"),
        ("task.max_new_tokens", 256, "to leave room for a prompt"),
        ("agents.all", "bot:random", "must be a policy: tasks have no bots"),
    ],
)
def test_configs_that_cannot_work_are_refused(field, value, problem):
    config = tiny_task.get_config("ppo").unlock()
    config.update_from_flattened_dict({field: value})
    with pytest.raises(ConfigError, match=problem):
        validate.check(config)


def test_what_does_not_fit_the_model_or_the_batch_is_refused(tmp_path):
    config = tiny_task.get_config("grpo")
    config.task.max_length = 5000
    with pytest.raises(ConfigError, match="task.max_length is 5000"):
        setups.make(config)
    with pytest.raises(ConfigError, match="but --mode=compile needs a game"):
        compiling.main(config, tmp_path, "v5e:2x2")


def test_a_checkpoint_of_a_task_is_not_that_of_a_game(tmp_path):
    task, game = setups.make(tiny_task.get_config("ppo")), setups.make(tiny_run.get_config())
    for one, other, name in ((task, game, "task.name is 'plain' there and '' here"), (game, task, "there and 'plain'")):
        with pytest.raises(RunError, match=name):
            check_run(json.loads(json.dumps(run_fingerprint(one))), other, tmp_path)
        check_run(json.loads(json.dumps(run_fingerprint(one))), one, tmp_path)
