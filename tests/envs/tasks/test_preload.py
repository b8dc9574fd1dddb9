"""Programs that are loaded once: every run is a new process with its own input, variables and output."""

import asyncio
import os
import signal
import sys
import time

import pytest

from envs.tasks.program.preload import Preloaded
from envs.tasks.program.task import AgentProgram

LOADED = """
import os, pathlib, sys, time

with open(os.environ["LOADS"], "a") as file:
    file.write(__name__ + "\\n")

if __name__ == "__main__":
    line = sys.stdin.readline().strip()
    if line == "hang":
        pathlib.Path(os.environ["PID"]).write_text(str(os.getpid()))
        time.sleep(1000)
    print(line, os.environ["OPENAI_API_KEY"], sys.argv[1:], os.getpid())
    sys.exit({"right": None, "wrong": 3, "words": "these"}[line])
"""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADS", str(tmp_path / "loads"))
    monkeypatch.setenv("PID", str(tmp_path / "pid"))
    (tmp_path / "agent.py").write_text(LOADED)
    found = Preloaded([sys.executable, str(tmp_path / "agent.py"), "--rounds=3"])
    yield found
    found.close()


def run(loaded, *lines):
    """Return the results of concurrent runs."""

    async def together():
        return await asyncio.gather(
            *(loaded.run(f"{line}\n".encode(), {"OPENAI_API_KEY": f"key{i}"}) for i, line in enumerate(lines))
        )

    return asyncio.run(together())


def test_a_program_is_loaded_once_and_every_run_is_a_process(loaded, tmp_path):
    ends = [*run(loaded, "right", "wrong", "words", "right"), *run(loaded, "right")]  # also in another event loop
    words = [end.output.split() for end in ends]
    assert [word[:3] for word in words] == [
        ["right", "key0", "['--rounds=3']"], ["wrong", "key1", "['--rounds=3']"], ["words", "key2", "['--rounds=3']"],
        ["right", "key3", "['--rounds=3']"], ["right", "key0", "['--rounds=3']"],
    ]  # fmt: skip
    assert [end.code for end in ends] == [0, 3, 1, 0, 0] and ends[2].errors == "these\n"
    assert len({word[3] for word in words}) == 5
    assert (tmp_path / "loads").read_text().split().count("__preload__") == 1


def test_a_cancelled_run_is_killed_and_others_are_not(loaded, tmp_path):
    async def cancelled():
        hanging = asyncio.ensure_future(loaded.run(b"hang\n", {}))
        while not (pid := tmp_path / "pid").exists() or not pid.read_text():
            await asyncio.sleep(0.01)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        return int(pid.read_text())

    pid, end = asyncio.run(cancelled()), time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")
    assert run(loaded, "right")[0].code == 0


def test_a_server_that_was_killed_is_started_again(loaded):
    run(loaded, "right")
    os.kill(loaded._server.pid, signal.SIGKILL)
    loaded._server.wait()
    assert run(loaded, "right")[0].code == 0


def test_a_program_that_cannot_be_loaded_says_why(tmp_path):
    (tmp_path / "agent.py").write_text("import no_such_package\n")
    loaded = Preloaded([sys.executable, str(tmp_path / "agent.py")])
    (end,) = run(loaded, "right")
    loaded.close()
    assert end.code == 1 and "No module named 'no_such_package'" in end.errors
    with pytest.raises(ValueError, match="with preload, but must be a Python file"):
        AgentProgram("cat agent.txt", preload=True)
