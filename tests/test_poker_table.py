"""Poker table: its runs, the collected results, and its output."""

import json
from xml.etree import ElementTree

import pytest

from configs import poker as forms
from experiments.tables import charts, poker

pytestmark = pytest.mark.nightly


def write_run(folder, steps, values):
    """Write the evaluations of a run; those against a bot are not part of the table."""
    folder.mkdir(parents=True)
    rows = []
    for step, value in zip(steps, values, strict=True):
        rows.append({"step": step, "opponent": "random", "payoff": 0.5})
        rows.append({"step": step, "opponent": "best_response", "exploitability": value, "nash_conv": 2 * value})
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_every_form_is_a_row_and_every_seed_a_run():
    assert set(poker.WORDS) == set(poker.SHORT) == set(forms.FORMS)
    with pytest.raises(SystemExit, match="'chess', but must be one of: kuhn, leduc, .*: ppo"):
        poker.main(["--only=chess"])


def test_runs_are_collected_and_written(tmp_path, capsys):
    write_run(tmp_path / "kuhn-ppo-0", (0, 20, 40), (0.4, 0.1, 0.2))
    write_run(tmp_path / "kuhn-ppo-1", (0, 20, 40), (0.45, 0.3, 0.25))
    write_run(tmp_path / "leduc-magnet-0", (0, 40), (2.5, 1.0))
    assert poker.main([f"--workdir={tmp_path}", "--collect"]) == 0
    table = (tmp_path / "poker.md").read_text()
    assert capsys.readouterr().out == table
    assert "| Kuhn | PPO | 40 | 0.400, 0.450 | **0.200**, **0.250** | 0.400, 0.500 | 0.100, 0.250 |" in table
    assert "| Leduc | PPO, magnet | 40 | 2.500 | **1.000** | 2.000 | 1.000 |" in table and table.count("\n") == 4
    drawn = ElementTree.fromstring((tmp_path / "poker.svg").read_text())
    assert len([element for element in drawn.iter() if element.tag.endswith("polyline")]) == 3
    with pytest.raises(SystemExit, match="has no runs to collect"):
        poker.main([f"--workdir={tmp_path}/nothing", "--collect"])


def test_what_is_run_is_what_is_missing(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(poker, "run_rounds", lambda rounds, folder, jobs: (asked.extend(rounds), ([], False))[1])
    done = tmp_path / "kuhn-role-0"
    write_run(done, (0, 7), (0.4, 0.3))
    (done / "checkpoints" / "7").mkdir(parents=True)
    (done / "checkpoints" / "7" / "seal.json").write_text("{}")
    flags = [f"--workdir={tmp_path}", "--only=kuhn/role", "--steps=7", "--config.optim.lr=0.1"]
    assert poker.main(flags) == 0
    (runs,) = asked
    assert {name: is_done for name, (_, is_done) in runs.items()} == {"kuhn-role-0": True, "kuhn-role-1": False}
    expected = ["--config=experiments/kuhn.py:role", "--config.seed=1", "--config.steps=7", "--config.optim.lr=0.1"]
    assert runs["kuhn-role-1"][0] == expected


def test_curves_stay_inside_their_panels():
    curve = charts.Curve("x", (0, 5, 10), (0.43, 0.1, 0.02))
    drawn = charts.curve_chart({"a": [curve], "b": []}, "updates", {"a": 0.05})
    (points,) = [e.get("points") for e in ElementTree.fromstring(drawn).iter() if e.tag.endswith("polyline")]
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert all(charts.LEFT <= x <= charts.WIDTH - charts.RIGHT for x, _ in places)
    assert all(charts.TOP <= y <= charts.HEIGHT - charts.BOTTOM for _, y in places)
    assert [y for _, y in places] == sorted(y for _, y in places)  # less exploitable is lower
