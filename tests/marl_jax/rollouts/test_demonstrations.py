"""What imitation reports by kind of move, the weights of kinds, rows that are cut, and a bonus that falls."""

import dataclasses

import jax
import numpy as np
import pytest

from configs import defaults
from envs.games.entry import RecordedMoves
from envs.games.registry import symmetry
from experiments import hanabi_search, hanabi_selfplay
from marl_jax import setup as setups
from marl_jax.agents.answering import Decision
from marl_jax.algorithms import sft, sft_config
from marl_jax.errors import ConfigError
from marl_jax.rollouts.conversations import contexts, turns
from marl_jax.rollouts.conversations.turns import Turn
from marl_jax.rollouts.demonstrations import DemonstrationAnswers
from marl_jax.schema import validate

KINDS = np.array(["discard", "play", "hint", ""])


def get_config():
    """Imitation of the convention bot by next to nothing."""
    config = hanabi_selfplay.get_config("sft")
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.rollout.update(dict(num_envs=8, unroll_length=6))
    config.algo.update(dict(minibatches=2, noise=0.0))
    return config


def examined(own, bot):
    """The counts of a policy that answers `own` where the bot answers `bot`, one of three actions of three kinds."""
    imitation = object.__new__(sft.Imitation)
    own, bot = np.array([own]), np.array([bot])
    prompts = np.arange(own.size).reshape(1, -1, 1)
    imitation._kinds = KINDS
    imitation._program = lambda params: DemonstrationAnswers(own == bot, np.ones(own.shape, bool), own, bot, prompts)
    return {name: (count.right, count.total) for name, count in imitation({}).counts.items()}


def test_accuracy_is_of_the_moves_of_the_bot_and_precision_of_those_of_the_policy():
    counts = examined(own=[1, 1, 2, 2, -1], bot=[1, 0, 2, 1, 2])
    assert counts["accuracy"] == (2, 5)
    assert counts["play_accuracy"] == (1, 2) and counts["play_precision"] == (1, 2)
    assert counts["hint_accuracy"] == (1, 2) and counts["hint_precision"] == (1, 2)
    assert counts["discard_accuracy"] == (0, 1) and counts["discard_precision"] == (0, 0)  # it never discards


@pytest.fixture(scope="module")
def shown():
    """(setup, samples) of demonstrations in which plays have weight 3."""
    config = get_config()
    config.algo.kind_weights, config.mesh.data = ("play=3",), 1
    validate.check(config)
    setup = setups.make(config)
    rollout = setup.rollout
    start = jax.jit(rollout.fresh_games)(jax.random.key(0))
    return setup, jax.jit(rollout.play)({}, start, jax.random.key(1))[0]


def test_kinds_of_moves_may_weigh_more(shown):
    setup, samples = shown
    kinds = np.array(setup.game.action_kinds)[np.asarray(samples.action)]
    assert {"play", "hint"} <= set(kinds.ravel().tolist())
    np.testing.assert_array_equal(samples.loss_weights, np.where(kinds == "play", 3.0, 1.0))


@pytest.mark.parametrize(
    "weights, message",
    [
        (("play",), "algo.kind_weights is .*, but must be a tuple of strings KIND=WEIGHT"),
        (
            ("jump=2",),
            "kind_weights has 'jump', but kinds of moves of hanabi must be one of: discard, play, hint",
        ),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights, message):
    config = get_config()
    config.algo.kind_weights = weights
    with pytest.raises(ConfigError, match=message):
        validate.check(config)
    assert sft_config.kind_weights(("play=2", "hint=0.5")) == {"play": 2.0, "hint": 0.5}


def test_rows_that_are_cut_lose_long_prompts_and_nothing_else():
    lengths = np.array([[3, 6, 4], [5, 2, 6]])
    prompts = np.where(np.arange(7) < lengths[..., None], 1 + np.arange(7), 0)
    zeros, floats = np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32)
    answers = np.full((2, 3, 2), 9)
    decision = Decision(zeros, answers, zeros + 2, np.zeros((2, 3, 2), np.float32), floats, zeros > 0)
    turn = Turn(
        prompts, lengths, zeros + 10, zeros, zeros, zeros, zeros, decision, np.ones((2, 3, 4), bool),
        rewards=floats[..., None], ends=zeros > 0, counts=1 + floats,
    )  # fmt: skip
    to_samples = jax.jit(turns.to_samples, static_argnames="tokens")
    whole, cut = jax.device_get((to_samples(turn), to_samples(turn, tokens=5)))
    fits = np.asarray(lengths).ravel() <= 4  # of an answer of two tokens, one is read
    assert cut.tokens.shape == (6, 5) and whole.tokens.shape == (6, 7)
    np.testing.assert_array_equal(cut.loss_weights[:, 0], fits)
    np.testing.assert_array_equal(cut.recorded()[:, 0], fits)
    for name in ("tokens", "positions", "logits_index", "targets", "context_len"):
        expected = np.asarray(getattr(whole, name))[fits]
        found = np.asarray(getattr(cut, name))[fits]
        np.testing.assert_array_equal(found, expected[:, : found.shape[1]])
    played = dataclasses.replace(turn, counts=turn.counts * (np.arange(6).reshape(2, 3) != 1))
    assert contexts.TurnContext(None, 5).dropped(played, None).tolist() == [[0, 0, 0], [1, 0, 1]]
    assert contexts.TurnContext(None).dropped(turn, None) is None


