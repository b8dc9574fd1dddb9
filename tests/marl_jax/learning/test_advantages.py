"""Advantages, against hand-computed numbers and a plain Python walk over every (game, seat) stream."""

import jax
import numpy as np
import pytest

from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import ppo
from marl_jax.learning import advantages
from tests.marl_jax import tiny_play
from tests.marl_jax.tiny_engine import quick_jit
from tests.marl_jax.tiny_samples import by_hand

pytestmark = pytest.mark.quick


gae = jax.jit(advantages.gae, static_argnames="tail")


def streams(rewards, values, players, ends, gamma, lam, tail):
    """Compute the expected result of `gae` by following one seat of one game at a time.

    Args:
        rewards: [R, B, P].
        values: [R, B], like players and ends.

    Returns:
        Advantages and known, both [R, B].
    """
    turns, batch, seats = rewards.shape
    result, known = np.zeros((turns, batch)), np.zeros((turns, batch), bool)
    for b in range(batch):
        first = 0
        while first < turns:
            last = next((t for t in range(first, turns) if ends[t, b]), None)
            stop = turns if last is None else last + 1
            for seat in range(seats):
                own = [t for t in range(first, stop) if players[t, b] == seat]
                following = 0.0
                for i in reversed(range(len(own))):
                    t = own[i]
                    is_last = i + 1 == len(own)
                    until = stop if is_last else own[i + 1]
                    paid = sum(rewards[u, b, seat] for u in range(t, until))
                    if is_last and last is None:
                        following = 0.0  # the outcome of this turn is unknown
                        continue
                    next_value = 0.0 if is_last else values[own[i + 1], b]
                    if t >= turns - tail:
                        following = 0.0
                        continue
                    delta = paid + gamma * next_value - values[t, b]
                    following = result[t, b] = delta + gamma * lam * (0.0 if is_last else following)
                    known[t, b] = True
            first = stop
    return result, known


def random_play(rng, turns, batch, seats):
    rewards = rng.normal(size=(turns, batch, seats)).astype(np.float32)
    values = rng.normal(size=(turns, batch)).astype(np.float32)
    players = rng.integers(seats, size=(turns, batch)).astype(np.int32)
    ends = rng.random((turns, batch)) < 0.2
    return rewards, values, players, ends


@pytest.mark.parametrize("seats", [1, 2, 3])
@pytest.mark.parametrize("tail", [0, 1, 3])
def test_gae_equals_walking_the_streams(seats, tail):
    play = random_play(np.random.default_rng(10 * seats + tail), turns=14, batch=9, seats=seats)
    expected, known = streams(*play, gamma=0.9, lam=0.8, tail=tail)
    credit = gae(*play, 0.9, 0.8, tail=tail)
    np.testing.assert_array_equal(credit.known, known)
    assert known.sum() > 20 and not known.all()
    np.testing.assert_allclose(credit.advantages, expected, atol=1e-5)
    np.testing.assert_allclose(credit.returns, expected + play[1], atol=1e-5)


def alternating(values, rewards, ends, **kwargs):
    """Build one game row of two players with alternating moves."""
    turns = len(values)
    credit = gae(
        rewards=np.asarray(rewards, np.float32).reshape(turns, 1, 2),
        values=np.asarray(values, np.float32).reshape(turns, 1),
        players=(np.arange(turns) % 2)[:, None],
        ends=np.asarray(ends, bool)[:, None],
        **kwargs,
    )
    return jax.device_get(credit)


def test_by_hand():
    # Player 0 moves at 0 and 2, player 1 at 1 and 3; player 1 wins with its second move. gamma 0.5, lambda 0.5.
    credit = alternating(
        values=[0.2, 0.4, 0.6, 0.8], rewards=[[0, 0], [0, 0], [0, 0], [-1, 1]], ends=[0, 0, 0, 1], gamma=0.5, lam=0.5
    )
    a3 = 1 - 0.8
    a2 = -1 - 0.6
    a1 = 0.5 * 0.8 - 0.4 + 0.25 * a3
    a0 = 0.5 * 0.6 - 0.2 + 0.25 * a2
    np.testing.assert_allclose(credit.advantages[:, 0], [a0, a1, a2, a3], atol=1e-6)
    np.testing.assert_allclose(credit.returns[:, 0], [a0 + 0.2, a1 + 0.4, -1, 1], atol=1e-6)


def test_the_loser_hears_of_the_loss():
    # Player 1 makes the winning move; the loss belongs to the move of player 0 before it.
    credit = alternating(values=[0.0, 0.0], rewards=[[0, 0], [-1, 1]], ends=[0, 1], gamma=1.0, lam=1.0)
    np.testing.assert_allclose(credit.advantages[:, 0], [-1, 1])


