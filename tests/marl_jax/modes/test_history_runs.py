"""Conversations in matches, records, play, teams of several models and meshes."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import make_bot
from marl_jax import setup as setups
from marl_jax.devices.resharding import SamplerParams
from marl_jax.evaluation import games, matches, records
from marl_jax.evaluation.matches import Match
from marl_jax.interactive.game_table import PolicySeat
from marl_jax.learning.learn_step import optimizer_for
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.setup.train_programs import at_start, programs
from tests.marl_jax import tiny_play, tiny_run
from tests.marl_jax.rollouts.conversations import tiny_history as tiny
from tests.marl_jax.tiny_play import TOKENIZER

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_compilation")]

GAME = tiny.game("tic_tac_toe")
HISTORY_TURNS = 3


@functools.cache
def team():
    """Return a contestant with one policy in both seats, and its weights."""
    made = tiny.policy("tic_tac_toe")
    trained, frozen = tiny_play.weights(made)
    seated = SeatedTeam(tiny_play.team(made, tiny.prompt("tic_tac_toe")), tiny_play.seating(0, 0), HISTORY_TURNS)
    return seated, {"main": {**frozen, **trained}}


@functools.cache
def greedy_match():
    """Play greedy games against a random bot and return (match, played, seating, key)."""
    seated, weights = team()
    match, key = Match(GAME, (seated, make_bot(GAME, "random"))), jax.random.key(3)
    seating = matches.in_turns(8, (0, 1))
    return match, jax.device_get(match((weights, None), seating, key, temperature=0.0)), np.asarray(seating), key


def follow(played, seating, game):
    """Yield (turn, seat, state, action, new text, full text) of all turns of the team in one game."""
    prompt, step = tiny.prompt("tic_tac_toe"), jax.jit(GAME.step)
    state = GAME.reset(jax.random.key(0))
    said, pending, answers = ["", ""], ["", ""], [0, 0]
    for turn in range(int(played.length[game])):
        seat, action = turn % 2, int(played.action[turn, game])
        new = prompt.close_text + pending[seat] + prompt.ask_text(seat)
        if answers[seat] % HISTORY_TURNS == 0:
            said[seat], new = "", prompt.opening_text(state, seat)
        said[seat] += new
        if seating[game, seat] == 0:
            yield turn, seat, state, action, new, said[seat]
        said[seat] += str(action + 1)
        answers[seat], pending[seat] = answers[seat] + 1, ""
        after = step(state, jnp.int32(action))[0]
        for other in range(2):
            pending[other] += prompt.event_text(state, action, after, other)
        state = after


def test_a_match_is_played_as_one_forward_pass_over_the_text_would():
    _, played, seating, _ = greedy_match()
    turns = [turn for game in range(8) for turn in follow(played, seating, game)]
    rows = [TOKENIZER.encode(text) for *_, text in turns]
    lengths = np.array([len(row) for row in rows])
    tokens = np.stack([np.pad(row, (0, lengths.max() - len(row))) for row in rows])
    policy, weights = tiny.policy("tic_tac_toe"), team()[1]["main"]

    def favorites(tokens, lengths, legal):
        hidden, _ = policy.model.forward(weights["model"], tokens, lengths=lengths, dtype=jnp.float32)
        last = hidden[jnp.arange(len(tokens)), lengths - 1]
        logits = policy.model.logits(weights["model"], last, tiny.prompt("tic_tac_toe").action_ids[:, 0])
        return jnp.argmax(jnp.where(legal, logits, -jnp.inf), axis=1)

    legal = np.stack([GAME.legal(state) for _, _, state, *_ in turns])
    found = jax.jit(favorites)(tokens, lengths, legal)
    assert found.tolist() == [action for *_, action, _, _ in turns]
    alone = jax.jit(favorites)(*_openings(turns), legal)
    assert alone.tolist() != found.tolist(), "what was said before matters"


def _openings(turns):
    """Return the positions of some turns as separate prompts."""
    rows = [TOKENIZER.encode(tiny.prompt("tic_tac_toe").opening_text(state, seat)) for _, seat, state, *_ in turns]
    lengths = np.array([len(row) for row in rows])
    return np.stack([np.pad(row, (0, lengths.max() - len(row))) for row in rows]), lengths


def test_records_show_what_was_read():
    match, played, seating, key = greedy_match()
    found = records.write_out(match, played, seating, key, ["team", "random"], "test")
    for game, record in enumerate(found):
        expected = {turn: new for turn, *_, new, _ in follow(played, seating, game)}
        assert [move.prompt for move in record.moves] == [expected.get(t, "") for t in range(len(record.moves))]
    fresh = [played.fresh[turn, game] for game in range(8) for turn, *_ in follow(played, seating, game)]
    assert any(fresh) and not all(fresh)


@pytest.mark.nightly
@pytest.mark.nightly_for("0")
@pytest.mark.parametrize("game", [0, 1])
def test_a_policy_at_the_terminal_answers_as_in_a_match(game):
    _, played, seating, _ = greedy_match()
    seated, weights = team()
    seat = PolicySeat(GAME, seated, seated.team.prepare_for_sampling(weights))
    mine, step = {turn: action for turn, _, _, action, *_ in follow(played, seating, game)}, jax.jit(GAME.step)
    state = GAME.reset(jax.random.key(0))
    for turn in range(int(played.length[game])):
        if turn in mine:
            assert int(seat.act(state, jax.random.key(turn))) == mine[turn]
        after = step(state, jnp.int32(played.action[turn, game]))[0]
        seat.observe(state, int(played.action[turn, game]), after)
        state = after


# --------------------------------------------------------------------------------------------------- runs


def in_history(config, **env):
    """Return the config of a run with conversations."""
    config.env.update(dict(context="history", **env))
    config.model.dtype = "float32"
    return config


@pytest.mark.nightly
def test_models_with_tokenizers_of_their_own(team_config):
    config = in_history(team_config("ppo"), history_turns=4)
    config.rollout.update(dict(num_envs=2, unroll_length=12))
    setup = setups.make(config)
    program = tiny.Program(setup.rollout)
    params = {b.name: {**frozen, **trained} for b in setup.backbones for trained, frozen in [b.weights_at_start()]}
    with jax.set_mesh(setup.mesh):
        found = program(params)
    told, samples = tiny.tell(found), found.samples
    assert (told.recorded & ~told.fresh).sum() > 8
    w = samples.width // samples.n_completions
    assert sorted(samples.policy.tolist()) == [0, 0, 1, 1]
    for number, backbone in enumerate(setup.backbones):
        mine = told.recorded & (samples.policy == number)[:, None]
        logps = samples.logps.reshape(*mine.shape, w)[mine][:, : backbone.policy.width]
        mask = np.arange(backbone.policy.width) < samples.completion_lengths[mine][:, None]
        with jax.set_mesh(setup.mesh):
            scored = found.scores(number).logps.reshape(*mine.shape, -1)[mine]
        np.testing.assert_allclose(scored[mask], logps[mask], atol=1e-5)
        assert np.std(logps[mask]) > 1e-4


def sampled(devices: int):
    """Return the samples of a tiny run with its games sharded over n devices."""
    config = in_history(tiny_run.get_config(), history_turns=3)
    config.rollout.update(dict(num_envs=8, unroll_length=8))
    config.algo.minibatches = 1
    config.model.shape = dict(d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.mesh.update(dict(data=devices, fsdp=1, tensor=1))
    setup = setups.make(config, jax.devices()[:devices])
    rollout, optimizer, key = setup.rollout, optimizer_for(config), jax.random.key(0)
    with jax.set_mesh(setup.mesh):
        states, state = at_start(setup, rollout, optimizer, key)
        play, _, _ = programs(setup, rollout, optimizer, states, state)
    with jax.set_mesh(setup.sample_mesh):
        samples, _, metrics = play(SamplerParams(setup.team.sampling_layout, setup.reshards)(states), state, key)
    return jax.device_get((samples, metrics))


@pytest.mark.nightly
def test_games_split_over_devices_make_the_same_samples():
    (one, metrics), (four, more) = sampled(1), sampled(4)
    assert one.n == 16 and (one.segment > 0).any() and metrics["dropped_completions"] == 0
    for (path, x), y in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(four), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5, err_msg=jax.tree_util.keystr(path))
    assert metrics.keys() == more.keys()


def test_evaluation_warns_of_conversations_longer_than_any_in_training(caplog):
    config = in_history(tiny_run.get_config())
    config.rollout.update(dict(num_envs=8, unroll_length=4))
    config.algo.minibatches = 1
    for turns, warned in ((4, True), (10, False)):
        config.rollout.unroll_length = turns
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            games.GameEvaluation(setups.make(config))
        assert ("up to 5 completions in matches, but only 2 in training" in caplog.text) == warned
