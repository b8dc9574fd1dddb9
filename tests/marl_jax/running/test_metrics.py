"""Figures: one row a step, whole after a crash, one story after a resume, and process 0 only."""

import errno
import io
import json
import logging
import math
import os
import types

import jax.numpy as jnp
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from configs import defaults
from marl_jax.errors import RunError
from marl_jax.running import console
from marl_jax.running.events import Events, fold_events, read_events
from marl_jax.running.metrics import JsonLines, MetricsWriter, read_json_lines, write_config
from marl_jax.running.processes import workdir_lock

pytestmark = pytest.mark.quick


@pytest.fixture
def config():
    config = defaults.get_config()
    config.steps = 10
    config.log.progress = False
    return config


def write_run(config, workdir, steps, start=0):
    metrics = MetricsWriter(config, workdir, start=start)
    for step in steps:
        metrics.write(step, {"reward": jnp.float32(step), "kl": float("nan")})
        metrics.write_eval(step, [{"opponent": "random", "games": 8, "win_rate": 0.5, "win_rate_low": 0.2}])
    metrics.close()


def test_rows_are_json_and_nan_is_null(config, tmp_path):
    write_run(config, tmp_path, [1, 2])
    rows = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["reward"] == 2.0 and rows[1]["kl"] is None
    assert read_json_lines(tmp_path / "eval.jsonl")[0]["opponent"] == "random"


def test_a_resumed_run_drops_what_came_after_its_checkpoint(config, tmp_path):
    write_run(config, tmp_path, [1, 2, 3, 4])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')  # the process was killed here
    write_run(config, tmp_path, [3, 4, 5], start=2)
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert [row["step"] for row in read_json_lines(tmp_path / name)] == [1, 2, 3, 4, 5]


def test_the_bar_shows_the_newest_results_first(config, tmp_path, monkeypatch):
    shown = []
    metrics = MetricsWriter(config, tmp_path)
    monkeypatch.setattr(metrics._progress, "update", lambda step, found: shown.append(list(found.items())))
    metrics.write_eval(0, [{"opponent": "random", "games": 8, "win_rate": 0.5, "win_rate_low": 0.2, "length": 3.0}])
    metrics.write(1, {"loss": 3.0, "entropy": 1.5})
    assert shown == [[("random/win_rate", 0.5), ("entropy", 1.5)]]


def test_the_bar_shows_failed_episodes_and_no_rate_of_an_earlier_evaluation(config, tmp_path, monkeypatch):
    shown = []
    metrics = MetricsWriter(config, tmp_path)
    monkeypatch.setattr(metrics._progress, "update", lambda step, found: shown.append(found))
    row = {"opponent": "self", "games": 8, "success": 0.5, "success_low": 0.2, "success_high": 0.8, "failed": 2}
    metrics.write_eval(0, [row, {"opponent": "self/b", "win_rate": 1.0, "win_rate_low": 0.9}])
    metrics.write(1, {})
    metrics.write_eval(1, [{"opponent": "self", "games": 8, "failed": 8, "failed/timeout": 8}])
    metrics.write(2, {})
    assert shown == [
        {"self/success": 0.5, "self/failed": 2.0, "self/b/win_rate": 1.0}, {"self/failed": 8.0, "self/b/win_rate": 1.0}
    ]  # fmt: skip
    assert len(read_json_lines(tmp_path / "eval.jsonl")) == 3


def test_a_resumed_run_drops_later_events_and_other_processes_write_none(tmp_path):
    for start in (0, 3):
        events = Events(tmp_path, start=start)
        for step in (2, 3, 4):
            if step > start:
                events.write(step, "rejected", f"from {start}")
        events.close()
    other = Events(tmp_path / "other", main=False)
    other.write(1, "alarm", "")
    other.close()
    found = [(row["step"], row["kind"], row["message"]) for row in read_events(tmp_path)]
    assert found == [(2, "rejected", "from 0"), (3, "rejected", "from 0"), (4, "rejected", "from 3")]
    assert all(row["time"] > 0 for row in read_events(tmp_path)) and not (tmp_path / "other").exists()
    assert read_events(tmp_path / "other") == []
    with pytest.raises(ValueError, match="kind is 'reject', but must be one of: rejected, skipped, alarm"):
        other.write(1, "reject", "")


