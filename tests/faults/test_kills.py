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
from tests.marl_jax.modes.test_train import launch, state

pytestmark = [pytest.mark.skipif(not fuzz.SOAK, reason="takes minutes: make soak"), pytest.mark.nightly]

KILLS = int(os.environ.get("MARL_JAX_KILLS", "100"))
RUNS = min(10, KILLS)
STEPS = 20 * -(-KILLS // RUNS)  # enough for the kills of one run: each comes a few steps after the one before
TIMED = ("time", "seconds/rollout", "seconds/update", "games_per_s", "tokens_per_s")
SETTINGS = ("--config.checkpoint.every=3", f"--config.steps={STEPS}")


def rows(workdir):
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_json_lines(workdir / "metrics.jsonl")]


def kill(run, workdir, rng) -> bool:
    """Kills a run: most often a moment after it has done a step, else while it starts; False if it was done before."""
    done = len(rows(workdir))
    starting = rng.random() < 0.2
    while run.poll() is None and len(rows(workdir)) <= done and not starting:
        time.sleep(0.02)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(rng.uniform(0.0, 5.0 if starting else 0.2))
    if run.poll() is not None:
        return False
    run.send_signal(signal.SIGKILL)
    run.wait()
    return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never killed, and the folder of its compiled programs."""
    folder = tmp_path_factory.mktemp("kills")
    run = launch(folder / "whole", folder / "cache", *SETTINGS)
    assert run.wait(1200) == 0, run.stderr.read()
    return folder / "whole", folder / "cache"


@pytest.mark.parametrize("number", range(RUNS))
def test_killed_at_random_moments_equals_never_killed(whole, tmp_path, seen, number):
    never, cache = whole
    rng, workdir, kills = random.Random(f"{fuzz.SOAK} {number}"), tmp_path / "killed", 0
    for _ in range(len(range(number, KILLS, RUNS))):
        if not kill(launch(workdir, cache, *SETTINGS), workdir, rng):
            break
        kills += 1
    last = launch(workdir, cache, *SETTINGS)
    assert last.wait(1200) == 0, last.stderr.read()
    (step, expected), (other_step, found) = state(never), state(workdir)
    assert step == other_step == STEPS and kills > 0
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    assert rows(workdir) == rows(never)
    seen("`kill -9` a moment after a step, or while starting", "all resumed exactly", kills=kills, runs=1)
