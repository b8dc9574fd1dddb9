"""Moves chosen by value: tic-tac-toe with a critic made by hand, and the option of an evaluation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import UniformBot
from envs.games.tic_tac_toe.bots import MinimaxBot
from envs.games.tic_tac_toe.rules import TicTacToe
from marl_jax import setup as setups
from marl_jax.agents.team import Team
from marl_jax.evaluation import games, match_results, matches
from marl_jax.evaluation.matches import Match
from marl_jax.rollouts.seated_team import BestOf, SeatedTeam, worth_of_moves
from marl_jax.setup.weights import untuned_weights
from tests.marl_jax import tiny_play, tiny_run

GAME = TicTacToe()
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


@functools.cache
def value(board: tuple[int, ...]) -> int:
    """Of a position to the player to move, with best play: cells are 0 free, 1 own, 2 the other's."""
    if any(all(board[cell] == 2 for cell in line) for line in LINES):
        return -1
    swapped = [(0, 2, 1)[mark] for mark in board]
    moves = [(*swapped[:cell], 2, *swapped[cell + 1 :]) for cell in range(9) if not board[cell]]
    return max((-value(after) for after in moves), default=0)


@functools.cache
def values_by_code() -> np.ndarray:
    """float32 [3^9], by the board as a number of base 3, its first cell first."""
    value((0,) * 9)
    table = np.zeros(3**9, np.float32)
    for board in map(tuple, np.stack(np.unravel_index(np.arange(3**9), (3,) * 9), axis=1).tolist()):
        if board.count(1) - board.count(2) in (0, -1):
            table[int("".join(map(str, board)), 3)] = value(board)
    return table


class Judge(Team):
    """A team that knows what every position is worth, and asks an untrained policy for its moves."""

    def act(self, ready, tokens, *args, **settings):
        """The answers of the policy with the values of the board that it reads, `x` the reader's marks."""
        marks = jnp.where(tokens[:, :9] == ord("x"), 1, jnp.where(tokens[:, :9] == ord("o"), 2, 0))
        worth = jnp.asarray(values_by_code())[marks @ 3 ** jnp.arange(8, -1, -1)]
        decision = super().act(ready, tokens, *args, **settings)
        return decision._replace(values=jnp.repeat(worth, settings.get("candidates", 1)))


@pytest.fixture(scope="module")
def judge():
    """A team that judges, and its weights."""
    team = tiny_play.team(tiny_play.policy(), tiny_play.prompt())
    return Judge(team.backbones, team.policies), {"main": tiny_play.weights(team.backbones[0].policy)[0]}


def play(judge, other, moves: int) -> dict[str, float]:
    """Return the metrics of best-of-K play over 64 games."""
    team, weights = judge
    seated = SeatedTeam(team, tiny_play.seating(0, 0), best_of=BestOf(moves) if moves > 1 else None)
    seating = matches.in_turns(64, (0, 1))
    played = Match(GAME, (seated, other))((weights, None), seating, jax.random.key(0), 0.0)
    assert played.action.shape == (9, 64) and not np.any(played.failed)
    asked = np.asarray(played.completion_length) > 0
    np.testing.assert_array_equal(played.answer[asked, 0], ord("1") + played.action[asked])  # the answer of the move
    return match_results.match_metrics(GAME, played, np.asarray(seating), 0.95)


@pytest.mark.nightly
def test_with_true_values_enough_moves_are_best_play(judge):
    """Nearly all legal moves are drawn, so that the best of them loses to nobody; the policy's own move does."""
    assert values_by_code()[0] == 0 and set(np.unique(values_by_code())) == {-1, 0, 1}
    assert play(judge, MinimaxBot(), 1)["loss_rate"] > 0.5
    assert play(judge, MinimaxBot(), 64)["draw_rate"] == 1
    best = play(judge, UniformBot(GAME), 64)
    assert best["loss_rate"] == 0 and best["win_rate"] > 0.8


def test_what_moves_are_worth(judge):
    """Rewards count with their weight, and later rewards as the negative value of the critic."""
    team, weights = judge
    state = GAME.reset(jax.random.key(0))
    for cell in (0, 3, 1, 4):
        state, _ = GAME.step(state, jnp.int32(cell))
    rows = jax.tree.map(lambda x: jnp.asarray(x)[None], state)
    seat, actions, policies = jnp.zeros(1, jnp.int32), jnp.asarray([[2, 5, 8]]), jnp.zeros(2, jnp.int32)

    @jax.jit
    def worth(weights):
        return worth_of_moves(GAME, team, team.prepare_for_sampling(weights), rows, seat, actions, policies, 0.5)

    # A win with half the reward, a block that draws, and a move after which O wins.
    np.testing.assert_array_equal(worth(weights), [[0.5, 0.0, -1.0]])


@pytest.mark.nightly
def test_an_evaluation_also_plays_the_best_by_value():
    config = tiny_run.get_config()
    config.eval.best_of = 3
    setup = setups.make(config)
    weights = untuned_weights(setup)
    assert "critic" in weights["main"]
    rows = games.GameEvaluation(setup)(weights)
    assert [row["opponent"] for row in rows] == ["random", "random, best of 3"]
    config.eval.best_of = 1
    assert "critic" not in untuned_weights(setups.make(config))["main"]
