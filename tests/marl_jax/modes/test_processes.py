"""Runs with two processes: same parameters as one process, lost processes, stops and restarts."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from marl_jax.running import processes
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from tests.conftest import ROUGH
from tests.marl_jax import tiny_run

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
STEPS = 15
FLAGS = (
    f"--config={ROOT}/tests/marl_jax/tiny_run.py", f"--config.steps={STEPS}", "--config.checkpoint.every=3",
    "--config.mesh.data=2", "--config.mesh.fsdp=2", "--config.eval.every=9", "--config.log.games=1",
    "--config.log.games_every=5",
)  # fmt: skip


def launch(workdir: Path, cache: Path, devices: int, name: str, *flags: str) -> subprocess.Popen:
    """Start a process with n devices; its output goes to NAME next to the run folder."""
    environment = dict(
        os.environ,
        JAX_PLATFORMS="cpu",
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices} {ROUGH}",
    )
    with workdir.with_name(name).open("w") as said:
        return subprocess.Popen(
            [sys.executable, "launch.py", *FLAGS, f"--workdir={workdir}", f"--compilation_cache={cache}", *flags],
            cwd=ROOT, env=environment, stderr=said,
        )  # fmt: skip


@contextlib.contextmanager
def pair(workdir: Path, cache: Path):
    """Start two processes with two devices each, and kill them after the test."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    settings = ("enabled=true", f"coordinator=localhost:{port}", "processes=2", "timeout=20")
    flags = [f"--config.distributed.{flag}" for flag in settings]
    both = [launch(workdir, cache, 2, f"said_{i}", *flags, f"--config.distributed.index={i}") for i in range(2)]
    try:
        yield both
    finally:
        for process in both:
            process.kill()
            process.wait()


def said(workdir: Path, index: int) -> str:
    return workdir.with_name(f"said_{index}").read_text()


def wait_for_step(workdir: Path, step: int, checkpoint: int, running: list[subprocess.Popen]) -> None:
    """Wait until a step is done and a checkpoint, written in the background, is complete."""
    while not (
        any(row["step"] >= step for row in read_json_lines(workdir / "metrics.jsonl"))
        and (workdir / "checkpoints" / str(checkpoint)).is_dir()
    ):
        assert all(process.poll() is None for process in running), said(workdir, 0) + said(workdir, 1)
        time.sleep(0.01)


def parameters(workdir: Path):
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    assert restored.step == STEPS
    return restored.state["trained"]


@pytest.mark.nightly
def test_two_processes_lost_stopped_and_resumed_equal_one_that_never_was(tmp_path):
    cache, workdir, alone = tmp_path / "cache", tmp_path / "pair", tmp_path / "alone"
    one = launch(alone, cache, 4, "said_alone")
    with pair(workdir, cache) as both:
        wait_for_step(workdir, 4, 3, both)
        both[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        assert both[0].wait(60) != 0
        assert time.monotonic() - killed < 60
        assert "start the same command on all machines again" in said(workdir, 0)

    with pair(workdir, cache) as both:
        wait_for_step(workdir, 8, 6, both)
        both[1].send_signal(signal.SIGTERM)
        assert [process.wait(120) for process in both] == [0, 0], said(workdir, 0) + said(workdir, 1)
    assert "resumed from step" in said(workdir, 0) and "resumed" not in said(workdir, 1)
    assert "by a signal to another process; run the same command to continue" in said(workdir, 0)

    last = launch(workdir, cache, 4, "said_last")  # the remaining steps on one machine with as many devices
    assert last.wait(300) == 0 and "resumed from step" in workdir.with_name("said_last").read_text()
    assert one.wait(300) == 0, workdir.with_name("said_alone").read_text()

    for x, y in zip(*(jax.tree.leaves(parameters(folder)) for folder in (workdir, alone)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)  # each moved by about 1e-2
    rows = read_json_lines(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    evaluations = [read_json_lines(folder / "eval.jsonl") for folder in (workdir, alone)]
    assert [row["step"] for row in evaluations[0]] == [0, 9, STEPS]
    assert [row["win_rate"] for row in evaluations[0]] == [row["win_rate"] for row in evaluations[1]]
    assert [row["step"] for row in read_json_lines(workdir / "games.jsonl")] == [5, 10, STEPS]
    assert (workdir / "report.html").is_file()


@pytest.mark.nightly
def test_nobody_to_meet_is_an_error_with_the_address():
    config = tiny_run.get_config().distributed
    config.update(dict(enabled=True, coordinator="localhost:1", processes=2, index=1, timeout=1))
    code = (
        "import sys, json; from ml_collections import ConfigDict; from marl_jax import errors\n"
        "from marl_jax.running import processes\n"
        "try: processes.join(ConfigDict(json.loads(sys.argv[1])))\n"
        "except errors.RunError as error: print(error); sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code, config.to_json()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (3, -signal.SIGABRT)
    assert "localhost:1" in done.stdout or "connect" in done.stderr.lower()


def test_alone_a_process_agrees_with_itself():
    assert processes.anyone(True) and not processes.anyone(False)
    assert processes.first("damaged") == "damaged" and processes.first(None) is None
    processes.meet("here")


def test_errors_of_a_lost_process_become_one_line(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    told = pytest.raises(processes.LostProcess, match=r"another process .*Gloo.*start the same command")
    with told, processes.report_lost_process():
        raise jax.errors.JaxRuntimeError("FAILED_PRECONDITION: Gloo all-reduce failed: Connection closed by peer")
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"), processes.report_lost_process():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
