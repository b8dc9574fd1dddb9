"""What the learner reads once for many samples: loss and gradients must be those of separate, whole rows."""

import dataclasses

import jax
import numpy as np
import pytest

from marl_jax.agents import reading
from marl_jax.learning import update
from tests.marl_jax import tiny_play, tiny_samples
from tests.models.tiny_models import largest, largest_difference, quick_jit

WIDTH, GROUP = 4, 3


def gradients(policy, rows, **settings):
    """(gradients, figures) of one minibatch."""
    trained, frozen = tiny_play.weights(policy)
    algo = tiny_play.ppo(value_clip=0.0, **settings)
    train_state = update.TrainState(trained, frozen, None, np.int32(0))
    return quick_jit(lambda train_state, rows: update.summed_gradients(policy, algo, train_state, rows))(
        train_state, rows
    )


def agree(found, expected):
    (grads, figures), (expected_grads, expected_figures) = found, expected
    assert largest_difference(grads, expected_grads) < 1e-5 * largest(expected_grads)
    for name, value in expected_figures.items():
        np.testing.assert_allclose(figures[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("settings", "share"),
    [(dict(), 1), (dict(critic="separate"), 1), (dict(lora=2), 1), (dict(lora=2, critic="none"), GROUP)],
    ids=["all weights", "separate critic", "adapters", "adapters and shared prompts"],
)
def test_a_prefix_that_is_read_once_changes_nothing(settings, share):
    whole = tiny_play.policy(free=WIDTH, **settings)
    once = dataclasses.replace(whole, prefix=tiny_samples.PREFIX, share=share)
    assert once.keeps_prefix and not whole.keeps_prefix
    rows = tiny_samples.make(12, 7, WIDTH, group=share, adapters=2)
    agree(gradients(once, rows), gradients(whole, rows))


def test_fewer_tokens_are_read():
    """In the compiled program no activation is as long as a whole row."""
    policy = dataclasses.replace(tiny_play.policy(free=WIDTH), prefix=tiny_samples.PREFIX)
    rows = tiny_samples.make(12, 7, WIDTH)
    trained, _ = tiny_play.weights(policy)
    read = jax.jit(lambda p, s: reading.before_answers(policy.reader, p, s, None))
    program = read.lower(trained["model"], rows).as_text()
    time, size = rows.tokens.shape[1], policy.model.cfg.d_model
    assert f"tensor<12x{time - len(tiny_samples.PREFIX)}x{size}xf32>" in program
    assert f"tensor<12x{time}x{size}xf32>" not in program
