"""Advantages: by hand, and against a reference that walks every (game, seat) stream in plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.learning import advantages


def streams(rewards, values, players, ends, gamma, lam, tail):
    """What `gae` should find, by following one seat of one game at a time.

    rewards [R, B, P], values, players, ends [R, B] -> advantages and known, [R, B]
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
                        following = 0.0  # nobody knows how this turn came out
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
    credit = advantages.gae(*map(jnp.asarray, play), 0.9, 0.8, tail=tail)
    np.testing.assert_array_equal(credit.known, known)
    assert known.sum() > 20 and not known.all()
    np.testing.assert_allclose(credit.advantages, expected, atol=1e-5)
    np.testing.assert_allclose(credit.returns, expected + play[1], atol=1e-5)


def alternating(values, rewards, ends, **kwargs):
    """One game row of two players who move in turns."""
    turns = len(values)
    return advantages.gae(
        rewards=jnp.asarray(rewards, jnp.float32).reshape(turns, 1, 2),
        values=jnp.asarray(values, jnp.float32).reshape(turns, 1),
        players=(jnp.arange(turns) % 2)[:, None],
        ends=jnp.asarray(ends, bool)[:, None],
        **kwargs,
    )


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
    # What a partner scores at turn 1 is credited to player 0's turn 0, not to its turn 2.
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
    # The game may end while looking ahead: then the reward is what was left to come.
    rewards = [[0, 0], [0, 0], [1, -1], [1, -1]]
    credit = alternating(values=[0.1, 0.2, 0.3, 0.4], rewards=rewards, ends=[0, 0, 1, 0], gamma=1.0, lam=1.0, tail=2)
    np.testing.assert_array_equal(credit.known[:, 0], [True, True, False, False])
    np.testing.assert_allclose(credit.advantages[:, 0], [0.3 - 0.1, -1 - 0.2, 0, 0], atol=1e-6)


def test_whitening_is_per_agent_and_ignores_rows_that_do_not_count():
    values = jnp.array([1.0, 3.0, 10.0, 30.0, 1000.0])
    agents = jnp.array([0, 0, 1, 1, 1])
    weights = jnp.array([1.0, 1.0, 1.0, 1.0, 0.0])
    white = advantages.whiten(values, agents, weights, n_agents=2)
    np.testing.assert_allclose(white[:4], [-1, 1, -1, 1], atol=1e-5)
    assert float(white[4]) == pytest.approx((1000 - 20) / 10, rel=1e-4)


def test_whitening_tokens_counts_tokens():
    values = jnp.array([[2.0, 0.0], [4.0, 6.0]])
    mask = jnp.array([[1.0, 0.0], [1.0, 1.0]])
    white = advantages.whiten(values, jnp.zeros(2, jnp.int32), mask, n_agents=1)
    deviation = np.std([2, 4, 6])
    np.testing.assert_allclose(white[mask > 0], (np.array([2, 4, 6]) - 4) / deviation, atol=1e-5)


def test_gae_over_tokens_by_hand():
    # An answer of two tokens and one of one; the turn came out 1.0 better than its value.
    mask = jnp.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    values = jnp.array([[0.5, 0.7, 9.0], [0.2, 9.0, 9.0]])
    result, returns = advantages.token_gae(jnp.array([1.0, -0.2]), values, mask, values[:, 0], gamma=1.0, lam=0.5)
    last = 1.5 - 0.7
    np.testing.assert_allclose(result, [[0.7 - 0.5 + 0.5 * last, last, 0], [-0.2, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(returns, (result + values) * mask, atol=1e-6)
