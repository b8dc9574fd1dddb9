"""`kill -9` while a judge hangs: the run resumes exactly and asks only for the verdicts that it does not have."""

import collections
import signal
import time
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.marl_jax.fake_openai import fake_openai
from tests.marl_jax.modes.test_train import launch, state
from tests.marl_jax.tiny_serving import wait_for

pytestmark = pytest.mark.nightly


def verdict(body):
    """Return a verdict that depends on the request."""
    return ("Verdict: A", "Verdict: B", "nonsense")[zlib.crc32(str(body["messages"]).encode()) % 3]


def start(workdir, cache):
    return launch(workdir, cache, config=f"--config={Path(__file__).with_name('kill_runs.py')}:judge")


def test_killed_while_the_judge_hangs_equals_never_killed(tmp_path, monkeypatch):
    with fake_openai(reply=verdict) as server:
        monkeypatch.setenv("MARL_JAX_JUDGE", server.place)
        whole = start(tmp_path / "whole", tmp_path / "cache")
        assert whole.wait(1200) == 0, whole.stderr.read()
        expected, count = collections.Counter(map(str, server.asked)), len(server.asked)
        server.asked.clear()

        hung = []
        for when in (count // 4, count // 2):  # a few requests in the first and in the second step
            hangs = lambda body, when=when: len(server.asked) > when and not hung.append(str(body))  # noqa: E731
            server.hang = hangs
            killed = start(tmp_path / "killed", tmp_path / "cache")
            wait_for(lambda killed=killed: hung or killed.poll() is not None, 600)
            time.sleep(1.0)  # earlier requests are answered
            assert killed.poll() is None, killed.stderr.read()
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            lost = collections.Counter(hung)
            server.asked = [body for body in server.asked if str(body) not in lost]
            server.hang = lambda body: False
            hung.clear()
        last = start(tmp_path / "killed", tmp_path / "cache")
        assert last.wait(1200) == 0, last.stderr.read()
        found = collections.Counter(map(str, server.asked))
    assert set(found) == set(expected) and max(found.values()) == 1
    (step, whole_state), (other_step, killed_state) = state(tmp_path / "whole"), state(tmp_path / "killed")
    assert step == other_step == 3
    jax.tree.map(np.testing.assert_array_equal, whole_state, killed_state)
