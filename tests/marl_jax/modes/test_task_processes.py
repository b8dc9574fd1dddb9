"""Two processes train on a task to the same parameters as one; each has its sampler."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from tests.conftest import ROUGH

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
STEPS = 3
FLAGS = (
    f"--config.steps={STEPS}", "--config.checkpoint.every=2", "--config.task.n_episodes=8", "--config.eval.every=3",
    "--config.eval.games=5", "--config.log.games=1", "--config.log.games_every=2",
)  # fmt: skip


def launch(workdir, cache, devices, name, *flags):
    """Start a process with n devices; its output goes to NAME next to the run folder."""
    environment = dict(
        os.environ,
        JAX_PLATFORMS="cpu",
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices} {ROUGH}",
    )
    config = f"--config={ROOT}/tests/marl_jax/tiny_task.py:at_grpo"
    folders = (f"--workdir={workdir}", f"--compilation_cache={cache}")
    with workdir.with_name(name).open("w") as said:
        return subprocess.Popen(
            [sys.executable, "launch.py", config, *folders, *FLAGS, *flags],
            cwd=ROOT, env=environment, stderr=said,
        )  # fmt: skip


def parameters(workdir):
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    assert restored.step == STEPS and restored.meta["rollout"]["step"] == STEPS
    return jax.tree.leaves(restored.state["trained"])


@pytest.mark.nightly
def test_two_processes_train_to_the_parameters_of_one(tmp_path):
    alone, workdir, cache = tmp_path / "alone", tmp_path / "pair", tmp_path / "cache"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = [
        f"--config.distributed.{flag}"
        for flag in ("enabled=true", f"coordinator=localhost:{port}", "processes=2", "timeout=60")
    ]
    split = "--config.mesh.fsdp=2"  # parameters, too
    started = [
        launch(workdir, cache, 1, f"said_{i}", split, *flags, f"--config.distributed.index={i}") for i in range(2)
    ] + [launch(alone, cache, 2, "said_alone", split)]
    try:
        codes = [process.wait(300) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert codes == [0, 0, 0], "".join(path.read_text() for path in tmp_path.glob("said_*"))

    for x, y in zip(parameters(workdir), parameters(alone), strict=True):
        np.testing.assert_allclose(
            x, y, rtol=0, atol=3e-6
        )  # Adam divides by small gradients, which amplifies rounding errors
    ours, theirs = (read_json_lines(folder / "metrics.jsonl") for folder in (workdir, alone))
    for row, other in zip(ours, theirs, strict=True):
        assert row["episodes"] == other["episodes"] == 8 and row["grad_norm"] > 1e-4
        for name in (
            "success",
            "reward/team",
            "reward/editor",
            "completion_length",
            "completions_trained",
            "task/length",
        ):
            assert row[name] == pytest.approx(other[name], abs=1e-5), name
    ours, theirs = (read_json_lines(folder / "eval.jsonl") for folder in (workdir, alone))
    assert [(row["step"], row["games"], row["success"]) for row in ours] == [
        (row["step"], row["games"], pytest.approx(row["success"])) for row in theirs
    ]
    assert len(read_json_lines(workdir / "games.jsonl")) == 1
