"""Preference losses: hand-computed values, published formulas, equilibria, and pairs in rows."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.learning import preferences
from marl_jax.learning.preferences import Sides, join_pairs
from tests.marl_jax import tiny_samples

pytestmark = pytest.mark.quick

RPS = jnp.array([[0.5, 0.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]])
"""Probability that the row beats the column: rock, paper, scissors."""


def both_sides(loss, a, b, p=1.0):
    """The loss of a pair with the log-ratios a and b, the first of which is preferred with probability p."""
    return loss(a, b, p) + loss(b, a, 1.0 - p)


# ------------------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("loss", "value", "gradient"),
    [
        # -log σ(0.1 · 3) and ∓0.1 σ(-0.3)
        (lambda a, b, p: preferences.dpo_loss(a, b, p, 0.1), 0.554355, (-0.0425557, 0.0425557)),
        # 0.9 of the above and 0.1 of -log σ(-0.3) = 0.854355
        (lambda a, b, p: preferences.dpo_loss(a, b, p, 0.1, 0.1), 0.584355, (-0.0325557, 0.0325557)),
        # (3 - 5)² and ∓2 · (3 - 5)
        (lambda a, b, p: preferences.ipo_loss(a, b, p, 0.1), 4.0, (-4.0, 4.0)),
        # (2 - 5)² + (-1 + 5)², with the gradients 2 · (2 - 5) and 2 · (-1 + 5)
        (lambda a, b, p: preferences.sppo_loss(a, p, 0.1), 25.0, (-6.0, 8.0)),
    ],
    ids=["dpo", "conservative dpo", "ipo", "sppo"],
)
def test_losses_and_gradients_of_the_log_ratios_2_and_minus_1(loss, value, gradient):
    result, grads = jax.value_and_grad(lambda a, b: both_sides(loss, a, b), (0, 1))(2.0, -1.0)
    np.testing.assert_allclose(result, value, rtol=1e-5)
    np.testing.assert_allclose(grads, gradient, rtol=1e-5)


def test_nash_md_value_and_gradient():
    """-(-3) · (½ - 0.1 · 2) with the gradient -(½ - 0.1 · 2); the log-ratio is a constant."""
    loss = lambda logp: preferences.nash_md_loss(logp, logp + 5.0, 0.5, 0.1)  # noqa: E731
    value, grad = jax.value_and_grad(loss)(-3.0)
    np.testing.assert_allclose((value, grad), (0.9, -0.3), rtol=1e-5)


def test_losses_equal_the_published_formulas():
    """The formulas as TRL states them, in NumPy, for random pairs and one-token completions."""
    rng = np.random.default_rng(0)
    w, x, ref_w, ref_x, p = rng.normal(size=(5, 100)).astype(np.float32)
    p, beta, chosen, rejected = 1 / (1 + np.exp(-p)), 0.3, w - ref_w, x - ref_x
    log_sigmoid = lambda x: -np.log1p(np.exp(-x))  # noqa: E731
    cases = {
        "dpo": (
            both_sides(lambda a, b, q: preferences.dpo_loss(a, b, q, beta, 0.2), chosen, rejected),
            -log_sigmoid(beta * (chosen - rejected)) * 0.8 - log_sigmoid(-beta * (chosen - rejected)) * 0.2,
        ),
        "ipo": (
            both_sides(lambda a, b, q: preferences.ipo_loss(a, b, q, beta), chosen, rejected),
            (chosen - rejected - 1 / (2 * beta)) ** 2,
        ),
        "sppo_hard": (
            both_sides(lambda a, b, q: preferences.sppo_loss(a, q, beta), chosen, rejected),
            (chosen - 0.5 / beta) ** 2 + (rejected + 0.5 / beta) ** 2,
        ),
        "nash_md": (
            preferences.nash_md_loss(w, w - ref_w, p - 0.5, beta),
            beta * (w - ref_w) * w - (p - 0.5) * w,
        ),
    }
    for name, (ours, published) in cases.items():
        np.testing.assert_allclose(ours, published, rtol=2e-5, atol=1e-6, err_msg=name)


def test_a_tie_pulls_the_sides_together_and_equal_ratios_lose_ln_2():
    tie = lambda a, b: both_sides(lambda x, y, p: preferences.dpo_loss(x, y, p, 1.0), a, b, 0.5)  # noqa: E731
    np.testing.assert_allclose(tie(0.3, 0.3), math.log(2), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(tie)(0.3, 0.3), 0.0, atol=1e-7)
    assert jax.grad(tie)(1.0, 0.0) > 0


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("hard", [1.0, 0.0, 0.5]), ("difference", [0.75, 0.25, 0.5]), ("bradley_terry", [0.622459, 0.377541, 0.5])],
)
def test_win_probabilities(labels, expected):
    own, other = jnp.array([0.75, 0.25, 0.4]), jnp.array([0.25, 0.75, 0.4])
    p = preferences.win_probability(own, other, labels)
    np.testing.assert_allclose(p, expected, rtol=1e-5)
    np.testing.assert_allclose(p + preferences.win_probability(other, own, labels), 1.0, rtol=1e-6)


def test_unknown_labels_are_an_error():
    with pytest.raises(ValueError, match="labels is 'soft', but must be one of: hard, difference, bradley_terry"):
        preferences.win_probability(jnp.ones(1), jnp.ones(1), "soft")


# --------------------------------------------------------------------------------------------------------- equilibria


def expected_over_pairs(term, policy):
    """The expectation of a term of (own, other) over all pairs that the policy samples."""
    return sum(
        jax.lax.stop_gradient(policy[i] * policy[j]) * term(i, j) for i, j in itertools.product(range(3), repeat=2)
    )


def test_the_average_policy_of_sppo_is_the_mixed_equilibrium():
    """SPPO is multiplicative weights: its iterates circle around the equilibrium, and their mean converges to it."""

    def iterate(logits, _):
        before = jax.nn.log_softmax(logits)

        def loss(new):
            ratio = jax.nn.log_softmax(new) - before
            return expected_over_pairs(lambda i, j: preferences.sppo_loss(ratio[i], RPS[i, j], 10.0), jnp.exp(before))

        for _ in range(5):
            logits -= 1.0 * jax.grad(loss)(logits)
        return logits, jnp.exp(before)

    start = jnp.array([1.0, 0.0, -0.5])
    _, policies = jax.jit(lambda x: jax.lax.scan(iterate, x, length=3000))(start)
    np.testing.assert_allclose(jnp.mean(policies, axis=0), 1 / 3, atol=0.03)
    assert np.abs(np.asarray(policies[0]) - 1 / 3).max() > 0.2


def nash_md_policies(start, mixture, beta, steps=3000, rate=1.0):
    """Policies of Nash-MD with expected gradients; the reference is the start."""
    reference = jax.nn.log_softmax(start)

    def step(logits, _):
        old = jax.nn.log_softmax(logits)
        weights = preferences.mixture_weights(old - reference, jnp.ones(3, bool), mixture)
        weights = weights / jnp.sum(jnp.exp(old) * weights)

        def loss(new):
            logps = jax.nn.log_softmax(new)
            term = lambda i, j: preferences.nash_md_loss(  # noqa: E731
                logps[i], logps[i] - reference[i], weights[j] * (RPS[i, j] - 0.5), beta
            )
            return expected_over_pairs(term, jnp.exp(old))

        return logits - rate * jax.grad(loss)(logits), jnp.exp(old)

    return jax.jit(lambda x: jax.lax.scan(step, x, length=steps)[1])(start)


def test_the_last_policy_of_nash_md_is_the_mixed_equilibrium():
    """With little regularization its last iterate is near the equilibrium, where plain self-play circles."""
    start = jnp.array([1.0, 0.0, -0.5])
    policies = nash_md_policies(start, mixture=0.05, beta=0.02)
    assert np.abs(np.asarray(policies[0]) - 1 / 3).max() > 0.2
    np.testing.assert_allclose(policies[-1], 1 / 3, atol=0.03)
    np.testing.assert_allclose(policies[-1], policies[-500], atol=2e-3)


def test_nash_md_solves_the_regularized_game():
    """At a fixed point without a mixture, log π/π_ref differs between actions by their win rates over β."""
    start, beta = jnp.array([1.0, 0.0, -0.5]), 0.2
    policy = nash_md_policies(start, mixture=0.0, beta=beta)[-1]
    gap = beta * (jnp.log(policy) - jax.nn.log_softmax(start)) - RPS @ policy
    np.testing.assert_allclose(gap, gap[0], atol=1e-3)


def test_mixture_weights_turn_samples_of_the_policy_into_those_of_the_mixture():
    policy, reference = jnp.array([0.7, 0.2, 0.1]), jnp.array([0.2, 0.3, 0.5])
    mixture = policy**0.6 * reference**0.4
    weights = preferences.mixture_weights(jnp.log(policy / reference), jnp.ones(3, bool), 0.4)
    np.testing.assert_allclose(policy * weights / jnp.sum(policy * weights), mixture / jnp.sum(mixture), rtol=1e-5)
    np.testing.assert_allclose(jnp.mean(weights), 1.0, rtol=1e-6)


# --------------------------------------------------------------------------------------------------------------- rows


def episodes(groups, members, **fields):
    """One row per episode, with one completion of two tokens each."""
    n = len(groups)
    completion_of = np.zeros((n, 2), np.int32)
    given = dict(
        group=np.array(groups, np.int32)[:, None], member=np.array(members, np.int32)[:, None],
        tokens=np.arange(3 * n, dtype=np.int32).reshape(n, 3), positions=np.tile(np.arange(3, dtype=np.int32), (n, 1)),
        lengths=np.full(n, 2, np.int32), logits_index=np.tile(np.arange(2, dtype=np.int32), (n, 1)),
        loss_weights=np.ones((n, 1), np.float32), n_groups=int(max(groups)) + 1, group_size=2,
    )  # fmt: skip
    return jax.tree.map(jnp.asarray, tiny_samples.by_hand(completion_of, **{**given, **fields}))


def summed(samples, x):
    """Return the first completions of the sides, and sums of x over the own and the other side."""

    @jax.jit
    def both(samples, x):
        sides = Sides.of(samples)
        return sides.first, *sides.sums(x)

    return jax.device_get(both(samples, x))


def test_joined_rows_hold_both_episodes_of_a_pair():
    joined = jax.device_get(jax.jit(join_pairs)(episodes([1, 0, 0, 1], [1, 0, 1, 0])))
    assert joined.n == 2
    np.testing.assert_array_equal(joined.tokens, [[3, 4, 5, 6, 7, 8], [9, 10, 11, 0, 1, 2]])
    np.testing.assert_array_equal(joined.segment[0], [0, 0, -1, 1, 1, -1])
    np.testing.assert_array_equal(joined.positions[0], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(joined.completion_of[0], [0, 0, 1, 1])
    np.testing.assert_array_equal(joined.logits_index[0], [0, 1, 3, 4])
    np.testing.assert_array_equal(joined.member, [[0, 1], [0, 1]])
    first, own, other = summed(joined, np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    np.testing.assert_array_equal(first, True)
    np.testing.assert_array_equal(own, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(other, [[2, 1], [4, 3]])


def test_an_episode_without_its_partner_is_not_learned_from():
    """Group 0 lost an episode, group 2 has one by another policy; only group 1 is a pair."""
    samples = episodes([0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 0], policy=np.array([0, 0, 0, 0, 1, -1], np.int32))
    lengths = np.array(samples.completion_lengths)
    lengths[5] = 0
    joined = jax.device_get(jax.jit(join_pairs)(samples.replace(completion_lengths=lengths)))
    np.testing.assert_array_equal(joined.loss_weights, [[1, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(joined.tokens[0], [3, 4, 5, 6, 7, 8])


def test_an_odd_number_of_rows_is_an_error():
    with pytest.raises(ValueError, match="there are 3 rows, but pairs need an even number"):
        join_pairs(episodes([0, 0, 1], [0, 1, 0]))


def test_the_turns_of_an_episode_are_one_side():
    """Two turns of each of two episodes in a row, and a third group of one completion."""
    samples = tiny_samples.by_hand(
        [[0, 1, 2, 3, 4]], group=np.array([[0, 0, 0, 0, 1]], np.int32), member=np.array([[0, 0, 1, 1, 0]], np.int32)
    )
    first, own, other = summed(samples, np.array([[1.0, 2.0, 4.0, 8.0, 16.0]], np.float32))
    np.testing.assert_array_equal(first, [[True, False, True, False, False]])
    np.testing.assert_array_equal(own[0, :4], [3, 3, 12, 12])
    np.testing.assert_array_equal(other[0, :4], [12, 12, 3, 3])
