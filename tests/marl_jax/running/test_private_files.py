"""Files with the text of conversations can be read by their owner only."""

import os
import stat

import pytest

from configs import defaults
from marl_jax.rollouts.host.journal import Journal
from marl_jax.running.conversation_logs import GameLogs, GameRecord, Move
from marl_jax.serving.sessions.traces import TraceFile


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def permissions(path):
    return oct(stat.S_IMODE(path.stat().st_mode))


def write_games(folder):
    config = defaults.get_config()
    config.log.games = 1
    logs = GameLogs(config, folder)
    moves = (Move(0, "prompt", "answer", "5", (0.0, 0.0)),)
    logs.write(0, [GameRecord("tic_tac_toe", ("main", "random"), moves, "win", (1.0, -1.0), 0)])
    logs.close()


WRITERS = {
    "traces": lambda folder: TraceFile(folder / "private" / "traces.jsonl").close(),
    "journal": lambda folder: Journal(folder / "private" / "step.jsonl", {"step": 1}).close(),
    "games": write_games,
}


@pytest.mark.parametrize("name", WRITERS)
def test_texts_belong_to_their_owner(name, tmp_path):
    WRITERS[name](tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "summary" not in path.name]
    assert files and {permissions(path) for path in files} == {"0o600"}
    assert {permissions(path) for path in tmp_path.iterdir() if path.is_dir()} == {"0o700"}


def test_an_existing_file_is_restricted_and_its_folder_stays(tmp_path):
    path = tmp_path / "run" / "traces.jsonl"
    path.parent.mkdir()
    path.write_text("{}\n")
    assert permissions(path) == "0o644"
    TraceFile(path).close()
    assert (permissions(path), permissions(path.parent), path.read_text()) == ("0o600", "0o755", "{}\n")
