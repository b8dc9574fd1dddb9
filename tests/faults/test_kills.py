"""`kill -9` at random moments: a run that was killed often equals one that never was. For `make soak` only."""

import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

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
KINDS = {"pool": STEPS, "curriculum": STEPS // 2, "program": STEPS // 4, "tools": STEPS // 4}
"""Steps of the runs of each kind (`kill_runs.py`). Every run is killed up to KILLS / RUNS times."""
CASES = [("pool", i) for i in range(RUNS)] + [
    (kind, i) for kind in ("curriculum", "program", "tools") for i in range(2)
]


def start(kind, workdir, cache):
    config = f"--config={Path(__file__).with_name('kill_runs.py')}:{kind}"
    return launch(workdir, cache, "--config.checkpoint.every=3", f"--config.steps={KINDS[kind]}", config=config)


def rows(workdir):
    return [
        {name: value for name, value in row.items() if not re.search("second|time|_per_s|idle", name)}
        for row in read_json_lines(workdir / "metrics.jsonl")
    ]


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


def calls(log) -> list[tuple[int, str, int]]:
    """Return the tool calls that were made: step, episode and number of the call."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [tuple(json.loads(line)) for line in lines]


def recorded(journal) -> set[tuple[int, str, int]]:
    """Return the tool calls whose results are in the journals of a folder, read without the project's own reader."""
    found = set()
    for path in journal.glob("step_*.jsonl"):
        for line in path.read_text().split("\n")[1:-1]:
            episode, call, _ = json.loads(line)
            if call.startswith("tool "):
                found.add((int(path.name[5:13]), episode, int(call.rpartition("#")[2])))
    return found


def check_calls(journaled, log, log_of_whole) -> None:
    """Check that no journaled call was repeated, and that nothing else was called than without kills."""
    made, expected = calls(log), calls(log_of_whole)
    assert any(on_disk for on_disk, _ in journaled), "no kill hit a step with journaled calls"
    for on_disk, length in journaled:
        assert not on_disk & set(made[length:])
    assert set(made) == set(expected) and len(expected) == len(set(expected))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return, for a kind, a run that was never killed and the folder of its compiled programs."""

    @functools.cache
    def found(kind):
        folder = tmp_path_factory.mktemp("kills")
        os.environ["NOTED_CALLS"] = str(folder / "calls.jsonl")
        run = start(kind, folder / "whole", folder / "cache")
        assert run.wait(1200) == 0, run.stderr.read()
        return folder / "whole", folder / "cache"

    return found


@pytest.mark.parametrize("kind, number", CASES)
def test_killed_at_random_moments_equals_never_killed(whole, tmp_path, monkeypatch, seen, kind, number):
    never, cache = whole(kind)
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("NOTED_CALLS", str(log))
    rng, workdir, kills = random.Random(f"{fuzz.SOAK} {kind} {number}"), tmp_path / "killed", 0
    journaled = []  # calls on disk at each kill, and the length of the log
    for _ in range(len(range(number, KILLS, RUNS))):
        if not kill(start(kind, workdir, cache), workdir, rng):
            break
        kills += 1
        journaled.append((recorded(workdir / "journal"), len(calls(log))))
    last = start(kind, workdir, cache)
    assert last.wait(1200) == 0, last.stderr.read()
    (step, expected), (other_step, found) = state(never), state(workdir)
    assert step == other_step == KINDS[kind] and kills > 0
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    assert rows(workdir) == rows(never)
    if kind == "tools":
        check_calls(journaled, log, never.parent / "calls.jsonl")
    seen(f"`kill -9` after a step or while starting, {kind}", "all resumed exactly", kills=kills, runs=1)