def test_a_reward_between_two_own_turns_belongs_to_the_first():
    # A partner's reward at turn 1 is credited to player 0's turn 0, not to its turn 2.
    credit = alternating(
        values=[0.0, 0.0, 0.0, 0.0], rewards=[[0, 0], [1, 1], [0, 0], [0, 0]], ends=[0, 0, 0, 1], gamma=1.0, lam=0.0
    )
    np.testing.assert_allclose(credit.advantages[:, 0], [1, 1, 0, 0])


def test_nothing_crosses_the_end_of_a_game():
    rewards = [[0, 0], [0, 0], [5, 5], [0, 0]]
    credit = alternating(values=[0.0] * 4, rewards=rewards, ends=[0, 1, 0, 1], gamma=1.0, lam=1.0)
    np.testing.assert_allclose(credit.advantages[:, 0], [0, 0, 5, 0])


def test_open_streams_are_left_out_and_still_serve_as_bootstrap():
    credit = alternating(values=[0.1, 0.2, 0.3, 0.4], rewards=[[0, 0]] * 4, ends=[0] * 4, gamma=1.0, lam=0.5)
    np.testing.assert_array_equal(credit.known[:, 0], [True, True, False, False])
    np.testing.assert_allclose(credit.advantages[:, 0], [0.2, 0.2, 0, 0], atol=1e-6)


def test_a_tail_of_one_turn_per_player_closes_every_stream():
    credit = alternating(values=[0.1, 0.2, 0.3, 0.4], rewards=[[0, 0]] * 4, ends=[0] * 4, gamma=1.0, lam=0.5, tail=2)
    np.testing.assert_array_equal(credit.known[:, 0], [True, True, False, False])
    # The game may end in the lookahead, whose reward then completes the return.
    rewards = [[0, 0], [0, 0], [1, -1], [1, -1]]
    credit = alternating(values=[0.1, 0.2, 0.3, 0.4], rewards=rewards, ends=[0, 0, 1, 0], gamma=1.0, lam=1.0, tail=2)
    np.testing.assert_array_equal(credit.known[:, 0], [True, True, False, False])
    np.testing.assert_allclose(credit.advantages[:, 0], [0.3 - 0.1, -1 - 0.2, 0, 0], atol=1e-6)


whiten = jax.jit(advantages.whiten, static_argnames="n_labels")


def test_whitening_is_per_agent_and_ignores_rows_that_do_not_count():
    values = np.array([1.0, 3.0, 10.0, 30.0, 1000.0], np.float32)
    agents = np.array([0, 0, 1, 1, 1])
    weights = np.array([1.0, 1.0, 1.0, 1.0, 0.0], np.float32)
    white = np.asarray(whiten(values, agents, weights, n_labels=2))
    np.testing.assert_allclose(white[:4], [-1, 1, -1, 1], atol=1e-5)
    assert float(white[4]) == pytest.approx((1000 - 20) / 10, rel=1e-4)


def test_whitening_tokens_counts_tokens():
    values = np.array([[2.0, 0.0], [4.0, 6.0]], np.float32)
    mask = np.array([[1.0, 0.0], [1.0, 1.0]], np.float32)
    white = np.asarray(whiten(values, np.zeros((2, 2), np.int32), mask, n_labels=1))
    deviation = np.std([2, 4, 6])
    np.testing.assert_allclose(white[mask > 0], (np.array([2, 4, 6]) - 4) / deviation, atol=1e-5)


def test_gae_over_tokens_by_hand():
    # Completions of two tokens and of one; the return of the turn exceeds its value by 1.0.
    last = 1.5 - 0.7

    @jax.jit
    def credit_tokens(samples, credit):
        first = samples.at_first(samples.values)
        return *advantages.token_gae(samples, credit, first, gamma=1.0, lam=0.5), samples.mask()

    for completion_of, values, credit, expected in (
        ([[0, 0, -1], [0, -1, -1]], [[0.5, 0.7, 9.0], [0.2, 9.0, 9.0]], [[1.0], [-0.2]],
         [[0.7 - 0.5 + 0.5 * last, last, 0], [-0.2, 0, 0]]),
        # The same in one row, next to each other, and with a gap.
        ([[0, 0, 1]], [[0.5, 0.7, 0.2]], [[1.0, -0.2]], [[0.7 - 0.5 + 0.5 * last, last, -0.2]]),
        ([[1, -1, 0, 0]], [[0.2, 9.0, 0.5, 0.7]], [[1.0, -0.2]], [[-0.2, 0, 0.7 - 0.5 + 0.5 * last, last]]),
    ):  # fmt: skip
        samples = by_hand(completion_of, values=np.array(values, np.float32))
        result, returns, mask = jax.device_get(credit_tokens(samples, np.array(credit, np.float32)))
        np.testing.assert_allclose(result, expected, atol=1e-6)
        np.testing.assert_allclose(returns, (result + np.array(values)) * mask, atol=1e-6)


