"""Playouts: the returns of all actions, the action that is learned, and a run from end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import make_bot
from envs.games.hanabi.rules import Hanabi
from envs.games.hanabi.search import play_out
from envs.games.registry import make
from experiments import hanabi_playouts
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import playouts
from marl_jax.algorithms.playouts_config import PlayoutSettings
from marl_jax.errors import ConfigError
from marl_jax.learning.update import Scheduled
from marl_jax.modes import train
from marl_jax.rollouts.playouts import action_returns
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from tests.marl_jax.tiny_samples import by_hand


def of_team(reward):
    """The team reward, for two seats."""
    return jnp.repeat(reward.team[:, None], 2, axis=1)


def after_moves_of_the_bot(game, bot, turns, rows=6):
    states, key = jax.vmap(game.reset)(jax.random.split(jax.random.key(0), rows)), jax.random.key(1)
    for _ in range(turns):
        states = jax.vmap(lambda state: game.step(state, bot.act(state, key))[0])(states)
    return states


@pytest.mark.parametrize("turns", [0, 7])
def test_values_are_final_scores_of_the_bot(turns):
    game = Hanabi(**Hanabi.PRESETS["small"])
    bot = make_bot(game, "convention")
    states = jax.jit(after_moves_of_the_bot, static_argnums=(0, 1, 2))(game, bot, turns)
    keys = jax.random.split(jax.random.key(2), 6)
    given = jax.jit(lambda s, k: action_returns(game, bot, s, s.seat, k, of_team))(states, keys)
    legal, now = jax.vmap(game.legal)(states), jax.vmap(game.score)(states)
    score = jax.vmap(game.score)
    final = jax.jit(
        jax.vmap(lambda action: score(play_out(game, bot, jax.vmap(game.step, (0, None))(states, action)[0])))
    )(jnp.arange(game.n_actions))
    assert not np.all(legal) or turns
    np.testing.assert_array_equal(given, np.where(legal, final.T - np.asarray(now)[:, None], 0))


def test_returns_belong_to_the_seat_that_acts():
    """X, who is to move, can win at once or block O, who plays minimax like X from then on."""
    game = make("tic_tac_toe")
    state = game.reset(jax.random.key(0))
    for cell in (0, 3, 1, 4):  # X has 0 and 1, O has 3 and 4
        state = game.step(state, jnp.int32(cell))[0]
    states = jax.tree.map(lambda x: jnp.asarray(x)[None], state)
    bot = make_bot(game, "minimax")
    weigh = lambda reward: reward.agent + reward.team[:, None]  # noqa: E731
    (values,) = jax.jit(
        lambda s: action_returns(game, bot, s, jax.vmap(game.player)(s), jax.random.split(jax.random.key(0), 1), weigh)
    )(states)
    assert values[2] == 1.0  # 0, 1, 2 in a row
    assert values[5] == 0.0  # blocks O, who blocks in turn
    assert all(values[cell] == -1.0 for cell in (6, 7, 8))  # O wins at 5
    assert all(values[cell] == 0.0 for cell in (0, 1, 3, 4))  # illegal


class Stubborn:
    """A bot that always names the first cell."""

    def act(self, state, key):
        return jnp.int32(0)


def test_illegal_actions_of_the_bot_are_replaced_by_the_first_legal_one():
    """X fills 0, 2, 4 and 6 and O 1, 3 and 5 in turn, so X wins with 2, 4, 6."""
    game = make("tic_tac_toe")
    states = jax.tree.map(lambda x: x[None], game.reset(jax.random.key(0)))
    keys = jax.random.split(jax.random.key(0), 1)
    weigh = lambda reward: reward.agent + reward.team[:, None]  # noqa: E731
    (values,) = jax.jit(lambda s: action_returns(game, Stubborn(), s, jnp.zeros(1, jnp.int32), keys, weigh))(states)
    assert values[0] == 1.0


def test_the_best_action_on_average_is_learned_not_the_best_in_hindsight():
    """Two hidden states look the same. In each, another action is best, but the third is best on average."""
    values = np.array([[[3.0, 0.0, 2.0]], [[0.0, 3.0, 2.0]]], np.float32)
    algo = PlayoutSettings(entropy_coef=0.0)
    objective = playouts.ExpectedReturn()
    legal = np.ones((2, 1, 3), bool)

    def loss(logits, values):
        samples = by_hand(np.zeros((2, 1)), action=np.zeros((2, 1), int), action_values=values, legal=legal)
        logps = jnp.broadcast_to(jax.nn.log_softmax(logits), (2, 1, 3))
        nothing = jnp.zeros((2, 1))
        scores = Scores(nothing, nothing, nothing, action_logps=logps)
        weighed = objective.loss_weights_for(samples, algo)
        return objective.loss(samples, weighed, scores, algo, Scheduled(0.0, 0))[0]

    gradient = jax.jit(jax.grad(loss))
    logits = jnp.array([2.0, 1.0, 0.0])
    expected = lambda x: jnp.mean(values[:, 0] @ jax.nn.softmax(x))  # noqa: E731
    np.testing.assert_allclose(gradient(logits, values), -jax.grad(expected)(logits), atol=1e-6)
    np.testing.assert_allclose(gradient(logits, values + 5.0), gradient(logits, values), atol=1e-6)
    for _ in range(300):
        logits -= 0.3 * gradient(logits, values)
    assert jax.nn.softmax(logits)[2] > 0.9


def small():
    config = hanabi_playouts.get_config()
    config.env.params.preset = "very_small"
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.rollout.update(dict(num_envs=8, unroll_length=4))
    config.algo.minibatches, config.steps, config.mesh.data = 2, 2, 1
    config.optim.warmup, config.eval.every, config.checkpoint.best_metric = 0, 0, ""
    config.first_stage = {}
    return config


def test_a_run_values_all_moves(tmp_path):
    config = small()
    validate.check(config)
    train.train(config, tmp_path)
    rows = read_json_lines(tmp_path / "metrics.jsonl")
    assert [row["completions_trained"] for row in rows] == [32, 32]
    assert all(-5 < row["gain"] < 0 for row in rows), "an untrained policy is worse than the bot"


@pytest.mark.parametrize("changes, message", [
    (dict(algo=dict(bot="nobody")), "algo.bot is 'nobody', but must be '' or a bot of hanabi: random, convention"),
    (dict(env=dict(context="history")), "env.context must be 'turn'"),
    (dict(opponents=dict(bot_frac=0.5, self_play_frac=0.5)), "learns from the actions of all seats"),
])  # fmt: skip
def test_what_cannot_be_valued_is_refused(changes, message):
    config = small()
    for group, fields in changes.items():
        config[group].update(fields)
    with pytest.raises(ConfigError, match=message.replace("'", ".")):
        validate.check(config)
