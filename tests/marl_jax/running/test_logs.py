"""Logs that a person reads: complete games, bounded in size."""

import errno
import logging
import os

import pytest

from configs import defaults
from marl_jax.running.conversation_logs import GameLogs, GameRecord, Move
from marl_jax.running.metrics import read_json_lines

pytestmark = pytest.mark.quick


def make_game(winner=0, answer="5", svg=""):
    moves = (
        Move(0, "You are X.\nYour move:", answer, "5", (0.0, 0.0), board=". . .\n. X .", svg=svg, seconds=0.25),
        Move(1, "You are O.\nYour move:", "hello", "1", (1.0, -1.0), board="O . .\n. X .", error="no legal move"),
    )
    return GameRecord("tic_tac_toe", ("main", "random"), moves, "win", (1.0, -1.0), winner, start_board=". . .\n. . .")


@pytest.fixture
def config():
    config = defaults.get_config()
    config.model.name = "org/some model"
    config.log.update(dict(games=2, games_every=5))
    return config


def test_the_three_files_say_what_they_should(config, tmp_path):
    logs = GameLogs(config, tmp_path)
    assert logs.due(5) and not logs.due(6)
    logs.write(5, [make_game(0), make_game(1), make_game(0)])
    logs.close()
    text = next((tmp_path / "logs").glob("game_results_2*.log")).read_text()
    assert "turn 0: player 0 plays 5" in text and ". X ." in text
    assert "result: player 1 (random) wins; scores: player 0 +1, player 1 -1; 2 moves" in text
    text = next((tmp_path / "logs").glob("llm_conversation_2*.log")).read_text()
    assert "You are X.\nYour move:" in text and "answer (0.250 s)\n5" in text and "! no legal move" in text
    text = (tmp_path / "logs" / "game_summary_org-some-model.txt").read_text()
    assert "2 written out" in text  # the third is beyond log.games
    main = next(line.split() for line in text.splitlines() if line.split()[:1] == ["main"])
    assert main == ["main", "2", "1", "0", "1", "1.000"]
    assert len(read_json_lines(tmp_path / "games.jsonl")) == 2


def test_logs_of_a_task_count_episodes_and_name_roles(config, tmp_path):
    config.task.name = "arithmetic"
    move = Move(1, "Check 4.", "It is right.", "", (1.0, 0.25))
    episodes = [
        GameRecord("arithmetic", ("solver (tiny)", "checker (tiny)"), (move,), how, (1.0, 0.25), solved=solved,
                   roles=("solver", "checker"))
        for how, solved in (("end", True), ("incomplete", None))
    ]  # fmt: skip
    logs = GameLogs(config, tmp_path)
    logs.write(5, episodes)
    logs.close()
    text = next((tmp_path / "logs").glob("game_results_2*.log")).read_text()
    assert "step 5, train episode 0: arithmetic, solver (tiny), checker (tiny)" in text
    assert "turn 0: checker answers 'It is right.'; reward: solver +1, checker +0.25" in text
    assert "[turn 0, checker] prompt" in next((tmp_path / "logs").glob("llm_conversation_2*.log")).read_text()
    words = (tmp_path / "logs" / "game_summary_org-some-model.txt").read_text().split("\n")
    assert [" ".join(line.split()) for line in words[2:5]] == ["1 solved", "0 not solved", "1 failed"]
    assert not any("win" in line or "player" in line for line in words)


def test_a_resumed_run_goes_on_with_the_summary(config, tmp_path):
    for start in (0, 5):
        logs = GameLogs(config, tmp_path, start=start)
        logs.write(start + 5, [make_game()])
        logs.close()
    assert [row["step"] for row in read_json_lines(tmp_path / "games.jsonl")] == [5, 10]
    assert "2 written out" in (tmp_path / "logs" / "game_summary_org-some-model.txt").read_text()


@pytest.mark.parametrize("what", ["answer", "svg"])
def test_the_size_is_bounded(config, tmp_path, what):
    config.log.max_megabytes = 1
    for start in (0, 100, 200):
        logs = GameLogs(config, tmp_path, start=start)
        for step in range(start + 5, start + 100, 5):
            logs.write(step, [make_game(**{what: "x" * 200_000})])
        logs.close()
    sizes = [file.stat().st_size for file in (tmp_path / "logs").iterdir()]
    assert max(sizes) < 1.5e6 and (tmp_path / "games.jsonl").stat().st_size < 1.5e6


def test_a_full_disk_costs_games_and_one_warning_a_file(config, tmp_path, monkeypatch, caplog):
    logs = GameLogs(config, tmp_path)

    def no_space(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for how in ("open", "write_text"):
        monkeypatch.setattr(f"pathlib.Path.{how}", no_space)
    with caplog.at_level(logging.WARNING, "marl_jax"):
        for step in (5, 10):
            logs.write(step, [make_game(), make_game()])
    assert [record.args[0].name[:8] for record in caplog.records] == ["game_res", "llm_conv", "game_sum"]


def test_other_processes_write_nothing(config, tmp_path):
    logs = GameLogs(config, tmp_path, main=False)
    assert logs.due(5)  # they play along
    logs.write(5, [make_game()])
    assert not list(tmp_path.iterdir())


def test_a_winner_must_sit_at_the_table():
    with pytest.raises(ValueError, match="winner is 2"):
        make_game(winner=2)
