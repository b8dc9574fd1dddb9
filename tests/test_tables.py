"""Planning table: equal budgets of all rows, runs, collected results, and output."""

import concurrent.futures
import csv
import json
import os
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree

import pytest

from experiments.tables import planning, runs
from experiments.tables.command import select
from marl_jax.schema import validate
from marl_jax.schema.flags import parse as parse_flags

pytestmark = pytest.mark.nightly

MODELS = ("", "smollm2", "qwen2.5-coder-0.5b", "qwen3-1.7b", "qwen3-8b")


def flags_of(tmp_path, *more):
    return planning.parse([f"--workdir={tmp_path}", *more])[0]


def chosen(only):
    return select("planning", only, planning.GAMES, planning.ROWS)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("game", planning.GAMES)
def test_every_row_can_run_and_learns_from_as_many_answers(tmp_path, game, model):
    for sizes in ([], ["--small", "--games=64", "--steps=30"]):
        flags = flags_of(tmp_path, f"--model={model}", *sizes)
        configs = {row: planning.config_of(flags, game, row) for row in planning.ROWS}
        for config in configs.values():
            validate.check(config)
        assert len({planning.answers(configs[row]) for row in configs if planning.ROWS[row].learns}) == 1
        assert {config.model.name for config in configs.values()} == {configs["grpo"].model.name}
        assert configs["per_role"].eval.swap_roles and len(configs["per_role"].policies) == 2


def test_unequal_budgets_are_refused(tmp_path):
    flags = flags_of(tmp_path, "--games=20")
    with pytest.raises(SystemExit, match="budgets of plan_path differ: .*--games must be a multiple of 32"):
        planning.check_budgets(flags, chosen(""))


def test_an_evaluation_whose_episodes_all_failed_is_a_dash(tmp_path):
    failed = {"step": 0, "opponent": "self", "games": 2, "distinct": 2, "failed": 2, "failed/timeout": 2}
    rate = {"success": 0.5, "success_low": 0.25, "success_high": 0.75}
    (tmp_path / "eval.jsonl").write_text(json.dumps(failed) + "\n" + json.dumps(failed | rate | {"step": 5}) + "\n")
    assert runs.evaluation(tmp_path, "self", first=True) is None
    assert runs.evaluation(tmp_path, "self") == runs.Rate(0.5, 0.25, 0.75)
    (tmp_path / "answers").mkdir()
    answers = tmp_path / "answers" / "test_00000005.jsonl"
    answers.write_text('{"success": 0.0, "failed": "timeout"}\n')
    assert runs.episodes(tmp_path) == []
    answers.write_text(answers.read_text() + '{"success": 0.0, "failed": null}\n')
    assert len(runs.episodes(tmp_path)) == 2


def test_rows_are_asked_for_by_name(tmp_path):
    assert len(chosen("")) == 3 * 7
    assert chosen("sudoku/grpo,plan_path/single") == [("plan_path", "single"), ("sudoku", "grpo")]
    assert {game for game, _ in chosen("sokoban")} == {"sokoban"}
    with pytest.raises(
        SystemExit,
        match="--only has 'chess/grpo', but must be one of: plan_path, sokoban, sudoku, ",
    ):
        chosen("chess/grpo")
    with pytest.raises(SystemExit):
        planning.parse(["--stepps=3"])
    for wrong in ("--jobs=0", "--steps=-3", "--eval_games=0", "--model=nope"):
        with pytest.raises(SystemExit):
            planning.parse([wrong])
    with pytest.raises(SystemExit, match="has no runs to collect"):
        planning.main([f"--workdir={tmp_path}/nothing", "--collect"])
    assert not (tmp_path / "nothing").exists()
    assert planning.parse(["--config.model.weights=x"])[1] == ["--config.model.weights=x"]


