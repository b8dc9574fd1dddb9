"""The example of a whole GRPO run in one file."""

import numpy as np
import pytest

from examples import minimal_grpo


def test_it_begins_to_learn_in_45_steps():
    successes = minimal_grpo.train(steps=45)
    assert np.mean(successes[-5:]) > 3 * np.mean(successes[:5])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
def test_it_learns_the_task(seed):
    assert np.mean(minimal_grpo.train(steps=300, seed=seed)[-20:]) > 0.95
