"""Tables of teams and of verified solvers: budgets, order of runs, paired results and output."""

import csv
import json
import xml.etree.ElementTree as ElementTree

import pytest

from configs import divided
from experiments.tables import teams, verified
from experiments.tables.command import select
from marl_jax.schema import validate
from marl_jax.schema.flags import parse as parse_flags

MODEL = "qwen2.5-coder-1.5b"


def chosen(only=""):
    return select("teams", only, teams.TASKS, teams.ROWS)


def flags_of(tmp_path, *more):
    return teams.parse([f"--workdir={tmp_path}", *more])[0]


def write_test(folder, successes, step=0, metrics=None, scores=None):
    """Write the files of an evaluation with one episode per success."""
    (folder / "answers").mkdir(parents=True)
    turns = [{"role": "ada", "turn": 0, "label": label, "tokens": 10, "context": 5, "verdict": None}
             for label in ("before", "answer")]  # fmt: skip
    if scores is not None:
        turns = [
            {"role": f"a{i}", "turn": 0, "label": "turn_1", "tokens": 10, "context": 5,
             "verdict": {"right": right, "answer": answer, "reason": "", "score": score}}
            for i, (answer, right, score) in enumerate(scores)
        ]  # fmt: skip
    records = [
        {"id": str(i), "example": i, "success": success, "failed": None, "metrics": metrics or {}, "turns": turns}
        for i, success in enumerate(successes)
    ]
    (folder / "answers" / f"test_{step:08d}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "evaluation.json").write_text(json.dumps({"step": step, "rows": []}))


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["", MODEL, "smollm2"])
def test_every_row_can_run_and_has_the_same_room(tmp_path, model):
    flags = flags_of(tmp_path, f"--model={model}", "--steps=3", "--seeds=2")
    teams.check_budgets(flags, chosen())
    training, tests = teams.plan(flags, chosen(), ["--config.optim.lr=1e-5", "--config.model.dtype=float32"])
    learning = len(divided.FORMS) - len(divided.UNTRAINED)
    assert len(training) == 2 * learning * 2 and len(tests) == 2 * (learning * 2 + len(divided.UNTRAINED))
    for command, done in training.values():
        read = parse_flags(["launch.py", *command], ("train", "eval"))
        validate.check(read.config)
        assert not done and read.config.steps == 3 and read.config.optim.lr == 1e-5
    untrained = tests["half_blind/prompt-0"][0]
    assert "--config.optim.lr=1e-5" not in untrained and "--config.model.dtype=float32" in untrained
    assert tests["half_blind/at_grpo_shared-1"][0] == ["--mode=eval"]


def test_unequal_budgets_and_wrong_flags_are_refused(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="has no evaluations to collect"):
        teams.main([f"--workdir={tmp_path}/nothing", "--collect"])
    monkeypatch.setattr(teams, "room", lambda task, config: config.task.n_episodes)
    with pytest.raises(
        SystemExit, match="budgets of half_blind differ: {'seat_grpo': 80, 'all_grpo': 80, 'at_grpo_sha"
    ):
        teams.check_budgets(flags_of(tmp_path), chosen())
    for wrong in ("--seeds=0", "--config.seed=3", "--model=nope", "--problems=-1"):
        with pytest.raises(SystemExit):
            teams.parse([wrong])


def test_finished_runs_are_not_repeated(tmp_path):
    folder = tmp_path / "hidden_profile" / "at_grpo_shared-0"
    (folder / "checkpoints" / "5").mkdir(parents=True)
    (folder / "checkpoints" / "5" / "seal.json").touch()
    write_test(folder, [1.0], step=5)
    for steps, done in ((5, True), (7, False)):
        training, tests = teams.plan(flags_of(tmp_path, f"--steps={steps}"), chosen("hidden_profile/at_grpo_shared"))
        assert [d for runs in (training, tests) for _, d in runs.values()] == [done, done]


