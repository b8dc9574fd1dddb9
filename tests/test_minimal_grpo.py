"""The example of a whole GRPO run in one file."""

import numpy as np
import pytest

from examples import minimal_grpo


def test_it_runs():
    successes = minimal_grpo.train(steps=2)
    assert len(successes) == 2 and all(0 <= success < 0.5 for success in successes), "a random model solves little"


@pytest.mark.nightly
def test_it_begins_to_learn_in_45_steps():
    successes = minimal_grpo.train(steps=45)
    assert np.mean(successes[-5:]) > 3 * np.mean(successes[:5])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
def test_it_learns_the_task(seed):
    assert np.mean(minimal_grpo.train(steps=300, seed=seed)[-20:]) > 0.95
