"""Runs as Python objects, read from a folder."""

import json
import sys
import types

import pytest

import marl_jax
from marl_jax.errors import ConfigError, RunError
from tests.marl_jax import tiny_run

pytestmark = pytest.mark.quick


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_run.get_config().to_dict()))
    rows = [{"step": i, "time": 1.0 * i, "success": i / 10, "kl": None if i == 2 else 0.5} for i in range(1, 5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 5, "succ')
    row = {"step": 4, "time": 4.0, "opponent": "random", "games": 8, "win_rate": 0.5, "win_rate_low": 0.2,
           "win_rate_high": 0.8}  # fmt: skip
    (tmp_path / "eval.jsonl").write_text(json.dumps(row) + "\n")
    return marl_jax.Run(tmp_path)


def test_tables_are_lists_of_dicts(run, monkeypatch):
    assert run.step == 4 and repr(run).endswith("step 4 of 8)") and run.config.env.name == "tic_tac_toe"
    assert run.metrics.column("success") == [0.1, 0.2, 0.3, 0.4] and run.metrics[0]["kl"] == 0.5
    assert run.evaluations[0]["win_rate"] == 0.5
    assert run.games == run.events == run.episodes == [] and run.checkpoints == [] and run.best_checkpoint is None
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=tuple))
    assert run.metrics.to_pandas() == tuple(run.metrics)


def test_curves_and_report(run, tmp_path):
    chart = run.plot("success", "random/win_rate")
    assert chart.count("<svg") == 2 and "random/win_rate" in chart and chart._repr_html_().startswith("<iframe")
    assert chart.save(tmp_path / "curves.html").read_text() == chart
    assert run.plot().count("<svg") == 2
    with pytest.raises(RunError, match="there is no metric 'loss'; metrics of .*: success, kl, random/games, random/w"):
        run.plot("loss")
    assert run.report().read_text().startswith("<!doctype html>")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        marl_jax.Run(tmp_path / "none")


@pytest.mark.parametrize("name, attribute", [("kuhn", "reset"), ("arithmetic", "play")])
def test_environments_by_name(name, attribute):
    assert hasattr(marl_jax.make_env(name), attribute)
    with pytest.raises(ValueError, match="name is 'chess', but must be a game .tic_tac_toe, .* or a task .arc, "):
        marl_jax.make_env("chess")