def test_events_of_one_kind_on_consecutive_steps_are_folded():
    steps = [("rejected", 12), ("rejected", 13), ("skipped", 13), ("rejected", 13), ("rejected", 14), ("rejected", 16)]
    events = [{"kind": kind, "step": step, "message": f"at {step}"} for kind, step in steps]
    assert [(fold.steps, fold.kind, fold.message) for fold in fold_events(events)] == [
        ("12-14", "rejected", "at 14"), ("13", "skipped", "at 13"), ("16", "rejected", "at 16")
    ]  # fmt: skip


def test_every_nth_step_and_the_last_are_written(config, tmp_path):
    config.log.every = 4
    write_run(config, tmp_path, range(1, 11))
    assert [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl")] == [4, 8, 10]


def test_tensorboard_has_the_same_metrics(config, tmp_path):
    write_run(config, tmp_path, [1, 2])
    write_run(config, tmp_path, [2], start=1)
    found, restarts = {}, []
    for file in sorted((tmp_path / "tensorboard").iterdir()):
        for event in EventFileLoader(str(file)).Load():
            restarts += [event.step] if event.HasField("session_log") else []
            for value in event.summary.value:
                found[value.tag, event.step] = value.tensor.float_val[0]
    assert found["reward", 2] == 2.0 and math.isnan(found["kl", 1])
    assert found["eval/random/win_rate", 1] == 0.5
    assert restarts == [2]


def test_other_processes_write_nothing(config, tmp_path):
    metrics = MetricsWriter(config, tmp_path, main=False)
    metrics.write(1, {"reward": 1.0})
    metrics.write_eval(1, [{"opponent": "random"}])
    metrics.close()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_costs_rows_and_one_warning(tmp_path, caplog):
    rows = JsonLines(tmp_path / "rows.jsonl")

    class Full:
        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rows._file.close()
    rows._file = Full()
    with caplog.at_level(logging.WARNING, "marl_jax"):
        rows.write({"step": 1})
        rows.write({"step": 2})
    assert caplog.text.count("No space left") == 1


def no_space(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_costs_tensorboard_and_one_warning(config, tmp_path, monkeypatch, caplog):
    metrics = MetricsWriter(config, tmp_path)
    board = metrics._sinks[0]
    board._file.close()
    board._file = board._writer._writer = types.SimpleNamespace(write=no_space, flush=no_space, close=no_space)
    with caplog.at_level(logging.WARNING, "marl_jax"):
        for step in (1, 2):
            metrics.write(step, {"reward": 1.0})
        metrics.close()
    assert caplog.text.count("No space left") == 1 and "metrics from step 1 on" in caplog.text
    assert [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_start_on_a_full_disk_changes_nothing(config, tmp_path, monkeypatch):
    write_run(config, tmp_path, [1, 2, 3])
    before = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}

    def cut_short(self, *_args, **_kwargs):
        self.touch()
        no_space()

    monkeypatch.setattr("pathlib.Path.write_text", cut_short)
    with pytest.raises(OSError, match="No space left") as caught:
        MetricsWriter(config, tmp_path, start=2)
    assert caught.value.filename == str(tmp_path / "metrics.jsonl")
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_a_full_disk_costs_log_lines_and_is_told_once(tmp_path, monkeypatch, capsys, own_console):
    root, ours = logging.getLogger(), logging.getLogger("marl_jax")
    console.set_up(tmp_path)
    handler = root.handlers[-1]
    monkeypatch.setattr(handler.stream, "write", no_space)
    for step in (1, 2):
        ours.warning("line %d", step)
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: <Task … at …/orbax/checkpoint/…>")
    handler.close()
    told = capsys.readouterr().err
    assert told.count("run.log: No space left on device; lines are lost") == 1
    assert "line 2" in told and "Logging error" not in told and "orbax" not in told


def test_the_config_is_written_whole(config, tmp_path):
    write_config(config, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["algo"]["name"] == "ppo"
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_what_has_changed_since_the_last_start_is_told(config, tmp_path, caplog):
    write_config(config, tmp_path)
    config.optim.lr, config.eval.opponents = 0.5, ("minimax",)
    with caplog.at_level(logging.INFO, "marl_jax"):
        write_config(config, tmp_path)
        write_config(config, tmp_path)
    told = sorted(record.getMessage() for record in caplog.records)
    assert told == [
        "config.eval.opponents is ['minimax'], but was ['random'] before",
        "config.optim.lr is 0.5, but was 0.001 before",
    ]


def test_a_run_that_is_done_keeps_its_config(config, tmp_path):
    write_config(config, tmp_path, done=True)  # it was lost
    config.optim.lr = 0.5
    write_config(config, tmp_path, done=True)
    assert json.loads((tmp_path / "config.json").read_text())["optim"]["lr"] == 0.001


def test_a_config_of_something_else_is_not_replaced(config, tmp_path):
    foreign = '{"model_type": "llama"}'
    (tmp_path / "config.json").write_text(foreign)
    with pytest.raises(RunError, match="is not the config of a run; choose another --workdir"):
        write_config(config, tmp_path)
    assert (tmp_path / "config.json").read_text() == foreign


def test_one_run_in_a_folder_at_a_time(tmp_path):
    with workdir_lock(tmp_path / "run"):
        with pytest.raises(RunError, match="is in use by another process"), workdir_lock(tmp_path / "run"):
            pass
        with workdir_lock(tmp_path / "other"):
            pass
    with workdir_lock(tmp_path / "run"):
        pass


def test_without_a_terminal_progress_is_a_line_now_and_then(caplog):
    progress = console.Progress(steps=100, every_seconds=1000.0)
    with caplog.at_level(logging.INFO, "marl_jax"):
        for step in range(1, 101):
            progress.update(step, {"reward": 0.12345, "tokens_per_s": 123456.0})
    assert [r.getMessage() for r in caplog.records] == [
        f"step {step}/100  reward 0.123  tokens_per_s 123.5k" for step in (1, 100)
    ]


def test_without_a_terminal_the_remaining_time_is_that_of_steps_after_the_first(caplog, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    progress = console.Progress(steps=100, start=10, every_seconds=0.0)
    with caplog.at_level(logging.INFO, "marl_jax"):
        for step, now in ((11, 300.0), (12, 302.0), (13, 304.0), (100, 900.0)):
            clock[0] = now
            progress.update(step, {"reward": 1.0})
    assert [r.getMessage() for r in caplog.records] == [
        "step 11/100  reward 1", "step 12/100, 02:56 left  reward 1", "step 13/100, 02:54 left  reward 1",
        "step 100/100  reward 1"]  # fmt: skip


def test_the_bar_keeps_its_width(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(console.sys, "stderr", terminal)
    progress = console.Progress(steps=200)
    for step, metrics in ((1, {"return": 1.0}), (20, {"return": 0.123, "entropy": 1.5}), (200, {"return": 2.0})):
        progress._bar.last_print_t = -1.0  # draws at every step
        progress.update(step, metrics)
        progress._bar.refresh()
    progress.close()
    bars = [line.split("|")[1] for line in terminal.getvalue().split("\r") if line.count("|") == 2]
    assert len(bars) >= 3 and {len(bar) for bar in bars} == {24}


def test_evaluations_of_tasks_are_named_without_an_opponent(config, tmp_path, monkeypatch):
    config.task.name = "arithmetic"
    shown, sent = [], []
    metrics = MetricsWriter(config, tmp_path)
    monkeypatch.setattr(metrics._progress, "update", lambda step, found: shown.append(list(found)))
    monkeypatch.setattr(metrics, "_pass_on", lambda step, found: sent.append(list(found)))
    rows = [{"opponent": name, "games": 8, "success": 0.5, "success_low": 0.2} for name in ("self", "gpt")]
    metrics.write_eval(1, rows)
    metrics.write(1, {"success": 0.25})
    assert shown == [["eval/success", "gpt/success", "success"]]
    assert sent[0][1:] == ["eval/success", "eval/success_low"] and "eval/gpt/success" in sent[1]


@pytest.mark.parametrize(
    "value, text",
    [(0, "0"), (0.5, "0.5"), (12.0, "12"), (1.2e-5, "1.2e-05"), (1024, "1024"), (2708.7, "2.7k"), (2.5e6, "2.5M")],
)
def test_short_numbers(value, text):
    assert console.short(value) == text
