"""Tables of teams and of verified solvers: budgets, order of runs, paired results and output."""

import csv
import json
import xml.etree.ElementTree as ElementTree

from experiments.tables import runner, runs, teams, verified
from marl_jax.schema import validate
from marl_jax.schema.flags import parse as parse_flags


def write_test(folder, successes, step=0, metrics=None, scores=None):
    """Write the files of an evaluation with one episode per success."""
    (folder / "answers").mkdir(parents=True)
    turns = [{"role": "ada", "turn": 0, "label": label, "tokens": 10, "context": 5, "verdict": None}
             for label in ("before", "answer")]  # fmt: skip
    records = [
        {"id": str(i), "success": success, "failed": None, "metrics": metrics or {}, "turns": turns, "answer": None}
        for i, success in enumerate(successes)
    ]
    if scores is not None:
        records = [
            record | {"answer": answer, "success": right, "score": 1.0, "turns": [
                {"role": "a", "turn": 0, "tokens": 10, "context": 5, "verdict": {"right": right, "score": score}}]}
            for record in records for answer, right, score in scores
        ]  # fmt: skip
    (folder / "answers" / f"test_{step:08d}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "evaluation.json").write_text(json.dumps({"step": step, "rows": []}))


def test_teams_have_the_same_room_and_finished_runs_are_not_repeated(tmp_path):
    folder = tmp_path / "hidden_profile" / "at_grpo_shared"
    (folder / "checkpoints" / "5").mkdir(parents=True)
    (folder / "checkpoints" / "5" / "seal.json").touch()
    write_test(folder / "test_5" / "test", [1.0])
    for steps, done in ((5, True), (7, False)):
        flags = [f"--workdir={tmp_path}", f"--steps={steps}", "--only=hidden_profile/at_grpo_shared"]
        session = runner.Session(teams.TABLE, flags)
        assert [session.done(run) for run in session.plan()] == [done, done]
    made = {row: teams.make(runner.Session(teams.TABLE, []), "half_blind", row) for row in teams.ROWS}
    assert len({trial.completions[0] for trial in made.values() if trial.steps}) == 1


def test_differences_are_paired_over_seeds_and_examples(tmp_path, capsys):
    metrics = {"right_before": 0.25, "right": 1.0, "unshared_mentioned": 0.5}
    for end, successes in (("", [1, 1, 1, 0] * 20), ("-1", [1, 1, 0, 0] * 20)):
        for row, values in (("at_grpo_shared", successes), ("seat_grpo", [0, 1, 0, 0] * 20)):
            folder = tmp_path / "hidden_profile" / f"{row}{end}"
            (folder / "checkpoints" / "5").mkdir(parents=True)
            (folder / "checkpoints" / "5" / "seal.json").touch()
            (folder / "metrics.jsonl").write_text('{"step": 5, "completions": 40, "completion_length": 5}\n')
            write_test(folder / "test_5" / "test", values, metrics=metrics)
    assert runner.main(teams.TABLE, [f"--workdir={tmp_path}", "--collect", "--seeds=2", "--steps=5"]) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "teams.md").read_text() and "Half-blind" not in text
    shared = next(line for line in text.splitlines() if line.startswith("| team + AT-GRPO, shared"))
    # Ten tokens: the answer before the exchange only measures.
    assert "| 2 | 5 | 200 | 40 | 62.5 [" in shared and "], 10 tokens | 25.0 | 100.0 | – | 50.0 |" in shared
    pair = next(line for line in text.splitlines() if "| one agent, one seat's view + GRPO | training |" in line)
    assert "| 200 and 200 | 62.5 and 25.0 | +37.5 [" in pair and pair.endswith("| 80 | **better** |")
    assert "against the best policy with one seat's view: +29.2 [" in text
    rows = list(csv.DictReader((tmp_path / "teams.csv").open()))
    assert [(row["seeds"], row["value"]) for row in rows] == [("2", "0.25"), ("2", "0.625")]
    ElementTree.parse(tmp_path / "teams.svg")


