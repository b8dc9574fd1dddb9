"""Intervals and ratings compared with known values and their coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from marl_jax.evaluation import intervals

pytestmark = pytest.mark.quick


def test_wilson_by_hand():
    # 8 of 10 at z = 1.96: centre (0.8 + 0.19207) / 1.38415, half 1.96 sqrt(0.016 + 0.009604) / 1.38415
    value, low, high = intervals.wilson(8, 10)
    assert value == 0.8
    assert (low, high) == pytest.approx((0.49016, 0.94332), abs=1e-4)
    assert intervals.wilson(0, 20).low == 0.0 and intervals.wilson(20, 20).high == 1.0


def test_repeats_do_not_narrow_an_interval():
    assert intervals.wilson(400, 512, distinct=128) == intervals.wilson(100, 128)
    values = np.repeat(np.random.default_rng(0).normal(size=64), 8)
    few, many = intervals.bootstrap(values[::8]), intervals.bootstrap(values, distinct=64)
    assert many == pytest.approx(few) and few.value == pytest.approx(intervals.bootstrap(values).value)
    for wrong in (0, 513):
        with pytest.raises(ValueError, match=f"distinct is {wrong}, but must be from 1 to the number of values .512"):
            intervals.wilson(1, 512, distinct=wrong)


@given(st.integers(1, 500), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_contains_the_rate_and_stays_in_range(n, share, confidence):
    value, low, high = intervals.wilson(round(share * n), n, confidence)
    assert 0 <= low <= value <= high <= 1
    assert high - low > 0


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(0)
    draws = rng.exponential(size=(300, 40)).round(1)
    for interval in (intervals.normal, lambda row: intervals.bootstrap(row, resamples=300)):
        covered = np.mean([low <= 1.0 <= high for _, low, high in map(interval, draws)])
        assert 0.87 < covered < 0.98


def test_normal_by_hand():
    value, low, high = intervals.normal([1.0, 2.0, 3.0, 4.0])
    assert (value, high - value, value - low) == pytest.approx((2.5, 1.26518, 1.26518), abs=1e-4)


def test_bootstrap_of_equal_values_is_a_point():
    assert intervals.bootstrap([2.0] * 5) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: intervals.wilson(3, 2),
        lambda: intervals.wilson(0, 0),
        lambda: intervals.normal([]),
        lambda: intervals.wilson(1, 2, 1.0),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(ValueError):
        call()


def test_elo_finds_the_gaps_it_was_made_from():
    true = np.array([900.0, 1000.0, 1100.0])
    expected = 1 / (1 + 10 ** ((true[None, :] - true[:, None]) / 400))
    games = 1e6 * (1 - np.eye(3))
    np.testing.assert_allclose(intervals.elo(games * expected, games), true, atol=0.1)


def test_elo_stays_finite_for_one_who_never_lost():
    ratings = intervals.elo([[0, 10], [0, 0]], [[0, 10], [10, 0]])
    assert np.isfinite(ratings).all() and ratings[0] > ratings[1] + 300
    np.testing.assert_allclose(ratings.mean(), 1000)


def test_elo_refuses_points_that_do_not_add_up():
    with pytest.raises(ValueError, match="must equal games"):
        intervals.elo([[0, 7], [1, 0]], [[0, 10], [10, 0]])


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_student_is_the_interval_of_scipy(confidence):
    for n in (2, 3, 4, 5, 10, 31):
        values = np.sin(np.arange(n)) + n
        mean = intervals.student(values, confidence)
        ends = stats.t.interval(confidence, n - 1, loc=values.mean(), scale=stats.sem(values))
        np.testing.assert_allclose((mean.low, mean.high), ends, rtol=1e-12)
    assert intervals.student([3.0]) == (3.0, 3.0, 3.0)


def test_elo_intervals_cover_the_gap_at_their_level():
    """The gap of two players who share points 3 to 1 is 400 log10(3); most of 40 intervals (95 %) contain it."""
    rng, games = np.random.default_rng(0), np.array([[0, 200], [200, 0]])
    true, covered, widths = 400 * np.log10(3), 0, []
    for _ in range(40):
        won = rng.binomial(200, 0.75) / 200
        first, second = intervals.elo_intervals([[0.5, won], [1 - won, 0.5]], np.zeros((2, 2)), games)
        assert first.low < first.value < first.high and first.value + second.value == pytest.approx(2000)
        covered += first.low - 1000 <= true / 2 <= first.high - 1000
        widths.append(first.high - first.low)
    assert 34 <= covered <= 40
    few = intervals.elo_intervals([[0.5, 0.75], [0.25, 0.5]], np.zeros((2, 2)), games // 10)[0]
    assert few.high - few.low > 2 * np.mean(widths)


def test_draws_make_elo_intervals_narrower():
    games, even = np.array([[0, 100], [100, 0]]), np.full((2, 2), 0.5)
    wide, narrow = (intervals.elo_intervals(even, np.full((2, 2), share), games)[0] for share in (0.0, 0.9))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