def test_warm_starts_come_first_and_what_a_twin_says_is_not_run(tmp_path):
    warm, rows = planning.plan(flags_of(tmp_path, "--sft_steps=9"), chosen("plan_path"))
    assert list(warm) == ["plan_path/sft", "plan_path/roles_sft"]
    command, done = warm["plan_path/roles_sft"]
    assert not done and "--config=experiments/plan_path.py:roles_sft" in command and "--config.steps=9" in command
    assert list(rows) == [f"plan_path/{row}" for row in ("grpo", "roles_grpo", "at_grpo", "per_role")]
    assert f"--config.model.init_from={tmp_path}/plan_path/sft" in rows["plan_path/grpo"][0]
    assert f"--config.model.init_from={tmp_path}/plan_path/roles_sft" in rows["plan_path/per_role"][0]

    warm, rows = planning.plan(flags_of(tmp_path, "--sft_steps=0"), chosen("sudoku/roles"))
    assert not warm and "--mode=eval" in rows["sudoku/roles"][0]


@pytest.mark.parametrize("model", ["", "smollm2"])
def test_warm_starts_can_run_and_fields_of_learning_do_not_reach_them(tmp_path, model):
    passed = ["--config.algo.clip_high=0.3", "--config.optim.lr=1e-4", "--config.seed=3"]
    flags = flags_of(tmp_path, f"--model={model}")
    warm, rows = planning.plan(flags, chosen("sokoban"), passed)
    for command, _ in rows.values():
        assert set(passed) <= set(command)
    for command, _ in warm.values():
        assert set(passed) & set(command) == {"--config.seed=3"}
        read = parse_flags(["launch.py", *command], ("train",))
        validate.check(read.config)
        assert read.config.algo.name == "sft" and read.config.optim.lr == (4e-5 if model else 1e-3)


def fake_run(folder, steps, before, after, opponents=("self",), games=16):
    """Write the files of a finished run that the table reads."""
    (folder / "checkpoints" / str(steps)).mkdir(parents=True)
    (folder / "checkpoints" / str(steps) / "seal.json").write_text("{}")
    config = dict(steps=steps, algo=dict(name="grpo", group_size=4), rollout=dict(num_envs=games, unroll_length=10))
    (folder / "config.json").write_text(json.dumps(config))
    rate = lambda x: dict(success=x, success_low=x - 0.1, success_high=x + 0.1)  # noqa: E731
    rows = [dict(step=0, opponent=name, **rate(before)) for name in opponents]
    rows += [dict(step=0, opponent="random alone", **rate(0.15))]
    rows += [dict(step=steps, opponent=name, **rate(after - 0.2 * (name == "swapped"))) for name in opponents]
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "cut')


@pytest.fixture
def finished(tmp_path):
    """Write all rows of a game except for one."""
    for row, after in (("grpo", 0.4), ("at_grpo", 0.8)):
        fake_run(tmp_path / "plan_path" / row, 5, 0.3, after)
    fake_run(tmp_path / "plan_path" / "per_role", 5, 0.3, 0.7, ("self", "swapped"))
    return tmp_path


