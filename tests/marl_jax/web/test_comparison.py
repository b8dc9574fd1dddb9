"""Comparisons: runs are grouped by their settings, means have intervals, and text of runs stays text."""

import json

import pytest
from scipy import stats

from configs import defaults
from marl_jax.modes import report
from marl_jax.web import comparison
from marl_jax.web.comparison import ComparedRun
from tests.marl_jax.web.test_report import ATTACK, read

pytestmark = pytest.mark.quick


def make_run(name, seed, lr, won, **more):
    config = defaults.get_config()
    config.seed, config.optim.lr, config.steps = seed, lr, 10
    ends = {"win_rate_low": won - 0.1, "win_rate_high": won + 0.1}
    evals = [{"step": s, "opponent": "random", "games": 9, "win_rate": won * s / 10, **ends} for s in (0, 10)]
    metrics = [{"step": s, "time": 1.0 + s, "return": won, "entropy": 1 / s} for s in (5, 10)]
    return ComparedRun(name, config.to_dict(), metrics, evals, finished=True, **more)


RUNS = [make_run(f"run {i}", i, lr, won) for i, (lr, won) in enumerate(
    [(1e-3, 0.9), (1e-3, 0.95), (1e-3, 0.99), (3e-4, 0.4)])]  # fmt: skip


def test_runs_are_grouped_by_the_fields_in_which_they_differ():
    groups = comparison.group(RUNS)
    assert [group.values for group in groups] == [{"optim.lr": 1e-3}, {"optim.lr": 3e-4}]
    assert [len(group.runs) for group in groups] == [3, 1]
    (alone,) = comparison.group(RUNS[:3])
    assert alone.values == {} and alone.label == "run 0, run 1, run 2"
    assert [group.values for group in comparison.group(RUNS[:1], ["optim.lr", "seed"])] == [{"optim.lr": 1e-3}]


def test_means_have_t_intervals_that_end_at_one_for_shares():
    first, second = comparison.results(comparison.group(RUNS))["random/win_rate"]
    values = [0.9, 0.95, 0.99]
    low, high = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
    assert first == {"mean": pytest.approx(sum(values) / 3), "low": pytest.approx(low), "high": 1.0, "runs": 3,
                     "values": values}  # fmt: skip
    assert high > 1 and (second["mean"], second["low"], second["high"]) == (0.4, 0.4, 0.4)


def test_a_failed_run_and_its_error_are_in_every_table():
    failed = ComparedRun(ATTACK, {"seed": 3, "optim": {"lr": 1e-3}}, [], [], error=f"no memory {ATTACK}", link="x.html")
    groups = comparison.group([*RUNS, failed], ["optim.lr"])
    page = comparison.build(f"a comparison {ATTACK}", groups)
    reader = read(page)
    words = "".join(reader.words)
    assert f"failed at step 0: no memory {ATTACK}" in words and "script" not in reader.tags
    assert "3 of 4" in words and "failed1" in words and reader.links == ["x.html"]
    assert "win rate, random" in words and "Share of games won" in words
    table = comparison.markdown("a comparison", groups)
    assert "| optim.lr | finished | win rate, random | return |" in table
    assert "| 3e-4 | 1 of 1 | 40.0 % | 0.4 |" in table and "- " + ATTACK in table


def test_a_sweep_that_has_just_begun_can_be_compared(tmp_path):
    members = [{"name": f"seed={i}", "values": {"optim.lr": 0.1, "seed": i}, "error": ""} for i in (0, 1)]
    (tmp_path / "sweep.json").write_text(json.dumps({"members": members}))
    words = "".join(read(report.main(tmp_path).read_text()).words)
    assert "seed=1step 0 of ?1" in words and "0 of 2" in words


def test_the_runs_in_a_folder_are_compared_next_to_them(tmp_path):
    for name, lr in (("slow", 1e-4), ("fast", 1e-2)):
        (tmp_path / name).mkdir()
        config = defaults.get_config()
        config.optim.lr = lr
        (tmp_path / name / "config.json").write_text(json.dumps(config.to_dict()))
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": 1.0, "return": lr}) + "\n")
    assert report.main(tmp_path) == tmp_path / "comparison.html"
    table = (tmp_path / "comparison.md").read_text()
    assert "| optim.lr | finished | return |" in table and "| 0.01 | 0 of 1 | 0.01 |" in table
    assert not list(tmp_path.glob("*/report.html")) and report.main(tmp_path / "slow").name == "report.html"
