"""Table of language tasks: equal budgets, checkpoint selection on validation, runs, results and output."""

import csv
import json
import xml.etree.ElementTree as ElementTree

import pytest

from experiments.tables import reasoning, runs
from experiments.tables.command import check_files, select
from marl_jax.schema import validate
from marl_jax.schema.flags import parse as parse_flags

pytestmark = pytest.mark.nightly

MODEL = "qwen2.5-coder-0.5b"


def flags_of(tmp_path, *more):
    return reasoning.parse([f"--workdir={tmp_path}", *more])[0]


def chosen(only):
    return select("reasoning", only, reasoning.TASKS, reasoning.ROWS)


@pytest.mark.parametrize("model", ["", MODEL, "qwen3-1.7b"])
@pytest.mark.parametrize("task", reasoning.TASKS)
def test_every_row_can_run_and_learns_from_as_many_answers(tmp_path, task, model):
    flags = flags_of(tmp_path, f"--model={model}", "--steps=3")
    room = {}
    for row, about in reasoning.ROWS.items():
        config = reasoning.config_of(flags, task, row)
        validate.check(config)
        if about.untuned:
            room[row] = reasoning.answers(task, row, config)
    assert len(set(room.values())) == 1 and min(room.values()) > 0, room


def test_unequal_budgets_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reasoning, "answers", lambda task, row, config: len(row))
    with pytest.raises(SystemExit, match="budgets of math differ: {'single_grpo': 11, 'roles_grpo': 10"):
        reasoning.check_budgets(flags_of(tmp_path), chosen(""))


def test_rows_are_asked_for_by_name(tmp_path):
    assert len(chosen("")) == 3 * 6
    assert chosen("nli,code/single") == [("code", "single"), *(("nli", row) for row in reasoning.ROWS)]
    with pytest.raises(
        SystemExit,
        match="'code/duo', but must be one of: math, code, nli, .*: ",
    ):
        chosen("code/duo")
    for wrong in ("--steps=-1", "--model=nope", "--jobs=0", "--stepp=3", "--step=first"):
        with pytest.raises(SystemExit):
            reasoning.parse([wrong])
    with pytest.raises(SystemExit, match="has no evaluations to collect"):
        reasoning.main([f"--workdir={tmp_path}/nothing", "--collect"])


