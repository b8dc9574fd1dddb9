"""`kill -9` at random moments: a run that was killed often equals one that never was. For `make soak` only."""

import contextlib
import os
import random
import signal
import subprocess
import time

import jax
import numpy as np
import pytest

from marl_jax.running.metrics import read_json_lines
from tests.faults import fuzz
from tests.marl_jax.test_train import launch, state

pytestmark = pytest.mark.skipif(not fuzz.SOAK, reason="takes minutes: make soak")

KILLS = int(os.environ.get("MARL_JAX_KILLS", "100"))
RUNS, STEPS = 4, 4 * KILLS
TIMED = ("time", "seconds/rollout", "seconds/update", "games_per_s", "tokens_per_s")
SETTINGS = ("--config.checkpoint.every=3", f"--config.steps={STEPS}")


def rows(workdir):
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_json_lines(workdir / "metrics.jsonl")]


def kill(run, workdir, rng) -> bool:
    """Kills a run: most often a moment after it has done a step, else while it starts; False if it was done before."""
    done = len(rows(workdir))
    starting = rng.random() < 0.2
    while run.poll() is None and len(rows(workdir)) <= done and not starting:
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(rng.uniform(0.0, 5.0 if starting else 0.3))
    if run.poll() is not None:
        return False
    run.send_signal(signal.SIGKILL)
    run.wait()
    return True


def test_killed_at_random_moments_equals_never_killed(tmp_path):
    cache, kills, resumed = tmp_path / "cache", 0, 0
    whole = launch(tmp_path / "whole", cache, *SETTINGS)
    assert whole.wait(1200) == 0, whole.stderr.read()
    expected = state(tmp_path / "whole")
    for number in range(RUNS):
        rng, workdir = random.Random(f"{fuzz.SOAK} {number}"), tmp_path / str(number)
        for _ in range(KILLS // RUNS):
            if not kill(launch(workdir, cache, *SETTINGS), workdir, rng):
                break
            kills += 1
        last = launch(workdir, cache, *SETTINGS)
        assert last.wait(1200) == 0, last.stderr.read()
        step, found = state(workdir)
        assert step == expected[0]
        jax.tree.map(np.testing.assert_array_equal, expected[1], found)
        assert rows(workdir) == rows(tmp_path / "whole")
        resumed += 1
    print(f"{kills} kills in {resumed} runs of {STEPS} steps, all resumed exactly")
    assert kills > 0
