"""Matrix games: every joint action gives its payoff, moves of a round are hidden, and bad matrices are refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import view
from envs.games.matrix.bots import OptimalBot, solve
from envs.games.matrix.rules import Matrix
from envs.games.registry import make, make_text

pytestmark = pytest.mark.quick


def played(game, actions):
    """Return the states of a game after each action and the sum of team rewards."""
    states, total = [game.reset(jax.random.key(0))], 0.0
    for action in actions:
        state, reward = game.step(states[-1], jnp.int32(action))
        states.append(state)
        total += float(reward.team)
    return states, total


def test_the_two_step_game_has_the_returns_of_its_paper():
    game = make("matrix")
    returns = {joint: played(game, joint)[1] for joint in itertools.product(range(2), repeat=4)}
    for (first, _, a, b), total in returns.items():
        assert total == (7 if first == 0 else [[0, 1], [1, 8]][a][b])
    assert max(returns.values()) == solve(game)[1][0] == 8
    assert all(game.done(played(game, joint)[0][-1]) for joint in returns)


@pytest.mark.parametrize("preset, best", [("two_step", 8), ("qtran", 8), ("climbing", 11), ("penalty", 10)])
def test_the_optimal_bot_gets_the_best_return(preset, best):
    game = make("matrix", preset=preset)
    bot, state, total = OptimalBot(game), game.reset(jax.random.key(0)), 0.0
    while not game.done(state):
        state, reward = game.step(state, bot.act(state, jax.random.key(1)))
        total += float(reward.team)
    assert total == best


@pytest.mark.parametrize("style", ["full", "compact", "brief"])
def test_the_second_player_sees_nothing_of_the_first_move(style):
    game, seen = make("matrix"), set()
    text = make_text(game, style)
    for action in range(2):
        before, after = played(game, [action])[0]
        assert game.player(after) == 1
        event = text.events.text(jax.device_get(text.event_indices(before, jnp.int32(action), after, jnp.int32(1))))
        seen.add((text.observe(after, 1), event, view.board(game, after, 1), view.svg(game, after, 1)))
    assert len(seen) == 1
    assert text.observe(after, 0) != text.observe(after, 1)


def test_the_rules_name_every_outcome():
    rules = make_text(make("matrix"), "full").rules
    assert "State 0: A and A gives 0 and leads to state 1" in rules and "B and B gives 8." in rules


def test_lists_of_a_config_are_accepted_and_hashed():
    game = make("matrix", payoffs=[[[1, 0], [0, 2]]], leads_to=[])
    assert game == Matrix((((1, 0), (0, 2)),), ()) and hash(game) == hash(Matrix((((1, 0), (0, 2)),), ()))
    np.testing.assert_array_equal(game.links(), np.ones((1, 2, 2)))


@pytest.mark.parametrize(
    "params, problem",
    [
        (dict(payoffs=()), "payoffs is empty"),
        (dict(payoffs=(((1, 2), (3,)),), leads_to=()), "every matrix must be 2 by 2"),
        (dict(leads_to=(((0, 1), (1, 1)),)), "leads_to has 0 in state 0, but must be -1 or a later state, at most 2"),
        (dict(leads_to=(((3, 1), (1, 1)),)), "leads_to has 3 in state 0"),
        (dict(payoffs=(((1,),),), leads_to=(((-1,),),) * 2), "leads_to has 2 matrices, but must have at most 1"),
    ],
)
def test_bad_matrices_are_refused(params, problem):
    with pytest.raises(ValueError, match=problem):
        make("matrix", **params)
