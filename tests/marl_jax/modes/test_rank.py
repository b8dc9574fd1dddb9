"""Rankings of runs: played games, written files and refused folders."""

import json

import numpy as np
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


CROSS_PLAY = {
    "names": ["a|b", "<c>"],
    "matrix": [[6.5, 6.0], [6.25, 7.0]],
    "low": [[6.0, 5.5], [6.0, 6.75]],
    "high": [[7.0, 6.5], [6.5, 7.25]],
    "cross_play": {"self_play": 6.75, "cross_play": 6.125, "gap": 0.625},
}


@pytest.mark.quick
def test_a_cooperative_table_has_scores_with_intervals():
    lines = ranking.markdown(CROSS_PLAY).splitlines()
    assert lines[0] == "|  | a\\|b | <c> |"
    assert lines[3] == "| <c> | 6.25 [6.00, 6.50] | 7.00 [6.75, 7.25] |"
    assert lines[5] == "Runs: self play 6.75, cross play 6.12, gap 0.62."
    chart = ranking.svg(CROSS_PLAY)
    assert chart.count("<rect") == 4 and "&lt;c&gt;" in chart and "6.75 – 7.25" in chart


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


@pytest.mark.nightly_for("3", "2")
@pytest.mark.parametrize("players", [2, 3])
def test_one_command_makes_the_cross_play_matrix_of_a_cooperative_game(tmp_path, players):
    for name in ("one", "two"):
        config = small(name="hanabi", preset="very_small", players=players)
        config.eval.update(dict(opponents=("convention",), games=64))
        save(tmp_path / name, config)
    assert cli.main(["launch.py", "--mode=rank", f"--workdir={tmp_path}"]) == 0
    result = json.loads((tmp_path / "ranking.json").read_text())
    matrix, low, high = (np.array(result[name]) for name in ("matrix", "low", "high"))
    assert result["names"] == ["one", "two", "convention"] and np.all((low <= matrix) & (matrix <= high))
    assert matrix[2, 2] > matrix[0, 0] and low[2, 2] < high[2, 2]  # untrained models lose their games
    assert "elo" not in result and result["cross_play"]["self_play"] == np.diag(matrix)[:2].mean()
    assert (matrix == matrix.T).all() or players > 2
    assert (tmp_path / "ranking.svg").read_text().count("<rect") == 9