def test_finished_rows_are_collected_and_written(finished, capsys):
    counts = "".join(json.dumps({"step": step, "completions": 120.0}) + "\n" for step in range(1, 6))
    (finished / "plan_path" / "grpo" / "metrics.jsonl").write_text(counts)
    assert planning.main([f"--workdir={finished}", "--only=plan_path", "--steps=5", "--collect"]) == 0
    text = (finished / "planning.md").read_text()
    assert text == capsys.readouterr().out
    assert "| one agent | 30.0 [20.0, 40.0] |" in text
    assert "| one agent + GRPO | 30.0 [20.0, 40.0] → **40.0 [30.0, 50.0]** |" in text
    assert "| planner and executor + GRPO | – |" in text
    assert "| … the same, roles swapped | 30.0 [20.0, 40.0] → **50.0 [40.0, 60.0]** |" in text
    assert "every row that learns has room for 800 answers" in text and "random moves solve 15.0" in text
    assert "of that room were used 75 % (one agent + GRPO)." in text
    with (finished / "planning.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert float(rows["at_grpo"]["after_value"]) == 0.8 and rows["roles"]["after_value"] == ""
    assert rows["at_grpo"]["answers"] == "800" and rows["roles_grpo"]["answers"] == ""
    assert rows["grpo"]["used"] == "600" and rows["at_grpo"]["used"] == ""
    drawn = ElementTree.fromstring((finished / "planning.svg").read_text())
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "Plan-Path" in words and "80.0" in words and len(words) > 10


def test_runs_of_other_budgets_are_not_put_side_by_side(finished):
    fake_run(finished / "plan_path" / "roles_grpo", 5, 0.3, 0.5, games=32)
    with pytest.raises(SystemExit, match="have different budgets: .*'plan_path/roles_grpo': 1600"):
        planning.main([f"--workdir={finished}", "--only=plan_path", "--steps=5", "--collect"])


def test_seeds_have_runs_and_places_of_their_own(finished):
    flags = flags_of(finished, "--seeds=2", "--steps=5", "--sft_steps=9")
    warm, rows = planning.plan(flags, chosen("plan_path/at_grpo,plan_path/roles"))
    assert list(warm) == ["plan_path/roles_sft", "plan_path/roles_sft-1"] and list(rows)[1] == "plan_path/at_grpo-1"
    assert [done for _, done in rows.values()] == [True, False]
    for seed, (command, _) in enumerate((*warm.values(), *rows.values())):
        assert ("--config.seed=1" in command) == bool(seed % 2)
    assert f"--config.model.init_from={finished}/plan_path/roles_sft-1" in rows["plan_path/at_grpo-1"][0]

    fake_run(finished / "plan_path" / "at_grpo-1", 5, 0.2, 0.6)
    names = "plan_path/roles,plan_path/at_grpo"
    assert planning.main([f"--workdir={finished}", f"--only={names}", "--steps=5", "--seeds=2", "--collect"]) == 0
    text = (finished / "planning.md").read_text()
    both = "30.0 [20.0, 40.0] → **80.0 [70.0, 90.0]**<br>20.0 [10.0, 30.0] → **60.0 [50.0, 70.0]**"
    assert f"AT-GRPO, shared | {both} |" in text and "prompts only | 30.0 [20.0, 40.0]<br>20.0 [10.0, 30.0] |" in text
    with (finished / "planning.csv").open() as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["0", "1", "0", "1"]
    drawn = (finished / "planning.svg").read_text()
    assert drawn.index("Plan-Path, seed 0") < drawn.index("Plan-Path, seed 1")
    with pytest.raises(SystemExit):
        planning.parse(["--seeds=2", "--config.seed=3"])


def test_only_what_is_missing_runs_and_failures_are_told(finished, monkeypatch, capsys):
    launched = []

    def launch(folder, name, command, jobs, running):
        launched.append((name, command))
        return int(name.endswith("roles_grpo"))

    monkeypatch.setattr(runs, "launch", launch)
    command = [f"--workdir={finished}", "--only=plan_path", "--steps=5", "--sft_steps=0", "--config.seed=3"]
    assert planning.main(command) == 1
    assert [name for name, _ in launched] == ["plan_path/roles_grpo"] and launched[0][1][-1] == "--config.seed=3"
    assert "plan_path/roles_grpo failed" in capsys.readouterr().err
    assert (finished / "planning.md").exists()  # existing results are written nevertheless


def test_a_signal_ends_the_runs_under_way_and_begins_no_more(tmp_path):
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + '.saved', 'w').close(), sys.exit(0)))\n"
        "open(sys.argv[1], 'w').close(); time.sleep(60)"
    )
    with runs.Running() as running, concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [pool.submit(running.run, [sys.executable, "-c", script, str(tmp_path / name)]) for name in "ab"]
        while not all((tmp_path / name).exists() for name in "ab"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        assert [future.result(timeout=20) for future in both] == [0, 0]
        assert signal.getsignal(signal.SIGHUP) != signal.SIG_DFL
        assert running.run([sys.executable, "-c", script, str(tmp_path / "c")]) == -1
    assert (tmp_path / "a.saved").exists() and (tmp_path / "b.saved").exists() and not (tmp_path / "c").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runs.Running():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as set by nohup
    finally:
        signal.signal(signal.SIGHUP, before)