# Rows with several completions

SEATS, TURNS, GAMES, LOOKAHEAD = 2, 9, 4, 2


def turn_by_turn(rng):
    """Return the same play as one row per turn and as one row per seat and game, with row indices [R, B]."""
    rewards, values, players, ends = random_play(rng, TURNS, GAMES, SEATS)
    lengths = rng.integers(1, 4, players.shape)
    inside = np.arange(3) < lengths[..., None]  # [R, B, W]
    values = values[..., None] + np.arange(3) * 0.1  # before each token
    weights = (rng.random(players.shape) < 0.8) * (np.arange(TURNS) < TURNS - LOOKAHEAD)[:, None]
    given = dict(n_seats=SEATS, lookahead=LOOKAHEAD)

    def flat(x, dtype=np.float32):
        return np.asarray(x, dtype).reshape(TURNS * GAMES, -1)

    turns = by_hand(
        flat(np.where(inside, 0, -1), np.int32), completion_at=np.arange(TURNS * GAMES).reshape(TURNS, GAMES),
        seat=flat(players, np.int32), ends=flat(ends, bool), values=flat(values * inside), loss_weights=flat(weights),
        rewards=flat(rewards)[:, None], **given,
    )  # fmt: skip

    n = GAMES * SEATS
    completion_of, token_values = np.full((n, TURNS * 3), -1), np.zeros((n, TURNS * 3), np.float32)
    seat, over, counts = np.zeros((n, TURNS), np.int32), np.zeros((n, TURNS), bool), np.zeros((n, TURNS), np.float32)
    paid, completion_at = np.zeros((n, TURNS, SEATS), np.float32), np.zeros((TURNS, GAMES), np.int32)
    said, tokens, places = np.zeros(n, int), np.zeros(n, int), {}
    for t in range(TURNS):
        for b in range(GAMES):
            row = b * SEATS + players[t, b]
            s, x, size = said[row], tokens[row], lengths[t, b]
            completion_of[row, x : x + size], token_values[row, x : x + size] = s, values[t, b, :size]
            seat[row, s], over[row, s], counts[row, s] = players[t, b], ends[t, b], weights[t, b]
            paid[row, s], completion_at[t, b] = rewards[t, b], row * TURNS + s
            places[t, b] = row, slice(x, x + size)
            said[row], tokens[row] = s + 1, x + size
    rows = by_hand(
        completion_of,
        n_completions=TURNS,
        completion_at=completion_at,
        seat=seat,
        ends=over,
        values=token_values,
        loss_weights=counts,
        rewards=paid,
        **given,
    )
    return turns, rows, places


@pytest.mark.parametrize("settings", [dict(), dict(gae="token"), dict(gamma=0.9, lam=0.5, whiten="none")])
def test_rows_of_several_answers_get_what_turns_get(settings, monkeypatch):
    given = lambda policy, weights, samples, packed: Scores(samples.logps, samples.logps, samples.values)  # noqa: E731
    monkeypatch.setattr(ppo.scoring, "score", given)
    turns, rows, places = turn_by_turn(np.random.default_rng(3))
    policy, algo = tiny_play.policy(), tiny_play.ppo(**settings)
    compute_advantages = quick_jit(lambda samples: ppo.compute_advantages(policy, {}, samples, algo)[0])
    expected, found = jax.device_get((compute_advantages(turns), compute_advantages(rows)))
    assert expected.n == (TURNS - LOOKAHEAD) * GAMES and found.n == GAMES * SEATS
    assert np.sum(expected.loss_weights) == np.sum(found.loss_weights) > 10
    for (t, b), (row, place) in places.items():
        if t < TURNS - LOOKAHEAD:
            for name in ("advantages", "returns"):
                size = place.stop - place.start
                one, other = getattr(expected, name)[t * GAMES + b, :size], getattr(found, name)[row, place]
                np.testing.assert_allclose(other, one, atol=1e-5, err_msg=f"{name} of turn {t} of game {b}")
    np.testing.assert_array_equal(
        found.in_time(found.loss_weights)[: TURNS - LOOKAHEAD], expected.in_time(expected.loss_weights)
    )
    assert np.abs(found.advantages).max() > 0.5
    if algo.whiten == "none":
        rows = jax.device_get(rows)
        play = [np.asarray(rows.in_time(x)) for x in (rows.rewards, rows.at_first(rows.values), rows.seat, rows.ends)]
        oracle, _ = streams(*play, gamma=algo.gamma, lam=algo.lam, tail=LOOKAHEAD)
        np.testing.assert_allclose(found.in_time(found.at_first(found.advantages)), oracle, atol=1e-5)