# ---------------------------------------------------------------------------------------------------- verified solvers


def test_solver_and_verifier_are_trained_in_turn(tmp_path):
    """Every round labels the completions of the newest solver, and serves the newest verifier."""
    flags = ["--rounds=2", "--reward=verifier", "--steps=4", "--config.optim.lr=1e-5", "--config.seed=3"]
    made = {run.name: run for run in runner.Session(verified.TABLE, [f"--workdir={tmp_path}", *flags]).plan()}
    order = "labels_0 verifier_0 greedy_0 samples_0 solver_1 labels_1 verifier_1 greedy_1 samples_1"
    assert list(made) == order.split()
    needs = {name: run.after[0] for name, run in made.items() if run.after}
    assert needs == {
        "verifier_0": "labels_0", "greedy_0": "verifier_0", "samples_0": "verifier_0", "solver_1": "verifier_0",
        "labels_1": "solver_1", "verifier_1": "labels_1", "greedy_1": "verifier_1", "samples_1": "verifier_1",
    }  # fmt: skip
    served = {name: run.around.args[0].name for name, run in made.items() if getattr(run.around, "args", [None])[0]}
    assert served == {"samples_0": "verifier_0", "solver_1": "verifier_0", "samples_1": "verifier_1"}
    commands = {name: run.command for name, run in made.items()}
    start = f"--config.model.init_from={tmp_path}/solver_1@newest"
    assert all(start in commands[name] for name in ("labels_1", "greedy_1", "samples_1"))
    assert not any("init_from" in flag for name in ("labels_0", "samples_0", "solver_1") for flag in commands[name])
    assert f"--config.algo.data={tmp_path}/labels_1" in commands["verifier_1"]
    assert [name for name, command in commands.items() if "--config.optim.lr=1e-5" in command] == ["solver_1"]
    for command in commands.values():
        config = parse_flags(["launch.py", *command], ("train", "eval", "label")).config
        config.model.init_from = ""  # the run does not exist here
        validate.check(config, "label" if "--mode=label" in command else "train")
        assert config.seed == 3


def test_methods_at_equal_generated_tokens(tmp_path, capsys):
    """Two of three samples agree on a wrong answer, and the verifier prefers the right one."""
    scores = [("7", 0.0, 0.2), ("8", 1.0, 0.9), ("7", 0.0, 0.3)]
    write_test(tmp_path / "samples_0", [0.0] * 40, scores=scores)
    write_test(tmp_path / "greedy_0", [1.0, 0.0] * 20)
    assert runner.main(verified.TABLE, [f"--workdir={tmp_path}", "--collect", "--samples=3"]) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "verified.md").read_text()
    for line in (
        "| one greedy completion | 50.0 [35.2, 64.8] | 10 | – |", "| one sample | 0.0 [0.0, 8.8] | 10 | – |",
        "| maj@2 | 50.0", "| maj@3 | 0.0 [0.0, 8.8] | 30 | – |",
        "| vote of 3, weighted by the verifier | 100.0 [91.2, 100.0] | 30 | 45 |",
        "- vote of 3, weighted by the verifier, against maj@3: +100.0 [",
        "- maj@3, against one greedy completion: -50.0 [",
    ):  # fmt: skip
        assert line in text, line


def test_a_verifier_that_does_not_start_is_named(tmp_path, capsys):
    run = runs.Run("run", (), lambda at: False, around=lambda: verified.scorer(tmp_path))
    toy = runner.Table("toy", 1, "", {"a": {"b": "b"}}, lambda session: [run], lambda session: None)
    assert runner.main(toy, [f"--workdir={tmp_path}"]) == 1
    assert "toy: run failed: the verifier does not answer; see the end of" in capsys.readouterr().err
    assert (tmp_path / "serve.log").stat().st_size
    with verified.scorer(None) as flags:
        assert flags == ["--config.task.params.scorer=gold"]
