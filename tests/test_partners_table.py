"""Measures of changing partners: hand-computed drops, recoveries and payoffs, and damaged runs."""

import json

import pytest

from experiments.tables import partners


def write_run(folder, values, at, payoffs=()):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"task": {"params": {"switch_at": at}}}))
    rows = [{"step": n, "task/best": value, "approx_kl": 0.01 * n} for n, value in enumerate(values, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evals = [{"step": step, "opponent": "self", "success": own, "success_vs_fair": own} for step, own in payoffs]
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))


def test_drop_and_recovery_equal_values_computed_by_hand():
    values = dict(enumerate([0.4, 0.6, 0.8, 0.2, 0.4, 0.6, 0.8, 0.8, 0.0, 0.1], 1))
    first, second = partners.switches(values, (3, 8), window=2)
    # Before: (0.6 + 0.8) / 2. After: (0.2 + 0.4) / 2. The mean of updates 6 and 7, four after the switch, is 0.7.
    assert (first.before, first.after, first.drop) == pytest.approx((0.7, 0.3, 0.4)) and first.recovery == 4
    assert second.drop == pytest.approx(0.75) and second.recovery is None
    assert partners.switches(values, (1,), window=2) == [] and partners.switches({}, (), window=2) == []


def test_the_page_has_payoffs_with_their_spread_and_every_switch(tmp_path, capsys):
    write_run(tmp_path / "a", [0.5, 0.5, 0.1, 0.5], [2], [(0, 0.2), (4, 0.6)])
    write_run(tmp_path / "b", [0.5, 0.5, 0.3, 0.3], [2], [(0, 0.2), (4, 0.4)])
    assert partners.main(["--window=1", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    text = capsys.readouterr().out
    assert "| 0 | 0.200 ± 0.000 |" in text and "| 4 | 0.500 ± 0.141 |" in text
    assert "| 0 | 2 | 0.500 | 0.100 | +0.400 | 2 | 0.02 | 0.03 |" in text
    assert "| 1 | 2 | 0.500 | 0.300 | +0.200 | not reached |" in text
    assert "KL of an update: mean 0.025, highest 0.04." in text and "over 2 runs: 0.500 ± 0.141" in text


def test_damaged_and_mixed_runs_are_rejected(tmp_path, capsys):
    write_run(tmp_path / "a", [0.5], [2])
    write_run(tmp_path / "b", [0.5], [3])
    for folders, match in ((["a", "b"], "different updates"), (["c"], "config.json is missing")):
        with pytest.raises(SystemExit):
            partners.main([str(tmp_path / name) for name in folders])
        assert match in capsys.readouterr().err
    with pytest.raises(SystemExit):
        partners.main(["--window=0", str(tmp_path / "a")])