def test_differences_are_paired_over_the_mean_of_seeds(tmp_path, capsys):
    metrics = {"right_before": 0.25, "right": 1.0, "unshared_mentioned": 0.5}
    for seed, successes in enumerate(([1, 1, 1, 0] * 20, [1, 1, 0, 0] * 20)):
        write_test(tmp_path / "hidden_profile" / f"at_grpo_shared-{seed}", successes, 5, metrics)
        write_test(tmp_path / "hidden_profile" / f"seat_grpo-{seed}", [0, 1, 0, 0] * 20, 5)
    assert teams.main([f"--workdir={tmp_path}", "--collect", "--seeds=2"]) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "teams.md").read_text() and "Half-blind" not in text
    shared = next(line for line in text.splitlines() if line.startswith("| team + AT-GRPO, shared"))
    # Ten tokens: the answer before the exchange only measures.
    assert "75.0 [64.5, 83.2]<br>50.0 [39.3, 60.7] | 62.5 | 10 | –, – | 25.0 | 100.0 | – | 50.0 |" in shared
    assert "team + AT-GRPO, shared, against one agent, one seat's view + GRPO: +37.5 [" in text
    assert "against the best policy with one seat's view: +29.2 [" in text
    rows = list(csv.DictReader((tmp_path / "teams.csv").open()))
    assert [row["seed"] for row in rows] == ["0", "1"] * 2 and rows[-1]["value"] == "0.5"
    ElementTree.parse(tmp_path / "teams.svg")


# ---------------------------------------------------------------------------------------------------- verified solvers


def test_solver_and_verifier_are_trained_in_turn(tmp_path, monkeypatch):
    """Every round labels the completions of the newest solver, and serves the newest verifier."""
    served, ran = [], []

    class Serving:
        def __init__(self, folder, needed):
            served.append((folder.name, needed))
            self.url = "http://127.0.0.1:1" if needed else "gold"

        __enter__ = lambda self: self.url  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

    def run(rounds, folder, jobs):
        ran.extend(rounds)
        return [], False

    monkeypatch.setattr(verified, "_scorer", Serving)
    monkeypatch.setattr(verified, "run_rounds", run)
    flags = ["--rounds=2", "--reward=verifier", "--steps=4", "--config.optim.lr=1e-5", "--config.seed=3"]
    assert verified.main([f"--workdir={tmp_path}", *flags]) == 0
    names = [name for one in ran for name in one]
    order = "labels_0 verifier_0 greedy_0 samples_0 solver_1 labels_1 verifier_1 greedy_1 samples_1"
    assert names == order.split()
    assert served == [("verifier_0", True), ("verifier_0", True), ("verifier_1", True)]
    commands = {name: command for one in ran for name, (command, _) in one.items()}
    start = f"--config.model.init_from={tmp_path}/solver_1@newest"
    assert all(start in commands[name] for name in ("labels_1", "greedy_1", "samples_1"))
    assert not any("init_from" in flag for name in ("labels_0", "samples_0", "solver_1") for flag in commands[name])
    assert "--config.task.params.scorer=http://127.0.0.1:1" in commands["solver_1"]
    assert "--config.task.params.scorer=gold" in commands["greedy_0"]
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
    assert verified.main([f"--workdir={tmp_path}", "--collect", "--samples=3"]) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "verified.md").read_text()
    for line in (
        "| one greedy completion | 50.0 [35.2, 64.8] | 20 | – |", "| one sample | 0.0 [0.0, 8.8] | 10 | – |",
        "| maj@2 | 50.0", "| maj@3 | 0.0 [0.0, 8.8] | 30 | – |",
        "| vote of 3, weighted by the verifier | 100.0 [91.2, 100.0] | 30 | 45 |",
        "- vote of 3, weighted by the verifier, against maj@3: +100.0 [",
        "- maj@3, against one greedy completion: -50.0 [",
    ):  # fmt: skip
        assert line in text, line


def test_a_verifier_that_does_not_start_is_named(tmp_path):
    with (
        pytest.raises(SystemExit, match="the verifier does not answer; see the end of .*serve.log"),
        verified._scorer(tmp_path, needed=True),
    ):
        pass
    assert "serve_reward" in (tmp_path / "serve.log").read_text() or (tmp_path / "serve.log").stat().st_size
    with verified._scorer(tmp_path, needed=False) as url:
        assert url == "gold"
