"""Rollouts: games, players, and agreement of sampler and learner."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import registry as games
from envs.games.bots import make_bot
from envs.games.tic_tac_toe.rules import TicTacToe
from marl_jax.agents import scoring
from marl_jax.agents.policy import PREFIX_WORTH_KEEPING
from marl_jax.agents.seating import Seating
from marl_jax.rollouts.conversations.turns import game_metrics
from marl_jax.rollouts.games import GameRolloutState
from marl_jax.rollouts.opponents import Opponents, Sections, make_sections, results
from tests.marl_jax import tiny_play

pytestmark = pytest.mark.long

GAME = TicTacToe()
ROWS, TURNS = 12, 8


def program(sections=None, policy=None, rows=ROWS, turns=TURNS, **kwargs):
    """The program under test; with sections, a pool of two historical opponents where there is a section for them."""
    policy = policy or tiny_play.policy()
    if sections is not None:
        rows, kwargs["opponents"] = sections.rows, Opponents(sections, pool_size=2 if sections.historical else 0)
    return tiny_play.rollout(GAME, policy, rows, turns, prompt=tiny_play.prompt(), **kwargs)


def params_of(roll, seed=0):
    """Random weights of a program's only backbone."""
    trained, frozen = tiny_play.weights(roll.team.backbones[0].policy, seed)
    return {"main": {**frozen, **trained}}


def in_time(samples):
    """The samples with every array [N, …] or [N, S, …] as [R, B, …]; the prompts' lengths are `context_len`."""
    samples = jax.device_get(samples)
    turns, rows = samples.completion_at.shape
    assert samples.n_completions == 1

    def one(x):
        x = x.reshape(samples.n, *x.shape[2:]) if x.ndim > 1 and x.shape[1] == 1 else x
        return x.reshape(-1, *x.shape[1:])[samples.completion_at.reshape(-1)].reshape(turns, rows, *x.shape[1:])

    return jax.tree.map(one, samples.replace(completion_at=None))


def run(roll, params, start, key=1, snapshot=None):
    """(samples in order of time, what ended, the games after it) of a compiled program."""
    samples, finished, after = jax.jit(roll.play)(params, start, jax.random.key(key), snapshot)
    return in_time(samples), finished, after


@functools.cache
def played(seed=0):
    """One rollout of plain self-play: (weights, games at the start, samples, finished, games at the end)."""
    roll = program()
    start = roll.fresh_games(jax.random.key(seed))
    return params_of(roll), start, *_compiled(params_of(roll), start, jax.random.key(seed + 1))


def _compiled(*arguments):
    samples, *rest = _program()(*arguments)
    return in_time(samples), *rest


@functools.cache
def _program():
    return jax.jit(program().play)


def test_games_follow_the_rules_and_the_prompt_shows_the_position():
    samples, finished = jax.device_get(played()[2:4])
    prompt = tiny_play.prompt()
    step, legal_of, player_of = jax.jit(GAME.step), jax.jit(GAME.legal), jax.jit(GAME.player)
    for row in range(2):
        state = GAME.reset(jax.random.key(0))
        for t in range(TURNS):
            player = int(player_of(state))
            expected = tiny_play.TOKENIZER.encode(prompt.opening_text(state, player))
            length = int(samples.context_len[t, row])
            assert samples.tokens[t, row, :length].tolist() == expected
            assert int(samples.seat[t, row]) == player
            np.testing.assert_array_equal(samples.legal[t, row], legal_of(state))
            action = int(samples.action[t, row])
            assert samples.legal[t, row, action]
            assert samples.targets[t, row].reshape(-1).tolist() == tiny_play.TOKENIZER.encode(str(action + 1))
            state, reward = step(state, jnp.int32(action))
            np.testing.assert_array_equal(samples.rewards[t, row], reward.agent)
            assert bool(samples.ends[t, row]) == bool(state.over) == bool(finished.ended[t, row])
            if state.over:
                state = GAME.reset(jax.random.key(0))


def test_a_row_starts_a_new_game_when_one_ends():
    _, _, samples, finished, after = jax.device_get(played())
    ended = np.asarray(finished.ended)
    assert ended.any()
    episodes, turns = np.asarray(samples.episode)[:TURNS], np.asarray(samples.turn)[:TURNS]
    np.testing.assert_array_equal(episodes[1:] - episodes[:-1], ended[:-1])
    np.testing.assert_array_equal(turns[1:], np.where(ended[:-1], 0, turns[:-1] + 1))
    np.testing.assert_array_equal(after.episode, ended.sum(0))
    np.testing.assert_array_equal(np.asarray(finished.length)[ended], turns[ended] + 1)