@pytest.mark.nightly_for("True")
@pytest.mark.parametrize("symmetric", [False, True])
def test_recorded_moves_fill_the_first_rows(symmetric):
    config = get_config()
    config.mesh.data, config.env.symmetry = 1, symmetric
    setup = setups.make(config)
    plain = dataclasses.replace(setup.rollout, noise=0.5)
    game, start = setup.game, jax.jit(plain.fresh_games)(jax.random.key(0))
    states = jax.tree.map(lambda x: x[2:6], jax.device_get(start.state))._replace(deck=np.zeros((4, 0), np.int8))
    hints = 4 + np.argmax(np.asarray(jax.jit(jax.vmap(game.legal))(states))[:, 4:6], axis=1)  # about a color
    moves = RecordedMoves(states, hints, np.array([0, 0.5, 0, 0], np.float32))
    mixed = dataclasses.replace(plain, recorded=moves, recorded_rows=3, gain_weight=2.0)
    own, shown = (jax.jit(one.play)({}, start, jax.random.key(1)) for one in (plain, mixed))
    (weights, of_bot), actions = (np.asarray(x[0].loss_weights).reshape(6, 8) for x in (shown, own)), shown[0].action
    assert set(np.unique(weights[:, :3])) == {1.0, 2.0} and np.all(of_bot == 1)
    np.testing.assert_array_equal(weights[:, 3:], 1)
    seen = np.asarray(actions).reshape(6, 8)
    np.testing.assert_array_equal(seen[:, 3:], np.asarray(own[0].action).reshape(6, 8)[:, 3:])
    assert not np.any(shown[1].ended[:, :3])
    # A recorded move of the game is one of those that the seat sees through some permutation of the colors.
    possible = {int(symmetry(game).map_action(a, i)) for a in hints for i in range(2 if symmetric else 1)}
    assert set(seen[:, :3].ravel().tolist()) <= possible
    assert symmetric or set(seen[:, :3][weights[:, :3] == 2].tolist()) == {hints[1]}
    if symmetric:
        return
    # Only the second position has a gain; in the others the bot moves.
    strict = jax.jit(dataclasses.replace(mixed, min_gain=0.3).play)({}, start, jax.random.key(1))[0]
    np.testing.assert_array_equal(np.asarray(strict.loss_weights).reshape(6, 8), weights)
    chosen = np.asarray(strict.action).reshape(6, 8)[:, :3]
    bot = jax.vmap(lambda state: plain.bot.act(state, jax.random.key(0)))(states).tolist()
    assert set(chosen[weights[:, :3] == 2].tolist()) == {hints[1]}
    assert set(chosen[weights[:, :3] == 1].tolist()) == {bot[i] for i in (0, 2, 3)}


@pytest.mark.parametrize("changes, message", [
    ({"algo.data": "nowhere"}, "config.algo.data is 'nowhere': nowhere has no files games-"),
    ({"algo.data": "nowhere", "env.context": "history"}, "config.env.context is 'history', but must be 'turn'"),
    ({"algo.data": "nowhere", "env": defaults.environment("kuhn")}, "must be '': kuhn has no recorded moves"),
])  # fmt: skip
def test_recorded_moves_that_cannot_be_read_are_named(changes, message):
    config = get_config()
    for name, value in changes.items():
        config.update_from_flattened_dict({name: value}) if name != "env" else setattr(config, "env", value)
    with pytest.raises(ConfigError, match=message):
        validate.check(config)
        _ = setups.make(config).rollout


def test_other_play_permutes_colors_for_each_seat():
    config = hanabi_search.get_config("other_play")
    config.model.shape = get_config().model.shape
    config.rollout.update(dict(num_envs=64, unroll_length=4))
    config.mesh.data, config.first_stage = 1, {}
    validate.check(config)
    rollout = setups.make(config).rollout
    through = np.asarray(jax.jit(rollout.fresh_games)(jax.random.key(0)).symmetry)
    assert through.shape == (64, 2) and len({tuple(row) for row in through.tolist()}) == 4  # 2 colors, 2 seats