def test_a_missing_file_is_named_and_no_sample_takes_its_place(tmp_path, monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    for name in ("mbpp.jsonl.gz", "humaneval.jsonl"):
        (tmp_path / "open").mkdir(exist_ok=True)
        (tmp_path / "open" / name).touch()
    flags = flags_of(tmp_path, f"--model={MODEL}")
    with pytest.raises(SystemExit, match="no files livecodebench_v1_public in"):
        check_files("reasoning", reasoning.files_of(flags, chosen("code")))
    assert not reasoning.files_of(flags_of(tmp_path), chosen(""))  # the embedded model has the built-in samples


def test_learning_comes_first_and_the_validation_part_chooses(tmp_path):
    flags = flags_of(tmp_path, f"--model={MODEL}", "--steps=7")
    passed = ["--config.optim.lr=1e-5", "--config.seed=3"]
    training, tests = reasoning.plan(flags, chosen("math"), passed)
    assert list(training) == [f"math/{row}" for row, about in reasoning.ROWS.items() if about.untuned]
    assert len(tests) == 6 * 7
    for command, done in training.values():
        read = parse_flags(["launch.py", *command], ("train", "eval"))
        validate.check(read.config)
        assert not done and set(passed) <= set(command) and read.config.steps == 7
        assert read.config.checkpoint.best_metric == "self/success" and "part=test" not in " ".join(command)
    for name, (command, _) in tests.items():
        read = parse_flags(["launch.py", *command], ("train", "eval"))
        assert read.config.eval.split == "test" and "--mode=eval" in command and passed[0] not in command
        row, set_name = name.split("/")[1], name.split("/")[-1]
        learnt = f"{tmp_path}/math/{row}@best" if reasoning.ROWS[row].untuned else ""
        assert read.config.model.init_from == learnt and read.config.task.params.test_dataset == set_name
        read.config.model.init_from = ""  # there is no such run yet
        validate.check(read.config, "eval")
        small = set_name.startswith(("aime", "amc"))
        assert read.config.eval.samples == (16 if small else 1) and (read.config.eval.temperature > 0) == small
    more = reasoning.plan(flags_of(tmp_path, f"--model={MODEL}", "--steps=9"), [("math", "roles_grpo")])
    assert list(more[0]) == ["math/roles_grpo"] and not set(more[1]) & set(tests)  # a longer run is tested again


@pytest.fixture
def finished(tmp_path):
    """Write the code rows of the embedded model, except for one."""
    config = {row: reasoning.config_of(flags_of(tmp_path, "--steps=5"), "code", row) for row in reasoning.ROWS}
    for row, rate in (("single", 0.2), ("single_grpo", 0.4), ("roles_prompt", 0.3), ("at_grpo_shared", 0.6)):
        learns = reasoning.ROWS[row].untuned
        folder = tmp_path / "code" / row / ("test_5_best" if learns else "test") / "sample"
        folder.mkdir(parents=True)
        found = dict(opponent="self", success=rate, success_low=rate - 0.1, success_high=rate + 0.1)
        (folder / "evaluation.json").write_text(json.dumps({"step": 5, "rows": [found]}))
        if learns:
            (tmp_path / "code" / row / "config.json").write_text(config[row].to_json())
            lines = "".join(json.dumps({"step": s + 1, "completions": 32.0}) + "\n" for s in range(5))
            (tmp_path / "code" / row / "metrics.jsonl").write_text(lines)
    return tmp_path


def test_finished_rows_are_collected_and_written(finished, capsys):
    command = [f"--workdir={finished}", "--only=code", "--steps=5", "--collect"]
    assert reasoning.main(command) == 0
    text = (finished / "reasoning.md").read_text()
    assert text == capsys.readouterr().out
    assert "| | Code: built-in sample |" in text and "| one agent | 20.0 [10.0, 30.0] |" in text
    assert "| one agent + GRPO | **40.0 [30.0, 50.0]** |" in text and "| roles + GRPO | – |" in text
    assert "the checkpoint is tested that was best on the validation part" in text
    assert "Code: every row that learns has room for 320 answers." in text
    assert "Code: of that room were used 50 % (one agent + GRPO), 50 % (roles + AT-GRPO, shared)." in text
    with (finished / "reasoning.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert float(rows["at_grpo_shared"]["value"]) == 0.6 and rows["roles_grpo"]["value"] == ""
    assert rows["single"]["answers"] == "" and rows["single_grpo"]["used"] == "160"
    drawn = ElementTree.fromstring((finished / "reasoning.svg").read_text())
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "Code: built-in sample" in words and "60.0" in words and "one agent" not in words
    path = finished / "code" / "single_grpo" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 50}))
    with pytest.raises(SystemExit, match="the runs of code have different budgets: .*'single_grpo': 3200"):
        reasoning.main(command)


def test_only_what_is_missing_runs_and_tests_wait_for_training(finished, monkeypatch, capsys):
    for row in ("single_grpo", "at_grpo_shared"):
        (finished / "code" / row / "checkpoints" / "5").mkdir(parents=True)
        (finished / "code" / row / "checkpoints" / "5" / "seal.json").write_text("{}")
        (finished / "code" / row / "eval.jsonl").write_text(json.dumps({"step": 5, "opponent": "self"}) + "\n")
    launched = []

    def launch(folder, name, command, jobs, running):
        launched.append(name)
        return int(name == "code/roles_grpo" and fails)

    monkeypatch.setattr(runs, "launch", launch)
    fails = True
    rows = "code/single,code/single_grpo,code/roles_grpo,code/at_grpo_shared"
    command = [f"--workdir={finished}", f"--only={rows}", "--steps=5"]
    assert reasoning.main(command) == 1 and launched == ["code/roles_grpo"]
    assert "code/roles_grpo failed" in capsys.readouterr().err
    fails = False
    launched.clear()
    assert reasoning.main(command) == 0 and launched == ["code/roles_grpo", "code/roles_grpo/test_5_best/sample"]