def test_the_turns_that_look_ahead_have_no_weight_and_are_played_again():
    trained, _, samples, _, after = played()
    assert samples.action.shape == (TURNS + 2, ROWS)
    assert float(samples.loss_weights[:TURNS].min()) == 1 and float(samples.loss_weights[TURNS:].max()) == 0
    following, _, _ = _compiled(trained, after, jax.random.key(9))
    np.testing.assert_array_equal(following.turn[0], samples.turn[TURNS])
    np.testing.assert_array_equal(following.tokens[0, :, :10], samples.tokens[TURNS, :, :10])


def test_first_games_are_given_up_after_different_rollouts():
    roll = program(turns=2)  # a game of five to nine moves usually takes three of these
    params, state, call = params_of(roll), roll.init(jax.random.key(0), {}), jax.jit(roll.__call__)
    part, turns, episodes = np.arange(ROWS) % 3, [], []
    for number in range(4):
        samples, state, metrics = call(params, state, jax.random.key(number))
        if number < 2:
            assert int(metrics["games"]) == 0 and not in_time(samples).ends[:2].any()  # nothing was played to its end
        turns.append(np.asarray(state.games.turn))
        episodes.append(np.asarray(state.games.episode))
    np.testing.assert_array_equal(turns[0], np.choose(part, (0, 2, 2)))
    np.testing.assert_array_equal(turns[1], np.choose(part, (2, 0, 4)))
    np.testing.assert_array_equal(turns[2][part < 2], np.choose(part[part < 2], (4, 2)))
    assert (episodes[2] >= 1).all()  # every row has given one up, or it has ended
    np.testing.assert_array_equal(turns[3][part == 1], 4)  # and no row another one
    np.testing.assert_array_equal(episodes[3][part == 1], 1)


def test_games_that_fit_into_a_rollout_all_go_on():
    params, start = played()[:2]
    _, state, _ = jax.jit(program().__call__)(params, GameRolloutState(start), jax.random.key(1))
    assert (np.asarray(state.games.turn) > 0).any() and not np.asarray(state.games.episode).all()
    play_key = jax.random.split(jax.random.key(1))[0]
    jax.tree.map(np.testing.assert_array_equal, state.games, _compiled(params, start, play_key)[2])


def test_same_key_same_samples_and_another_key_others():
    trained, start, samples, _, _ = played()
    again, _, _ = _compiled(trained, start, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, samples, again)
    other, _, _ = _compiled(trained, start, jax.random.key(2))
    assert (np.asarray(other.action) != np.asarray(samples.action)).any()


