"""`kill -9` while a judge hangs: the run resumes exactly and asks only for the verdicts that it does not have."""

import collections
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.marl_jax import judge_run
from tests.marl_jax.fake_openai import fake_openai
from tests.marl_jax.tiny_serving import wait_for

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]


def verdict(body):
    """Return a verdict that depends on the request."""
    return ("Verdict: A", "Verdict: B", "nonsense")[zlib.crc32(str(body["messages"]).encode()) % 3]


@pytest.mark.parametrize("step", range(judge_run.STEPS))
def test_killed_while_the_judge_hangs_equals_never_killed(tmp_path, step):
    with fake_openai(reply=verdict) as server:
        judge_run.main(tmp_path / "whole", server.place)
        expected = collections.Counter(map(str, server.asked))
        hung, when = [], len(server.asked) // judge_run.STEPS * step + 4
        server.asked.clear()
        server.hang = lambda body: len(server.asked) > when and not hung.append(str(body))
        command = [sys.executable, "-m", "tests.marl_jax.judge_run", tmp_path / "killed", server.place]
        killed = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: hung or killed.poll() is not None, 600)
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(1.0)  # earlier requests are answered
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        known = collections.Counter(map(str, server.asked)) - collections.Counter(hung)
        server.hang = lambda body: False
        server.asked.clear()
        judge_run.main(tmp_path / "killed", server.place)
        again = collections.Counter(map(str, server.asked))
    # An episode asks in both orders, and its verdict is journaled when it has both answers.
    assert again <= expected and set(known + again) == set(expected) and sum(again.values()) < sum(expected.values())
    for number in range(judge_run.STEPS):
        whole, resumed = (np.load(tmp_path / name / f"samples_{number}.npz") for name in ("whole", "killed"))
        assert whole.files == resumed.files
        for name in whole.files:
            np.testing.assert_array_equal(whole[name], resumed[name], name)
    assert len(list((tmp_path / "killed" / "journal").glob("*.jsonl"))) == judge_run.STEPS
