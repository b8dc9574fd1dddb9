"""Automatic gradient accumulation: more steps if memory is short, the same gradients up to rounding."""

import types

import jax
import numpy as np
import pytest

from marl_jax.learning import microbatching
from marl_jax.learning.settings import LearnerSettings
from marl_jax.modes import train
from marl_jax.running.checkpoint import Checkpoints
from tests.conftest import nightly_cases
from tests.marl_jax import tiny_run, tiny_task, tiny_tasks  # noqa: F401  (registers its tasks)


def trained(workdir, config):
    """Return the state and metadata of a run's last checkpoint."""
    train.train(config, workdir)
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    return restored


@pytest.mark.nightly
@pytest.mark.parametrize("kind", nightly_cases(["rows", "packed rows"], "packed rows"))
def test_an_update_that_does_not_fit_is_made_in_more_parts(tmp_path, monkeypatch, caplog, kind):
    if kind == "rows":
        config, parts = tiny_run.get_config(), 16  # of 48 rows a minibatch
    else:
        config, parts = tiny_task.get_config("grpo"), 8  # of 8 rows
        config.algo.pack = 2
    config.steps = 2
    whole = trained(tmp_path / "whole", config)
    assert whole.meta["accum_multiplier"] == 1

    monkeypatch.setattr(microbatching, "free_bytes", lambda: 1.0)  # no multiplier fits
    with caplog.at_level("INFO"):
        cut = trained(tmp_path / "cut", config)
    assert cut.meta["accum_multiplier"] == parts and f"{parts} gradient accumulation steps instead of 1" in caplog.text
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)  # noqa: E731
    jax.tree.map(close, whole.state["trained"], cut.state["trained"])

    if kind == "rows":  # a resumed run keeps the multiplier
        config.steps = 3
        monkeypatch.setattr(microbatching, "free_bytes", lambda: 1e15)
        assert trained(tmp_path / "cut", config).meta["accum_multiplier"] == parts


def test_no_more_parts_than_needed(monkeypatch):
    tried = []

    class Update:
        def __init__(self, accum_multiplier):
            self.accum_multiplier = accum_multiplier

        def bytes_needed(self, *_):
            tried.append(self.accum_multiplier)
            return 10.0 + 80.0 / self.accum_multiplier  # constant memory, and memory per part

        def __call__(self, states, samples):
            return self.accum_multiplier

    def update(free, rows, **algo):
        tried.clear()
        monkeypatch.setattr(microbatching, "free_bytes", lambda: free / microbatching.SPARE)
        algo = LearnerSettings(**dict(minibatches=2, grad_accum_steps=2) | algo)
        samples = types.SimpleNamespace(n=rows, shape=(rows,))
        learn = microbatching.AutoMicrobatch(Update, algo, num_shards=4)
        return learn({}, samples), learn({}, samples), list(tried)

    assert update(free=95, rows=1 << 10) == (1, 1, [1])
    assert update(free=51, rows=1 << 10) == (2, 2, [1, 2])
    assert update(free=31, rows=1 << 10) == (4, 4, [1, 4])  # the excess determines the multiplier
    assert update(free=12, rows=1 << 12) == (64, 64, [1, 8, 16, 32, 64])
    assert update(free=12, rows=96) == (2, 2, [1, 2])  # 12 rows per minibatch and shard
    assert update(free=12, rows=96, pack=4) == (4, 4, [1, 4])
    assert update(free=12, rows=16) == (1, 1, [1])


def test_what_is_free():
    stats = dict(bytes_limit=100, bytes_in_use=30)
    assert microbatching._free(stats) == 70
    assert microbatching._free(stats | dict(pool_bytes=100, largest_free_block_bytes=50)) == 50
    assert microbatching._free(stats | dict(pool_bytes=35, largest_free_block_bytes=5)) == 65
    assert microbatching.free_bytes() is None  # CPUs
