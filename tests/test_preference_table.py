"""Table of preference learning: budgets, win rates and preferences by hand, judges that fail; over-optimization."""

import csv
import json

import pytest

from benchmarks import overoptimization
from experiments.tables import preference, runner


def write_test(folder, successes, step=0):
    """Write the files of an evaluation with one episode per success."""
    (folder / "answers").mkdir(parents=True)
    turn = {"role": "writer", "turn": 0, "label": None, "tokens": 10, "context": 5, "verdict": None}
    records = [
        {"id": str(i), "success": success, "failed": None, "metrics": {}, "answer": None,
         "turns": [turn | {"prompt": f"Q{i}", "text": f"{folder.parts[-3]} {i}"}]}
        for i, success in enumerate(successes)
    ]  # fmt: skip
    (folder / "answers" / f"test_{step:08d}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "evaluation.json").write_text(json.dumps({"step": step, "rows": []}))


def write_trial(folder, steps, successes):
    (folder / "checkpoints" / str(steps)).mkdir(parents=True)
    (folder / "checkpoints" / str(steps) / "seal.json").touch()
    (folder / "metrics.jsonl").write_text(f'{{"step": {steps}, "completions": 40, "completion_length": 5}}\n')
    write_test(folder / f"test_{steps}" / "test", successes)


@pytest.fixture
def finished(tmp_path):
    """The untrained learner, and two seeds of two forms, on four examples."""
    write_test(tmp_path / "story" / "prompt" / "test_0" / "test", [0.5, 0.5, 0.5, 0.5])
    for end in ("", "-1"):
        write_trial(tmp_path / "story" / f"single{end}", 5, [0.5, 0.75, 0.25, 0.5])
        write_trial(tmp_path / "story" / f"multi_switch{end}", 5, [1.0, 1.0, 0.5, 0.25])
    return [f"--workdir={tmp_path}", "--collect", "--only=story", "--steps=5", "--seeds=2"]


def test_success_and_win_rate_equal_values_computed_by_hand(finished, tmp_path, capsys):
    assert runner.main(preference.TABLE, finished) == 0
    text = capsys.readouterr().out
    rows = {row["row"]: row for row in csv.DictReader((tmp_path / "preference.csv").open())}
    assert float(rows["learner and judge"]["value"]) == 0.5 and float(rows["learner and judge"]["win_rate"]) == 0.5
    switching = rows["context agents that switch"]
    assert float(switching["value"]) == 0.6875 and float(switching["win_rate"]) == (1 + 1 + 0.5 + 0) / 4
    assert rows["untrained"]["win_rate"] == "" and switching["preference"] == ""
    assert "| context agents that switch | +18.8 [" in text and text.count("| – |") > 0
    assert preference.wins({"a": 1, "b": 2}, {"a": 1, "c": 0}) == {"a": 0.5}


def test_a_judge_decides_the_preference_and_one_that_fails_is_reported(finished, tmp_path, capsys):
    """The verdicts of one seed exist; for the others the endpoint cannot be reached."""
    known = {"preferences": {"new": {"0": 1.0, "1": 0.5, "2": 0.0, "3": 0.5}}}
    for end in ("", "-1"):
        path = tmp_path / "story" / f"multi_switch{end}" / "test_5" / "test" / preference.REPORT
        path.write_text(json.dumps(known))
    assert runner.main(preference.TABLE, [*finished, "--judge=nowhere"]) == 0
    output = capsys.readouterr()
    rows = {row["row"]: row for row in csv.DictReader((tmp_path / "preference.csv").open())}
    assert float(rows["context agents that switch"]["preference"]) == 0.5
    assert rows["learner and judge"]["preference"] == ""
    assert "story/single was not judged" in output.err and "must be http://HOST:PORT/v1#MODEL" in output.err
    path.write_text("{")
    assert runner.main(preference.TABLE, finished) == 0
    assert "preference.json is not JSON" in capsys.readouterr().err


def test_all_forms_have_equal_budgets_and_switches_fit_the_run(tmp_path):
    for model in ("", "--model=qwen2.5-coder-0.5b"):
        session = runner.Session(preference.TABLE, [f"--workdir={tmp_path}", "--steps=6", *([model] if model else [])])
        made = {key: preference.make(session, *key) for key in session.wanted}
        for task in preference.TASKS:
            assert len({one.completions[0] for (t, _), one in made.items() if t == task and one.steps}) == 1
    (run,) = [run for run in session.plan() if run.name == "story/multi_switch-2"]
    assert "--config.task.params.switch_at=(2,4)" in run.command and "--config.seed=2" in run.command


# -------------------------------------------------------------------------------------------------- over-optimization


def test_over_optimization_begins_where_the_gold_score_is_highest():
    rising = [(kl / 10, min(kl, 30) / 30) for kl in range(60)]
    assert not overoptimization.optimum(rising).begins
    falling = [(kl / 10, 1 - abs(kl - 30) / 30) for kl in range(61)]
    best = overoptimization.optimum(falling[::-1])
    assert best.begins and best.kl == pytest.approx(3.0) and best.last == pytest.approx(4 / 30)
    noise = [(kl, 0.5 + (0.2 if kl % 2 else -0.2)) for kl in range(40)]
    assert not overoptimization.optimum(noise).begins and overoptimization.optimum(noise[:3]) is None


def test_pairs_are_labelled_by_the_gold_score(tmp_path):
    question = {"messages": [{"role": "user", "content": "q"}], "answers": [{"text": t} for t in ("ab", "aa", "", "a")]}
    (tmp_path / "labelled").mkdir()
    (tmp_path / "labelled" / "train.jsonl").write_text(json.dumps({"format": 1}) + "\n" + json.dumps(question) + "\n")
    with overoptimization.labelled_pairs(tmp_path, tmp_path / "pairs.jsonl", overoptimization.letters) as flags:
        pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert sorted((pair["chosen"], pair["rejected"]) for pair in pairs) == [("ab", "a"), ("ab", "aa")]
    assert flags == [f"--config.algo.data={tmp_path / 'pairs.jsonl'}"]
    assert overoptimization.words("The dog saw the dog.") == 3 / 40


def test_the_page_of_over_optimization_has_the_optimum_of_every_policy(tmp_path, capsys):
    rows = [{"step": i, "kl": i / 10, "task/reward_gold": 1 - abs(i - 20) / 20, "task/reward_proxy": i / 10}
            for i in range(1, 41)]  # fmt: skip
    (tmp_path / "free-0").mkdir()
    (tmp_path / "free-0" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert runner.main(overoptimization.TABLE, [f"--workdir={tmp_path}", "--collect"]) == 0
    content = json.loads((tmp_path / "overoptimization.json").read_text())
    assert content["policies"][0]["begins"] and content["policies"][0]["kl"] == pytest.approx(2.0)
    assert "| KL coefficient 0.0001 | 0 | 40 |" in capsys.readouterr().out
    assert (tmp_path / "overoptimization.svg").read_text().count("<polyline") == 2
