"""Verifier table: the order of its runs, which finished runs are kept, and its output."""

import json

import pytest

from configs import variants
from configs import verifier as forms
from experiments.tables import verifier
from marl_jax.schema import validate

pytestmark = pytest.mark.nightly

ROW = {
    "games": 8, "distinct": 2, "accuracy": 0.75, "accuracy_low": 0.5, "accuracy_high": 1.0, "ece": 0.1, "ece_low": 0.0,
    "ece_high": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("model", [None, *variants.VARIANTS])
def test_every_form_is_a_config_that_can_work(model):
    for task in forms.TASKS:
        form = task if model is None else f"{task}+{model}"
        config = forms.verifier(form)
        validate.check(config)
        validate.check(config, "label")
        assert config.algo.name == "verifier" and (model in (None, "tiny") or config.model.lora.rank)
    with pytest.raises(ValueError, match="form is 'chess', but must be one of: gsm8k"):
        forms.verifier("chess")


def finish(folder, step=20):
    for name in verifier.ARMS:
        (folder / name / "checkpoints" / str(step)).mkdir(parents=True)
        (folder / name / "checkpoints" / str(step) / "seal.json").write_text("{}")
        (folder / name / "eval.jsonl").write_text(json.dumps({"step": step, "opponent": "natural"}) + "\n")
        rows = [{"opponent": opponent, **ROW} for opponent in ("balanced", "natural")]
        (folder / name / "evaluation.json").write_text(json.dumps({"step": step, "rows": rows}))
    (folder / "labels" / "labelled").mkdir(parents=True)
    (folder / "labels" / "labelled" / "summary.json").write_text('{"train": {"questions": 16, "dropped_all_right": 3}}')


def test_steps_run_in_order_and_not_twice(tmp_path, monkeypatch):
    ran = []

    def run(rounds, folder, jobs):
        ran.append([{name: (command, done) for name, (command, done) in one.items()} for one in rounds])
        return [], False

    monkeypatch.setattr(verifier, "run_rounds", run)
    assert verifier.main([f"--workdir={tmp_path}", "--config.seed=3"]) == 0
    label, arms, evals = ran[0]
    assert list(label) == ["labels"] and {"--mode=label", "--config.seed=3"} <= set(label["labels"][0])
    assert f"--config.algo.data={tmp_path}/labels" in arms["unbalanced"][0]
    assert "--config.algo.balanced=False" in arms["unbalanced"][0]
    assert evals["balanced"][0] == ["--mode=eval"]
    assert not any(done for one in ran[0] for _, done in one.values())
    finish(tmp_path)
    assert verifier.main([f"--workdir={tmp_path}"]) == 0
    assert all(done for one in ran[1] for _, done in one.values())


def test_the_table(tmp_path, capsys):
    finish(tmp_path)
    assert verifier.main([f"--workdir={tmp_path}", "--collect"]) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "verifier.md").read_text()
    assert "| unbalanced | natural | 8 | 2 | 0.750 [0.500, 1.000] | – | – | 0.100 [0.000, 0.200] | – |" in text
    assert "questions 16, dropped all right 3." in text
