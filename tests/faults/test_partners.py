"""Processes that do not belong together, or never meet: a line of ours at the end. For `make soak` only."""

import socket
import subprocess
import time

import pytest

from tests.faults import fuzz
from tests.marl_jax.modes.test_processes import launch

pytestmark = [pytest.mark.skipif(not fuzz.SOAK, reason="takes a minute: make soak"), pytest.mark.nightly]


def start(folder, index, timeout, *flags) -> subprocess.Popen:
    settings = ("enabled=true", f"coordinator=localhost:{PORT}", "processes=2", f"timeout={timeout}", f"index={index}")
    given = [f"--config.distributed.{flag}" for flag in settings]
    return launch(folder / "run", folder / "cache", 2, f"said_{index}", *given, *flags)


with socket.socket() as free:
    free.bind(("localhost", 0))
    PORT = free.getsockname()[1]


def test_two_seeds_are_not_one_run(tmp_path, seen):
    both = [start(tmp_path, index, 120, f"--config.seed={index}") for index in range(2)]
    assert [process.wait(300) for process in both] == [1, 1]
    for index in range(2):
        said = (tmp_path / f"said_{index}").read_text()
        assert "process 1 differs from process 0: config.seed is 0 there and 1 here" in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    seen("two processes with two seeds", "refused before the first step", runs=1)


def test_a_partner_that_never_comes_is_a_line(tmp_path, seen):
    alone = start(tmp_path, 0, 5)
    assert alone.wait(300) != 0
    time.sleep(2)  # the witness writes when the process is gone
    assert "the other processes did not connect to localhost" in (tmp_path / "said_0").read_text()
    seen("a partner that never comes", "a line after 5 s", runs=1)
