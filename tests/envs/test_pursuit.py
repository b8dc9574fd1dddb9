"""The pursuit game: the solver against the literature and a slow search, best responses, and the local view."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import view
from envs.games.bots import UniformBot, make_bot
from envs.games.pursuit import best_response, solver
from envs.games.pursuit.rules import Pursuit
from envs.games.registry import make

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("shape", "best", "worst"), [((3, 3), 2, 4), ((4, 4), 3, 6), ((4, 5), 3, 7), ((5, 5), 4, 8), ((6, 6), 5, 10)]
)
def test_rounds_from_the_best_and_the_worst_start(shape, best, worst):
    """The best start needs floor((h + w) / 2) - 1 rounds (Mehrabian, 2011), whatever the evader then chooses."""
    rounds = solver.rounds_to_capture(shape)[0]
    assert rounds.max(-1).min() == best == sum(shape) // 2 - 1
    assert rounds.max() == worst


def test_the_solver_agrees_with_a_search_by_definition():
    """Captures within k rounds on 3 x 3 cells, by recursion over all joint moves of the pursuers."""
    moves = [[cell for cell in row if cell >= 0] for row in solver.targets((3, 3)).tolist()]

    @functools.cache
    def wins(a: int, b: int, e: int, k: int) -> bool:
        if e in (a, b):
            return True
        return k > 0 and any(
            e in pair or all(wins(*pair, to, k - 1) for to in moves[e])
            for pair in itertools.product(moves[a], moves[b])
        )

    rounds = solver.rounds_to_capture((3, 3))[0]
    for a, b, e in itertools.product(range(9), repeat=3):
        assert wins(a, b, e, int(rounds[a, b, e])) and not (rounds[a, b, e] and wins(a, b, e, int(rounds[a, b, e]) - 1))


@functools.cache
def played(seats: tuple[str, str, str], games: int = 64, **params):
    """Final states and the sum of the agent rewards of games between bots by seat."""
    game = make("pursuit", height=4, width=4, **params)
    bots = [make_bot(game, name) for name in seats]

    def play(key):
        def turn(carry, key):
            state, total = carry
            actions = jnp.stack([bot.act(state, key) for bot in bots])
            state, reward = game.step(state, actions[game.player(state)])
            return (state, total + reward.agent), None

        first, rest = jax.random.split(key)
        start = game.reset(first)
        (state, total), _ = jax.lax.scan(turn, (start, jnp.zeros(3)), jax.random.split(rest, game.max_turns))
        return start, state, total

    return game, *jax.device_get(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), games)))


def test_perfect_play_takes_exactly_the_rounds_of_the_table():
    game, start, end, total = played(("solver",) * 3)
    rounds = solver.rounds_to_capture(game.shape)[0][tuple(start.cells.T)]
    np.testing.assert_array_equal((end.turn + 2) // 3, rounds)
    np.testing.assert_allclose(total[:, 0], game.payoff(rounds), rtol=1e-6)
    np.testing.assert_array_equal(total, total[:, :1] * [1, 1, -1])
    assert np.all(jax.jit(jax.vmap(game.endings))(end)["captured"])


def test_a_weaker_side_loses_rounds():
    weak, strong = played(("random", "random", "solver"))[3], played(("solver", "solver", "random"))[3]
    assert weak[:, 0].mean() < 0 < strong[:, 0].min()


def test_the_evader_wins_when_the_rounds_are_over():
    game, _, end, total = played(("random", "random", "solver"), rounds=2)
    caught = np.asarray(jax.jit(jax.vmap(game.endings))(end)["captured"])
    assert 0 < caught.sum() < len(caught) and (total[~caught] == [-1, -1, 1]).all() and (end.turn[~caught] == 6).all()


def test_best_responses_are_exact():
    """Perfect play cannot be exploited, and the value of the game is what the table of rounds gives."""
    game = Pursuit(4, 4)
    starts = ~solver.caught(16)
    value = best_response.values(game)
    expected = game.payoff(solver.rounds_to_capture(game.shape)[0].astype(float))
    np.testing.assert_allclose(value[starts], expected[starts])
    perfect = best_response.perfect_policy(game)
    assert abs(best_response.nash_conv(game, perfect)) < 1e-12
    mixed = 0.9 * perfect + 0.1 * np.stack([_uniform(game, seat) for seat in range(3)])
    uniform = np.stack([_uniform(game, seat) for seat in range(3)])
    assert 0 < best_response.nash_conv(game, mixed) < best_response.nash_conv(game, uniform)


def test_values_of_policies_equal_the_mean_of_games():
    """Of the uniform policy on 4 x 4 cells, within four standard errors of 4096 games."""
    game, start, _, total = played(("random",) * 3, games=4096)
    uniform = np.stack([_uniform(game, seat) for seat in range(3)])
    expected = best_response.values(game, uniform[:2], uniform[2])[tuple(start.cells.T)]
    error = total[:, 0] - expected
    assert abs(error.mean()) < 4 * error.std() / 64


def _uniform(game: Pursuit, seat: int) -> np.ndarray:
    legal = solver.targets(game.shape) >= 0
    legal = np.expand_dims(legal / legal.sum(-1, keepdims=True), [axis for axis in range(3) if axis != seat])
    return np.broadcast_to(legal, (16, 16, 16, 5))


def test_lost_rounds_are_process_rewards_of_the_mover():
    game = make("pursuit", lost_round_reward=-1.0)
    state = game.start(jnp.array([0, 4, 12]))
    assert game.reward_levels_with({"lost_round_reward": -1.0}) == ("agent", "process")
    step = jax.jit(game.step)
    rewards = [np.asarray(step(state, np.int32(action))[1].process) for action in range(5)]
    rounds = solver.rounds_to_capture(game.shape)
    for action, target in enumerate(solver.targets(game.shape)[0]):
        if target >= 0:
            lost = rounds[1, target, 4, 12] + 1 - rounds[0, 0, 4, 12]
            np.testing.assert_array_equal(rewards[action], [-lost, 0, 0])
    assert len({float(reward[0]) for reward in rewards}) > 1


def test_pursuers_see_the_evader_only_nearby():
    game = make("pursuit", view="local", radius=1)
    state = game.start(jnp.array([0, 24, 12]))
    assert "E" in view.board(game, state, 2) and "E" not in view.board(game, state, 0)
    assert "E" in view.board(game, game.start(jnp.array([6, 24, 12])), 0)
    assert view.board(game, state, 0).split() == [*"A.???", *"..???", *"?????", *"?????", *"????B"]
    assert view.svg(game, state, 0).count("#c9c9c9") == 25 - 5


def test_bad_parameters_are_named():
    for params, message in (
        (dict(height=2), "pursuit: height is 2, but must be an integer from 3 to 8"),
        (dict(view="blind"), "pursuit: view is 'blind', but must be one of: 'full', 'local'"),
        (dict(delay_cost=1.0), "pursuit: delay_cost is 1.0, but must be >= 0 and < 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make("pursuit", **params)


def test_uniform_play_stays_on_the_grid():
    game = make("pursuit", height=3, width=6)
    state = game.start(jnp.array([0, 5, 17]))
    keys = jax.random.split(jax.random.key(0), 64)
    moves = jax.jit(jax.vmap(lambda key: UniformBot(game).act(state, key)))(keys)
    assert set(np.asarray(moves).tolist()) == {0, 2, 4}  # the corner at the top left: stay, down, right
