"""A policy that has learned its task keeps it, though few completions are informative by then."""

import functools

import jax
import jax.numpy as jnp
import pytest

from benchmarks import collapse
from benchmarks.collapse import GROUP_SIZE, OFF, SAFE_RATE, TOKENS

SEEDS = (1, 2)


@functools.cache
def curves(**algo) -> collapse.Curves:
    """Train at five times the safe rate.

    Of 40 seeds, all that reach 95 % fall below 0.08 without the remedies, 33 for good; with them none falls below 0.31.
    """
    return collapse.train(5 * SAFE_RATE, SEEDS, updates=100, **algo)


@pytest.mark.nightly
@pytest.mark.parametrize("row", range(len(SEEDS)), ids=SEEDS)
def test_training_collapses_without_the_remedies(row):
    success = curves(**OFF).success[row]
    assert collapse.updates_to_95(success) is not None
    assert collapse.after_95(success) < 0.1


@pytest.mark.nightly
@pytest.mark.parametrize("row", range(len(SEEDS)), ids=SEEDS)
def test_training_keeps_what_it_has_learned(row):
    found = curves()
    assert collapse.after_95(found.success[row]) >= 0.2
    assert found.success[row, -20:].mean() >= 0.9
    assert found.informative[row, -20:].mean() < 0.2, "few completions are informative by then"


@pytest.mark.nightly
def test_few_informative_completions_take_a_small_step():
    """The gradient of 8 informative completions equals that of 512, and Adam's steps are equal too."""
    learn = collapse.Learner(collapse.make_toy(jax.random.key(0)), jax.random.key(1), lr=0.1, updates=1, minibatches=1)
    logps = learn.logps(learn.states)
    group = jnp.argmax(logps, axis=1) + jnp.arange(GROUP_SIZE)[:, None] * (jnp.arange(TOKENS) == 0)
    rewards = (jnp.arange(GROUP_SIZE) == 0).astype(jnp.float32)  # the first token is wrong in all but one
    completions, full = jnp.tile(group % collapse.VOCABULARY, (64, 1)), jnp.tile(rewards, 64)
    few = jnp.where(jnp.arange(len(full)) < GROUP_SIZE, full, 1.0)

    @jax.jit
    def step(rewards):
        states, metrics = learn(learn.states, collapse.as_samples(completions, logps, rewards), jax.random.key(2))
        new, old = states["toy"].trained, learn.states["toy"].trained
        moved = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), new, old))
        return jnp.max(jnp.stack(moved)), metrics["informative_share"]

    (large, all_informative), (small, share) = step(full), step(few)
    assert (float(all_informative), float(share)) == (1, 8 / 512)
    assert 0 < small <= 0.18 * large
