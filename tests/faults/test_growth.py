"""Memory over a thousand steps does not grow. For `make soak` only."""

import contextlib
import re
import subprocess
from pathlib import Path

import pytest

from tests.faults import fuzz
from tests.marl_jax.modes.test_train import launch, steps_done

pytestmark = [pytest.mark.skipif(not fuzz.SOAK, reason="takes minutes: make soak"), pytest.mark.nightly]

STEPS = 1000


def resident(process) -> int:
    """KiB of memory that a process holds."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1])


def test_memory_stays_over_a_thousand_steps(tmp_path, seen):
    run = launch(tmp_path / "run", tmp_path / "cache", f"--config.steps={STEPS}", "--config.checkpoint.every=50")
    found = {}
    while run.poll() is None:
        with contextlib.suppress(FileNotFoundError, TypeError):  # it has just ended
            found.setdefault(steps_done(tmp_path / "run") // 50 * 50, resident(run))
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(0.2)
    assert run.wait(60) == 0
    settled, last = found.get(200) or found[min(s for s in found if s >= 200)], found[max(found)]
    assert last - settled < 40 * 1024
    sizes = f"{settled / 1024:.0f} MiB after 200 steps, {last / 1024:.0f} MiB at the end"
    seen("memory of a process", sizes, steps=STEPS)
