"""Evaluation: matches, figures with their intervals, tables of everyone against everyone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.bots import UniformBot
from envs.game import Reward
from envs.tic_tac_toe.bots import MinimaxBot
from envs.tic_tac_toe.rules import TicTacToe
from marl_jax import evaluate
from marl_jax.rollouts import matches, records
from marl_jax.rollouts.matches import Match, Played, Player
from tests.marl_jax import tiny_play

GAME = TicTacToe()


def result(agent):
    agent = jnp.asarray(agent, jnp.float32)
    games = len(agent)
    total = Reward(jnp.zeros(games), agent, jnp.zeros_like(agent))
    return Played(total, jnp.full((games,), 7), *(jnp.zeros((1, games)),) * 3)


def test_figures_are_those_of_contestant_zero_in_whatever_seat():
    seating = np.asarray(matches.in_turns(4, 2))
    np.testing.assert_array_equal(seating, [[0, 1], [1, 0], [0, 1], [1, 0]])
    row = evaluate.figures(GAME, result([[1, -1], [1, -1], [0, 0], [-1, 1]]), seating, 0.95)
    assert (row["win_rate"], row["draw_rate"], row["loss_rate"]) == (0.5, 0.25, 0.25)
    assert (row["win_rate_seat_0"], row["win_rate_seat_1"]) == (0.5, 0.5)
    assert row["win_rate_low"] < 0.5 < row["win_rate_high"] and row["game_length"] == 7
    assert "win rate 0.500 [" in evaluate.describe({"opponent": "random", **row})


def test_minimax_never_loses_and_mostly_beats_random():
    seating = matches.in_turns(200, 2)
    played = Match(GAME, (MinimaxBot(), UniformBot(GAME)))((None, None), seating, jax.random.key(0), 0.0)
    row = evaluate.figures(GAME, played, np.asarray(seating), 0.95)
    assert row["loss_rate"] == 0 and row["win_rate"] > 0.8


@pytest.fixture(scope="module")
def player():
    return Player(tiny_play.policy(), tiny_play.prompt(), (0, 0), tokenizers=(tiny_play.TOKENIZER,) * 2)


def test_a_greedy_policy_plays_the_same_game_twice_and_it_can_be_written_out(player):
    trained, _ = tiny_play.weights(player.policy)
    match = Match(GAME, (player, UniformBot(GAME)))
    seating, key = matches.in_turns(4, 2), jax.random.key(3)
    played, again = (match((trained, None), seating, key, 0.0) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, played, again)

    games = records.write_out(match, played, seating, key, ["tiny", "random"], "eval")
    for row, game in enumerate(games):
        assert len(game.moves) == int(played.length[row])
        assert game.players == (("tiny", "random") if row % 2 == 0 else ("random", "tiny"))
        for turn, move in enumerate(game.moves):
            assert move.player == turn % 2 and move.action == move.answer
            assert bool(move.prompt) == (game.players[move.player] == "tiny")
        agent = np.asarray(played.total.agent[row])
        assert game.scores == tuple(agent) and (game.outcome == "draw") == (agent == 0).all()


def test_temperature_decides_between_the_likeliest_and_a_draw(player):
    trained, _ = tiny_play.weights(player.policy)
    match = Match(GAME, (player,))
    greedy = match((trained,), matches.alone(16, 2), jax.random.key(0), 0.0)
    assert len(np.unique(greedy.action[:, :], axis=1).T) == 1
    drawn = match((trained,), matches.alone(16, 2), jax.random.key(0), 1.0)
    assert len(np.unique(drawn.action[:, :], axis=1).T) > 8


def test_everyone_against_everyone_and_elo():
    contestants = [evaluate.Contestant("minimax", MinimaxBot()), evaluate.Contestant("random", UniformBot(GAME))]
    table = evaluate.round_robin(GAME, contestants, 100, jax.random.key(0), 0.0)
    assert table[0, 1] > 0.85 and table[0, 1] + table[1, 0] == pytest.approx(1) and table[0, 0] == 0.5
    strong, weak = evaluate.ratings(table, 100)
    assert strong > weak + 200 and strong + weak == pytest.approx(2000)


def test_cross_play_compares_the_diagonal_with_the_rest():
    table = np.array([[10.0, 4.0], [6.0, 8.0]])
    assert evaluate.cross_play(table) == {"self_play": 9.0, "cross_play": 5.0, "gap": 4.0}
