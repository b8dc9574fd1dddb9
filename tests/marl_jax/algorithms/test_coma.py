"""COMA and MADDPG: their gradients over all joint actions equal the exact one."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from configs import algorithms, published
from marl_jax.agents import critics
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import coma, maddpg, settings_from
from marl_jax.learning.update import Scheduled
from tests.marl_jax.tiny_samples import by_hand

A = 3
JOINT = np.array(list(itertools.product(range(A), repeat=2)))  # [9, 2]
LOGITS = np.asarray(jax.random.normal(jax.random.key(0), (2, A)))
Q = 3 * np.asarray(jax.random.normal(jax.random.key(1), (A, A)))


def probabilities(logits):
    """Return the probability of every joint action, [9]."""
    first, second = jax.nn.softmax(logits, axis=-1)
    return first[JOINT[:, 0]] * second[JOINT[:, 1]]


def expected_return(logits):
    return jnp.sum(probabilities(logits) * Q[JOINT[:, 0], JOINT[:, 1]])


EXACT = jax.device_get(jax.jit(jax.grad(expected_return))(LOGITS))


def seen_by(seat):
    """Return the values of the seat's actions given the other's action, [9, 1, A], and its own actions [9, 1]."""
    given = Q[:, JOINT[:, 1]].T if seat == 0 else Q[JOINT[:, 0]]
    return given[:, None], JOINT[:, seat : seat + 1]


@pytest.mark.parametrize("seat", [0, 1])
def test_comas_expected_gradient_is_exact(seat):
    values, actions = seen_by(seat)
    samples = types.SimpleNamespace(action=actions)
    own = log_softmax(LOGITS[seat])

    def surrogate(logits):
        advantage = coma.counterfactual(values, jnp.broadcast_to(own, values.shape), samples)[:, 0]
        return jnp.sum(probabilities(LOGITS) * jax.nn.log_softmax(logits)[JOINT[:, seat]] * advantage)

    np.testing.assert_allclose(jax.jit(jax.grad(surrogate))(LOGITS[seat]), EXACT[seat], atol=1e-6)
    # Over the own action, the policy's average advantage is 0, whatever the other does.
    every = types.SimpleNamespace(action=np.broadcast_to(np.arange(A), (9, A)))
    each = jax.jit(lambda x: coma.counterfactual(x, jnp.broadcast_to(own, (9, A, A)), every))(values.repeat(A, axis=1))
    np.testing.assert_allclose(each @ np.exp(own), 0.0, atol=1e-6)


def maddpg_loss(logits, seat, algo, step=0):
    """Return the loss of all joint actions, weighted by their probability."""
    values, actions = seen_by(seat)
    logps = jnp.broadcast_to(jax.nn.log_softmax(logits), values.shape)
    samples = by_hand(np.zeros((9, 1)), action=actions, loss_weights=probabilities(LOGITS)[:, None])
    scores = Scores(*np.zeros((3, 9, 1), np.float32), None, logps, values)
    objective = maddpg.ThroughCritic()
    weighed = objective.loss_weights_for(samples, algo)
    return objective.loss(samples, weighed, scores, algo, Scheduled(algo.entropy_coef, step))[0]


@pytest.mark.parametrize("seat", [0, 1])
def test_maddpgs_gradient_is_exact(seat):
    algo = settings_from(algorithms.maddpg(entropy_coef=0.0))
    gradient = jax.jit(jax.grad(maddpg_loss), static_argnums=(1, 2))(LOGITS[seat], seat, algo)
    np.testing.assert_allclose(gradient, -EXACT[seat], atol=1e-6)


def test_the_published_gradient_is_that_of_the_relaxation_and_biased():
    algo = settings_from(published.maddpg(gumbel_temperature=0.7))
    grads = jax.jit(jax.vmap(jax.grad(maddpg_loss), (None, None, None, 0)), static_argnums=(1, 2))(
        LOGITS[0], 0, algo, np.arange(2000)
    )
    noise = np.std(grads, axis=0) / np.sqrt(2000)
    assert np.max(np.abs(np.mean(grads, axis=0) + EXACT[0]) / noise) > 5
    logps, key = log_softmax(LOGITS[0]), jax.random.key(3)
    noisy = logps + np.asarray(jax.random.gumbel(key, (A,)))
    soft = softmax(noisy / 0.7)

    def valued(logps):
        hard = maddpg.straight_through(logps, key, 0.7)
        return hard @ Q[0], hard

    found, hard = jax.jit(jax.grad(valued, has_aux=True))(logps)
    np.testing.assert_allclose(hard, np.arange(A) == np.argmax(noisy), atol=1e-6)
    np.testing.assert_allclose(found, soft * (Q[0] - soft @ Q[0]) / 0.7, atol=1e-5)


def test_illegal_actions_have_no_gradient():
    logps = np.log(np.array([0.0, 0.25, 0.75], np.float32), where=[False, True, True], out=np.full(3, -np.inf, "f4"))

    def valued(logps, key):
        taken = maddpg.straight_through(logps, key, 1.0)
        return taken @ np.arange(3.0), taken

    keys = jax.random.split(jax.random.key(0), 20)
    grads, taken = jax.device_get(jax.jit(jax.vmap(jax.grad(valued, has_aux=True), (None, 0)))(logps, keys))
    assert not taken[:, 0].any()
    assert np.isfinite(grads).all() and not grads[:, 0].any()


def test_the_critic_reads_the_others_actions_after_the_views():
    names, lengths = jnp.array([[7, 0], [8, 9]]), jnp.array([1, 2])
    views = jnp.array([[1, 2, 3, 0, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0]]), jnp.array([3, 2])
    tokens, n = critics.with_actions(views, names, lengths, jnp.array([[1, 0], [0, 1]]))
    assert tokens.tolist() == [[1, 2, 3, 8, 9, 7, 0], [1, 2, 7, 8, 9, 0, 0]] and n.tolist() == [6, 5]
