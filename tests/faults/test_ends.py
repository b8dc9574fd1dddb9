"""How runs end badly: the reason is in the log of the run, stopped tables say so, and clocks that jump do no harm."""

import json
import time

import jax
import pytest

from configs import defaults
from experiments.tables import planning, runner
from marl_jax import cli
from marl_jax import setup as setups
from marl_jax.errors import ConfigError, RunError
from marl_jax.modes import report
from marl_jax.running import console, processes
from marl_jax.schema import validate
from models import tokenizers
from tests.marl_jax import tiny_run

pytestmark = [pytest.mark.usefixtures("own_console"), pytest.mark.nightly]


@pytest.mark.parametrize(
    "error, status, words",
    [
        (RunError("step 3: not finite"), 1, "the run ended: step 3: not finite"),
        (OSError(28, "No space left on device", "somewhere"), 1, "the run ended: somewhere: No space left on device"),
        (MemoryError(), 1, "the run ended: out of memory"),
        (KeyboardInterrupt(), 130, "the run ended: Ctrl-C"),
        (ZeroDivisionError("a bug"), None, "ZeroDivisionError: a bug"),
    ],
)
def test_why_a_run_ended_is_in_its_log(tmp_path, monkeypatch, error, status, words):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "start", fail)
    command = ["launch.py", "--config=experiments/tic_tac_toe_selfplay.py", f"--workdir={tmp_path}"]
    command += ["--compilation_cache=off"]
    if status is None:
        with pytest.raises(type(error)):
            cli.main(command)
    else:
        assert cli.main(command) == status
    assert words in (tmp_path / "run.log").read_text()


def test_a_stopped_table_has_another_status_than_a_finished_one(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_all", lambda *_: ({}, True))
    assert runner.main(planning.TABLE, [f"--workdir={tmp_path}", "--only=plan_path"]) == 130


def test_a_clock_that_is_set_back_shows_no_negative_time(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(defaults.get_config().to_dict()))
    times = [100.0, 101.0, 102.0, -5000.0, -4999.0, 1e9, 1e9 + 1]  # set back, then forward
    rows = [{"step": i, "time": t, "reward": i / 2} for i, t in enumerate(times)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = report.main(tmp_path).read_text()
    shown = page.partition("time</span><b>")[2].partition("</b>")[0]
    assert shown == "24 s"  # four steps of a second, and the jump forward as a pause


def test_the_bar_does_not_ask_the_clock_on_the_wall(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    progress = console.Progress(10, enabled=True)
    if progress._bar is None:
        pytest.skip("no terminal can be pretended here")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 10_000)
    progress.update(3, {"reward": 1.0})
    assert progress._bar.format_dict["elapsed"] >= 0
    progress.close()


def test_processes_of_two_configs_do_not_become_one_run(monkeypatch):
    one, two = tiny_run.get_config(), tiny_run.get_config()
    two.seed = 1
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    seen = []
    monkeypatch.setattr(processes, "gather", lambda mine: seen.append(mine) or [mine, mine])
    processes.check_same(one)  # alike
    monkeypatch.setattr(processes, "gather", lambda mine: [seen[0], mine])
    with pytest.raises(RunError, match="process 1 differs from process 0: config.seed is 0 there and 1 here"):
        processes.check_same(two)
    one.distributed.index, one.model.weights = 1, "/elsewhere/weights"  # these are a machine's own
    processes.check_same(one)
    monkeypatch.setattr(processes, "_code", lambda: "other")
    with pytest.raises(RunError, match="the code is '[0-9a-f]{16}' there and 'other' here"):
        processes.check_same(one)


def test_a_warm_start_that_is_gone_is_refused():
    config = tiny_run.get_config()
    config.model.init_from = "/gone/long/ago"
    with pytest.raises(ConfigError, match="config.model.init_from is '/gone/long/ago', but must be '' or"):
        validate.check(config)
    validate.check(config, mode="eval")
    with pytest.raises(RunError, match="/gone/long/ago has no checkpoints"):  # nor has the run itself
        setups.make(config)


def test_errors_of_a_closed_loop_are_not_shown(capsys):
    """TensorStore reports through `sys.excepthook` what a full disk has cut short."""
    for error in (RuntimeError("Event loop is closed"), RuntimeError("something else")):
        console._only_ours(type(error), error, None)
    assert capsys.readouterr().err == "RuntimeError: something else\n"


def test_the_tokenizer_of_tiny_is_the_same_beside_a_config(tmp_path):
    """transformers chooses a class by `model_type` where it knows one, which must not change the ids."""
    transformers = pytest.importorskip("transformers")
    ours = tokenizers.load("tiny")
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "transformers_version": "5.0.0"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("hello é  x", "\n\n 1234 \x00\x7f", "<|im_end|>"):
        assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == ours.decode(ours.encode(text))
