"""Rollouts with the reference completions of a task."""

import numpy as np
import pytest

from envs.tasks.dataset_task import DatasetTask
from marl_jax.rollouts.host.gold import gold_rollout
from tests.marl_jax.tiny_host import FakeSampler, make_rollout, merging_tokenizer

WORDS = ("ab", "cab", "abba", "a<|im_end|>b", "bbbbbbbbbbbb")
ROWS = [{"prompt": f"Say {word}.", "completion": word} for word in WORDS]


def test_samples_have_the_references_and_end_with_a_stop_token():
    task = DatasetTask({"train": ROWS, "validation": [{"prompt": "", "completion": ""}], "test": [
        {"prompt": "a", "completion": ""}]}, completion="{completion}")  # fmt: skip
    made = make_rollout(task, FakeSampler(), n_examples=5, samples=1, budget=8)
    rollout = gold_rollout({name: getattr(made, name) for name in ("runner", "n_examples", "samples", "split")})
    try:
        samples, state, metrics = rollout({}, rollout.init(None, None))
    finally:
        rollout.close()
    rows = [samples.targets[n][samples.completion_of[n] == 0].tolist() for n in range(samples.n)]
    tokenizer = merging_tokenizer()
    stop = tokenizer.stop_ids[0]
    expected = [[*tokenizer.encode(word), stop][:8] for word in ("ab", "cab", "abba", "ab", "bbbbbbbbbbbb")]
    assert sorted(row for row in rows if row) == sorted(expected)
    assert [row[-1] for row in expected].count(stop) == 4  # the last one is cut off at the limit
    assert np.sum(samples.truncated) == 1
    assert metrics["success"] == pytest.approx(3 / 5) and state["position"] == 5
