"""Populations: equilibria of matrix games, mixtures, and PSRO with exact best responses."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.games import equilibria, exact, psro
from envs.games.registry import make


@pytest.fixture(scope="module")
def kuhn():
    return exact.build(make("kuhn"))


@pytest.mark.quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6))
@settings(deadline=None, max_examples=30)
def test_neither_player_gains_by_leaving_the_equilibrium(seed, rows, columns):
    payoffs = np.random.default_rng(seed).normal(size=(rows, columns))
    row, column, value = equilibria.solve_zero_sum(payoffs)
    assert row.sum() == pytest.approx(1) and column.sum() == pytest.approx(1) and min(row.min(), column.min()) >= 0
    assert (payoffs @ column).max() == pytest.approx(value, abs=1e-8) == (row @ payoffs).min()


@pytest.mark.quick
@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
@settings(deadline=None, max_examples=20)
def test_the_nash_average_is_an_equilibrium_that_copies_do_not_change(seed, n):
    payoffs = np.random.default_rng(seed).normal(size=(n, n))
    payoffs -= payoffs.T
    share, average = equilibria.nash_average(payoffs)
    assert average.max() == pytest.approx(0, abs=1e-6) and np.abs(average[share > 1e-4]).max() < 1e-6
    copied = [*range(n), int(np.argmax(share)), 0]
    np.testing.assert_allclose(equilibria.nash_average(payoffs[np.ix_(copied, copied)])[1][:n], average, atol=1e-5)


@pytest.mark.quick
def test_payoffs_that_are_not_antisymmetric_are_refused():
    with pytest.raises(ValueError, match="payoffs must be antisymmetric"):
        equilibria.nash_average(np.array([[0.0, 1.0], [0.5, 0.0]]))


def test_a_mixture_earns_the_mean_of_its_policies(kuhn):
    """Against any opponent: a policy drawn once per game, not once per move."""
    rng = np.random.default_rng(0)
    policies = rng.random((3, *kuhn.legal.shape)) ** 4 * kuhn.legal
    policies /= policies.sum(-1, keepdims=True)
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.0, 0.9]])
    mixed, other = exact.mixture(kuhn, policies, weights), policies[::-1][0]
    for seat in range(2):
        place = (lambda own: (own, other)) if seat == 0 else (lambda own: (other, own))
        single = [exact.expected_returns(kuhn, psro.seated(kuhn, *place(policy)))[seat] for policy in policies]
        value = exact.expected_returns(kuhn, psro.seated(kuhn, *place(mixed)))[seat]
        assert value == pytest.approx(weights[seat] @ single, abs=1e-12)
    averaged = np.einsum("k,kia->ia", weights[0], policies)
    assert np.abs(averaged - mixed)[kuhn.seat == 0].max() > 1e-3, "averaging by information set is something else"


def test_exact_responses_end_in_an_equilibrium_of_kuhn(kuhn):
    rounds = list(psro.psro(kuhn, functools.partial(psro.exact_response, kuhn), rounds=30))
    last = rounds[-1]
    assert last.nash_conv < 1e-9 and last.value == pytest.approx(-1 / 18, abs=1e-9) and len(rounds) < 30
    assert rounds[0].nash_conv == pytest.approx(2 * 0.458333, abs=1e-5)  # of the uniform policy
    assert all(abs(r.response_gap) < 1e-9 for r in rounds)
    for r in rounds:
        assert r.payoffs.shape == (len(r.policies),) * 2 and np.allclose(r.weights.sum(1), 1)
        assert exact.expected_returns(kuhn, r.mixture)[0] == pytest.approx(r.value, abs=1e-9)


def test_the_least_exploitable_mixture_never_rises_and_ends_in_an_equilibrium(kuhn):
    respond = functools.partial(psro.exact_response, kuhn)
    rounds = list(psro.psro(kuhn, respond, rounds=15, meta_solver="least_exploitable"))
    nash_convs = np.array([r.nash_conv for r in rounds])
    assert nash_convs[0] == pytest.approx(2 * 0.458333, abs=1e-5) and nash_convs[-1] < 1e-8
    assert np.diff(nash_convs).max() < 0, "every response to the adversary helps"
    assert rounds[-1].value == pytest.approx(-1 / 18, abs=1e-8)
    nash = list(psro.psro(kuhn, respond, rounds=4))
    assert nash_convs[3] < nash[3].nash_conv, "both have four policies"


def test_no_other_mixture_is_less_exploitable(kuhn):
    rng = np.random.default_rng(0)
    policies = rng.random((3, *kuhn.legal.shape)) ** 4 * kuhn.legal
    policies /= policies.sum(-1, keepdims=True)
    solved = psro.least_exploitable(kuhn, list(policies), 1e-6)
    for shares in [solved.shares, *rng.dirichlet(np.ones(3) / 2, 50)]:
        mixture = exact.mixture(kuhn, policies, np.stack([shares, shares]))
        assert exact.nash_conv(kuhn, mixture) >= solved.nash_conv - 1e-6
        assert psro._gain(kuhn, solved.adversary, mixture) >= solved.nash_conv - 1e-6  # whatever the shares


def test_a_weak_response_is_measured_against_the_exact_one(kuhn):
    first, second = psro.psro(kuhn, lambda mixture: mixture, rounds=2)
    assert second.response_gap == pytest.approx(first.nash_conv) and second.nash_conv == pytest.approx(first.nash_conv)


def test_games_that_are_not_zero_sum_are_refused(kuhn):
    unfair = exact.dataclasses.replace(kuhn, returns=kuhn.returns + 1)
    with pytest.raises(ValueError, match="kuhn is not a two-player zero-sum game"):
        next(psro.psro(unfair, lambda mixture: mixture, rounds=1))
