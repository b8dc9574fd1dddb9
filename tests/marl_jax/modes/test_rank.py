"""Rankings of runs: played games, written files and refused folders."""

import json

import pytest

from marl_jax import cli
from marl_jax.errors import RunError
from marl_jax.modes import rank
from marl_jax.web import ranking
from tests.marl_jax.evaluation.test_evaluate import save, small

RESULT = {
    "names": ["a|b", "<c>"],
    "matrix": [[0.5, 0.25], [0.75, 0.5]],
    "elo": {"a|b": 900.0, "<c>": 1100.0},
    "elo_low": {"a|b": 800.0, "<c>": 1050.0},
    "elo_high": {"a|b": 950.0, "<c>": 1200.0},
    "nash_average": {"a|b": -0.25, "<c>": 0.0},
    "nash_share": {"a|b": 0.0, "<c>": 1.0},
}


@pytest.mark.quick
def test_the_table_starts_with_the_strongest():
    lines = ranking.markdown(RESULT).splitlines()
    assert lines[2] == "| <c> | 1100 [1050, 1200] | 0.000 | 1.000 | – | 0.750 |"
    assert lines[3] == "| a\\|b | 900 [800, 950] | -0.250 | 0.000 | 0.250 | – |"
    chart = ranking.svg(RESULT)
    assert "&lt;c&gt;" in chart and chart.index("&lt;c&gt;") < chart.index("a|b") and chart.count("<circle") == 2


@pytest.mark.quick
def test_folders_without_runs_are_named(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert rank.runs_to_rank(str(tmp_path)) == [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(RunError, match="three is neither the folder of a run nor a folder that contains runs"):
        rank.runs_to_rank(f"{tmp_path / 'one'},{tmp_path / 'three'}")
    with pytest.raises(RunError, match="has 1 run, but a ranking requires at least 2"):
        rank.runs_to_rank(str(tmp_path / "one"))
    members = [{"name": name, "values": {}} for name in ("one", "two", "seed=3")]
    (tmp_path / "sweep.json").write_text(json.dumps({"members": members}))
    with pytest.raises(RunError, match="seed=3 is missing, but the sweep in .* lists it"):
        rank.runs_to_rank(str(tmp_path))


def test_one_command_ranks_the_runs_of_a_folder(tmp_path, capsys):
    for name in ("one", "two"):
        config = small()
        config.eval.opponents = ("random",)
        save(tmp_path / name, config)
    assert cli.main(["launch.py", "--mode=rank", f"--workdir={tmp_path}"]) == 0
    result = json.loads((tmp_path / "ranking.json").read_text())
    assert set(result["names"]) == {"one", "two", "random"} and sum(result["elo"].values()) == pytest.approx(3000)
    assert sum(result["nash_share"].values()) == pytest.approx(1)
    assert len((tmp_path / "ranking.md").read_text().splitlines()) == 5 and (tmp_path / "ranking.svg").is_file()
    assert cli.main(["launch.py", "--mode=rank", f"--workdir={tmp_path / 'one'},{tmp_path / 'gone'}"]) == 1
    assert "gone is neither the folder of a run" in capsys.readouterr().err