def test_a_row_does_not_depend_on_its_neighbours():
    trained, start, samples, _, _ = played()
    half = jax.tree.map(lambda x: x[: ROWS // 2], start)
    alone, _, _ = run(program(rows=ROWS // 2), trained, half)
    np.testing.assert_array_equal(alone.action, samples.action[:, : ROWS // 2])


@pytest.mark.nightly
def test_nothing_is_transferred_while_games_are_played():
    trained, start, *_ = played()
    roll, key = _program(), jax.random.key(1)
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(roll(trained, start, key))
    # On a CPU the guard lets a call of the host from inside a program pass; the program's text shows it.
    sections = make_sections(ROWS, 0.25, [make_bot(GAME, "minimax")], 0.25)
    free = tiny_play.policy(free=4)
    for made in (program(), program(sections), program(sections, free)):
        params = params_of(made)
        text = jax.jit(made.__call__).lower(params, made.init(key, params), key).as_text()
        for word in ("callback", "infeed", "outfeed", "send", "recv"):
            assert f"stablehlo.{word}" not in text and f"@{word}" not in text and f"_{word}" not in text, word


@pytest.mark.nightly
@pytest.mark.parametrize("critic", ["head", "central"])
def test_a_historical_opponent_needs_no_critic(critic):
    roll = program(Sections(1, historical=2), tiny_play.policy(critic=critic))
    snapshot = roll.team.snapshot(params_of(roll, seed=5))
    assert set(snapshot["main"]) == {"model"}
    samples, _, _ = run(roll, params_of(roll), roll.fresh_games(jax.random.key(0)), snapshot=snapshot)
    assert float(np.std(samples.values)) > 1e-3  # the learner's own are there in all rows


@pytest.mark.nightly_for("prefix", "separate", "long_names")
@pytest.mark.parametrize("kind", ["separate", "central", "long_names", "prefix", "free"])
def test_the_sampler_reports_what_the_learner_computes(kind):
    settings = {
        "separate": dict(critic="separate"),
        "central": dict(critic="central"),
        "long_names": dict(long_names=True),
        "prefix": dict(lora=2, style="full"),
        "free": dict(free=4),
    }[kind]
    policy = tiny_play.policy(**settings)
    assert (len(policy.rules) >= PREFIX_WORTH_KEEPING) == bool(policy.prefix) == (kind == "prefix")
    roll = tiny_play.rollout(GAME, policy, 6, 4, prompt=tiny_play.prompt(settings.get("style", "brief")))
    params = params_of(roll)
    samples, _, _ = jax.jit(roll.play)(params, roll.fresh_games(jax.random.key(0)), jax.random.key(1))
    scores = jax.jit(functools.partial(scoring.score, policy))(params["main"], samples)
    mask, first = samples.mask(), samples.first()
    np.testing.assert_allclose(scores.logps * mask, samples.logps * mask, atol=1e-5)
    np.testing.assert_allclose(scores.values * first, samples.values * first, atol=1e-5)
    assert (
        float(jnp.std(samples.to_completions(samples.logps))) > 1e-3 < float(jnp.std(samples.at_first(samples.values)))
    )
    if policy.width > 1:
        assert len(np.unique(samples.completion_lengths)) > 1
    tiny_play.assert_truncated(samples, policy)


def test_sections_have_the_right_opponents():
    sections = make_sections(16, self_play_frac=0.5, bots=[make_bot(GAME, "minimax")], bot_frac=0.25)
    assert (sections.own, sections.historical, [n for _, n in sections.bots]) == (8, 4, [4])
    roll = program(sections)
    params, other = params_of(roll), params_of(roll, seed=5)
    start = roll.fresh_games(jax.random.key(0))
    samples, finished, _ = run(roll, params, start, snapshot=roll.team.snapshot(other))
    seat = np.asarray(start.seat)
    who, player = samples.policy[:TURNS], samples.seat[:TURNS]
    weights = samples.loss_weights[:TURNS]
    assert (who[:, :8] == 0).all()
    first_game = samples.episode[:TURNS] == 0
    opposite = (player != seat) & first_game
    assert (who[:, 8:][opposite[:, 8:]] == -1).all() and (weights[:, 8:][opposite[:, 8:]] == 0).all()
    assert (who[:, 8:][~opposite[:, 8:] & first_game[:, 8:]] == 0).all()
    assert (weights[:, 8:][~opposite[:, 8:] & first_game[:, 8:]] == 1).all() and (weights[:, :8] == 1).all()
    points, count = results(finished, slice(12, 16), (0, 1))
    assert 0 <= float(points) <= 0.5 * float(count)  # nobody beats minimax
    # Only the rows of its section depend on the historical opponent.
    same, _, _ = run(roll, params, start, snapshot=roll.team.snapshot(params))
    others = [*range(8), *range(12, 16)]
    np.testing.assert_array_equal(same.tokens[:, others], samples.tokens[:, others])
    assert (same.tokens[:, 8:12] != samples.tokens[:, 8:12]).any()


def test_shares_that_leave_no_row_over():
    bots = [make_bot(GAME, "random"), make_bot(GAME, "minimax")]
    sections = make_sections(10, 0.3, bots, 0.7)
    assert sections.rows == 10 and sections.historical == 0


def test_seats_see_the_game_through_their_symmetry():
    roll = program(symmetry=games.symmetry(GAME))
    start = roll.fresh_games(jax.random.key(3))
    assert len(np.unique(start.symmetry)) > 4
    samples, _, _ = run(roll, params_of(roll), start)
    # Followed through each seat's own symmetry, the moves are those of a real game.
    symmetry = games.symmetry(GAME)
    step, see, map_action = jax.jit(GAME.step), jax.jit(symmetry.apply), jax.jit(symmetry.map_action)
    for row in range(2):
        state = GAME.reset(jax.random.key(0))
        for t in range(4):
            player, through = int(samples.seat[t, row]), start.symmetry[row, int(samples.seat[t, row])]
            shown = tiny_play.prompt().opening_text(see(state, through), player)
            assert samples.tokens[t, row, : samples.context_len[t, row]].tolist() == tiny_play.TOKENIZER.encode(shown)
            move = next(a for a in range(9) if int(map_action(a, through)) == int(samples.action[t, row]))
            state, _ = step(state, jnp.int32(move))


@pytest.mark.nightly
def test_a_free_answer_that_names_no_action_is_an_event_with_its_own_reward():
    policy = tiny_play.policy(free=2)
    roll = program(policy=policy, rows=32, turns=4, parse_failure_reward=-0.5)
    samples, finished, _ = run(roll, params_of(roll), roll.fresh_games(jax.random.key(0)))
    failed, mover = samples.action < 0, samples.seat
    assert failed.mean() > 0.8  # random weights hardly ever name just a cell
    paid = np.take_along_axis(samples.rewards, mover[..., None], -1)[..., 0]
    np.testing.assert_array_equal(paid[failed & ~samples.ends], -0.5)
    assert (samples.turn[1:4] == samples.turn[:3] + 1)[~samples.ends[:3]].all()  # the game continues
    answers = jnp.array([[ord("3"), 259], [ord("3"), 259], [ord("3"), ord("3")], [259, 0], [ord("("), ord("3")]])
    legal = jnp.ones((5, 9), bool).at[1, 2].set(False)
    assert policy.answers.parse(answers, jnp.array([1, 1, 2, 0, 2]), legal).tolist() == [2, -1, -1, -1, 2]


@pytest.mark.nightly
def test_free_answers_of_one_token():
    roll = program(policy=tiny_play.policy(free=1), rows=8, turns=4)
    samples, _, _ = jax.jit(roll.play)(params_of(roll), roll.fresh_games(jax.random.key(0)), jax.random.key(1))
    assert samples.width == 1 and (samples.completion_lengths == 1).all() and (samples.logps < 0).all()


@pytest.mark.nightly
def test_games_against_a_historical_opponent_count_however_long_they_are():
    roll = program(Sections(1, historical=63))
    params = params_of(roll)
    play, state, counted, ended = jax.jit(roll.run), roll.init(jax.random.key(0), params), 0, 0
    for i in range(4):
        _, state, finished = play(params, state, jax.random.key(i))
        counted += int(results(finished, roll.opponents.sections.slices()[0][1], (0, 1))[1])
        ended += int(finished.ended[:, 1:].sum())
    assert counted == ended > 63
    assert 0 < float(state.pool.games[0]) < ended  # recorded in the pool, where older results fade


def test_outcome_only_pays_the_whole_reward_at_the_end():
    roll = program(dense=False, reward_weights=(1.0, 2.0, 0.0))
    samples, finished, _ = run(roll, params_of(roll), roll.fresh_games(jax.random.key(0)))
    ended = np.asarray(finished.ended)
    paid = samples.rewards[:TURNS]
    assert (paid[~ended] == 0).all()
    np.testing.assert_allclose(paid[ended], 2 * np.asarray(finished.total.agent)[ended])


def test_frozen_policies_give_no_samples():
    roll = program(policy=tiny_play.policy(lora=2), rows=4, turns=4, learns=(True, False))
    samples, _, _ = run(roll, params_of(roll), roll.fresh_games(jax.random.key(0)))
    np.testing.assert_array_equal(samples.loss_weights[:4], samples.seat[:4] == 0)


def test_metrics_count_games():
    params, start, _, finished, _ = played()
    metrics = jax.device_get(game_metrics(finished, ("planner", "executor"), competitive=True))
    assert "draws" in metrics and "draws" not in game_metrics(finished, ("planner", "executor"), competitive=False)
    assert metrics["games"] == np.asarray(finished.ended).sum()
    assert 5 <= metrics["game_length"] <= 9
    assert metrics["reward/planner"] == pytest.approx(-metrics["reward/executor"])
    # Calling the rollout plays the same games with a separate key, and counts the tokens.
    samples, state, found = jax.device_get(
        jax.jit(program().__call__)(params, GameRolloutState(start), jax.random.key(1))
    )
    assert state.pool is None and state.games.episode.sum() == found["games"]
    learnt = in_time(samples)
    assert found["completions"] == ROWS * TURNS and found["parse_failure_rate"] == 0 and found["completion_length"] == 1
    assert found["tokens"] == (learnt.context_len + learnt.completion_lengths)[:TURNS].sum()
    assert found["prompt_length"] == pytest.approx(learnt.context_len[:TURNS].mean())


def with_bot(**kwargs):
    """A program whose second seat is minimax's."""
    return dataclasses.replace(program(**kwargs), seating=Seating(((0,), (-1,)), (None, make_bot(GAME, "minimax"))))


def test_a_seat_can_belong_to_a_bot_for_good():
    roll = with_bot()
    samples, finished, _ = run(roll, params_of(roll), roll.fresh_games(jax.random.key(0)))
    np.testing.assert_array_equal(samples.policy, np.where(samples.seat == 0, 0, -1))
    np.testing.assert_array_equal(samples.loss_weights[:TURNS], samples.seat[:TURNS] == 0)
    finished = jax.device_get(finished)
    assert (finished.total.agent[..., 0][finished.ended] <= 0).all() and finished.ended.any()


@pytest.mark.nightly
def test_a_bot_keeps_its_seat_where_others_sit_opposite():
    roll = with_bot(sections=Sections(0, bots=((make_bot(GAME, "random"), ROWS),)))
    start = roll.fresh_games(jax.random.key(0))
    samples, finished, _ = run(roll, params_of(roll), start)
    assert (start.seat == 0).all()
    np.testing.assert_array_equal(samples.loss_weights[:TURNS], samples.seat[:TURNS] == 0)
    finished = jax.device_get(finished)
    assert (finished.total.agent[..., 0][finished.ended] <= 0).all() and finished.ended.any()
