"""COMA and MADDPG: their gradients over all joint actions equal the exact one."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import algorithms, published
from marl_jax.agents import critics
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import coma, maddpg, settings_from
from marl_jax.learning.update import Scheduled
from tests.marl_jax.tiny_samples import by_hand

A = 3
JOINT = np.array(list(itertools.product(range(A), repeat=2)))  # [9, 2]
LOGITS = jax.random.normal(jax.random.key(0), (2, A))
Q = 3 * jax.random.normal(jax.random.key(1), (A, A))


def probabilities(logits):
    """Return the probability of every joint action, [9]."""
    first, second = jax.nn.softmax(logits, axis=-1)
    return first[JOINT[:, 0]] * second[JOINT[:, 1]]


def expected_return(logits):
    return jnp.sum(probabilities(logits) * Q[JOINT[:, 0], JOINT[:, 1]])


EXACT = jax.grad(expected_return)(LOGITS)


def seen_by(seat):
    """Return the values of the seat's actions given the other's action, [9, 1, A], and its own actions [9, 1]."""
    given = Q[:, JOINT[:, 1]].T if seat == 0 else Q[JOINT[:, 0]]
    return given[:, None], jnp.asarray(JOINT[:, seat : seat + 1])


@pytest.mark.parametrize("seat", [0, 1])
def test_comas_expected_gradient_is_exact(seat):
    values, actions = seen_by(seat)
    samples = types.SimpleNamespace(action=actions)
    own = jax.nn.log_softmax(LOGITS[seat])
    advantage = coma.counterfactual(values, jnp.broadcast_to(own, values.shape), samples)[:, 0]

    def surrogate(logits):
        return jnp.sum(probabilities(LOGITS) * jax.nn.log_softmax(logits)[JOINT[:, seat]] * advantage)

    np.testing.assert_allclose(jax.grad(surrogate)(LOGITS[seat]), EXACT[seat], atol=1e-6)
    # Over the own action, the policy's average advantage is 0, whatever the other does.
    every = types.SimpleNamespace(action=jnp.broadcast_to(jnp.arange(A), (9, A)))
    each = coma.counterfactual(jnp.repeat(values, A, axis=1), jnp.broadcast_to(own, (9, A, A)), every)
    np.testing.assert_allclose(each @ jnp.exp(own), 0.0, atol=1e-6)


def maddpg_loss(logits, seat, algo, step=0):
    """Return the loss of all joint actions, weighted by their probability."""
    values, actions = seen_by(seat)
    logps = jnp.broadcast_to(jax.nn.log_softmax(logits), values.shape)
    samples = by_hand(np.zeros((9, 1)), action=actions, loss_weights=probabilities(LOGITS)[:, None])
    scores = Scores(jnp.zeros((9, 1)), jnp.zeros((9, 1)), jnp.zeros((9, 1)), None, logps, values)
    objective = maddpg.ThroughCritic()
    weighed = objective.loss_weights_for(samples, algo)
    return objective.loss(samples, weighed, scores, algo, Scheduled(algo.entropy_coef, step))[0]


@pytest.mark.parametrize("seat", [0, 1])
def test_maddpgs_gradient_is_exact(seat):
    algo = settings_from(algorithms.maddpg(entropy_coef=0.0))
    np.testing.assert_allclose(jax.grad(maddpg_loss)(LOGITS[seat], seat, algo), -EXACT[seat], atol=1e-6)


def test_the_published_gradient_is_that_of_the_relaxation_and_biased():
    algo = settings_from(published.maddpg(gumbel_temperature=0.7))
    grads = jax.jit(jax.vmap(jax.grad(maddpg_loss), (None, None, None, 0)), static_argnums=(1, 2))(
        LOGITS[0], 0, algo, jnp.arange(2000)
    )
    noise = np.std(grads, axis=0) / np.sqrt(2000)
    assert np.max(np.abs(np.mean(grads, axis=0) + EXACT[0]) / noise) > 5
    logps, key = jax.nn.log_softmax(LOGITS[0]), jax.random.key(3)
    noisy = logps + jax.random.gumbel(key, (A,))
    soft = jax.nn.softmax(noisy / 0.7)
    hard = maddpg.straight_through(logps, key, 0.7)
    np.testing.assert_allclose(hard, jax.nn.one_hot(jnp.argmax(noisy), A), atol=1e-6)
    found = jax.grad(lambda x: maddpg.straight_through(x, key, 0.7) @ Q[0])(logps)
    np.testing.assert_allclose(found, soft * (Q[0] - soft @ Q[0]) / 0.7, atol=1e-5)


def test_illegal_actions_have_no_gradient():
    logps = jnp.array([-jnp.inf, jnp.log(0.25), jnp.log(0.75)])
    for key in jax.random.split(jax.random.key(0), 20):
        assert maddpg.straight_through(logps, key, 1.0)[0] == 0
    grad = jax.grad(lambda x: maddpg.straight_through(x, jax.random.key(0), 1.0) @ jnp.arange(3.0))(logps)
    assert np.isfinite(grad).all() and grad[0] == 0


def test_the_critic_reads_the_others_actions_after_the_views():
    names, lengths = jnp.array([[7, 0], [8, 9]]), jnp.array([1, 2])
    views = jnp.array([[1, 2, 3, 0, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0]]), jnp.array([3, 2])
    tokens, n = critics.with_actions(views, names, lengths, jnp.array([[1, 0], [0, 1]]))
    assert tokens.tolist() == [[1, 2, 3, 8, 9, 7, 0], [1, 2, 7, 8, 9, 0, 0]] and n.tolist() == [6, 5]
