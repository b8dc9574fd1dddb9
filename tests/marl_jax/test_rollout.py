"""Rollouts: what is played, who plays it, and that sampler and learner agree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import registry as games
from envs.games.tic_tac_toe.rules import TicTacToe
from marl_jax.agents.policy import PREFIX_WORTH_KEEPING
from marl_jax.rollouts import games as ro
from marl_jax.rollouts.opponents import make_bot
from tests.marl_jax import tiny_play

GAME = TicTacToe()
ROWS, TURNS = 12, 8


def program(sections=None, policy=None, **kwargs):
    policy = policy or tiny_play.policy()
    sections = sections or ro.Sections(ROWS)
    return ro.Rollout(GAME, tiny_play.prompt(), policy, sections, TURNS, (0, 0), **kwargs)


@functools.cache
def played(seed=0):
    """One rollout of plain self-play: (weights, games at the start, samples, finished, games at the end)."""
    roll = program()
    trained, _ = tiny_play.weights(roll.policy)
    start = roll.start(jax.random.key(seed))
    return trained, start, *_compiled(trained, start, jax.random.key(seed + 1))


def _compiled(*arguments):
    return _program()(*arguments)


@functools.cache
def _program():
    return jax.jit(program())


def test_games_follow_the_rules_and_the_prompt_shows_the_position():
    samples, finished = jax.device_get(played()[2:4])
    prompt = tiny_play.prompt()
    step, legal_of, player_of = jax.jit(GAME.step), jax.jit(GAME.legal), jax.jit(GAME.player)
    for row in range(2):
        state = GAME.reset(jax.random.key(0))
        for t in range(TURNS):
            player = int(player_of(state))
            expected = tiny_play.TOKENIZER.encode(prompt.opening_text(state, player))
            length = int(samples.prompt_lengths[t, row])
            assert samples.tokens[t, row, :length].tolist() == expected
            assert int(samples.agent[t, row]) == player
            np.testing.assert_array_equal(samples.legal[t, row], legal_of(state))
            action = int(samples.action[t, row])
            assert samples.legal[t, row, action]
            assert samples.answers[t, row].tolist() == tiny_play.TOKENIZER.encode(str(action + 1))
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


def test_the_turns_that_look_ahead_teach_nothing_and_are_played_again():
    trained, _, samples, _, after = played()
    assert samples.action.shape == (TURNS + 2, ROWS)
    assert float(samples.weights[:TURNS].min()) == 1 and float(samples.weights[TURNS:].max()) == 0
    following, _, _ = _compiled(trained, after, jax.random.key(9))
    np.testing.assert_array_equal(following.turn[0], samples.turn[TURNS])
    np.testing.assert_array_equal(following.tokens[0, :, :10], samples.tokens[TURNS, :, :10])


def test_same_key_same_samples_and_another_key_others():
    trained, start, samples, _, _ = played()
    again, _, _ = _compiled(trained, start, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, samples, again)
    other, _, _ = _compiled(trained, start, jax.random.key(2))
    assert (np.asarray(other.action) != np.asarray(samples.action)).any()


def test_a_row_does_not_depend_on_its_neighbours():
    trained, start, samples, _, _ = played()
    half = jax.tree.map(lambda x: x[: ROWS // 2], start)
    alone, _, _ = jax.jit(program(ro.Sections(ROWS // 2)))(trained, half, jax.random.key(1))
    np.testing.assert_array_equal(alone.action, samples.action[:, : ROWS // 2])


def test_nothing_is_transferred_while_games_are_played():
    trained, start, *_ = played()
    roll, key = _program(), jax.random.key(1)
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(roll(trained, start, key))
    # On a CPU the guard lets a call of the host from inside a program pass; the program's text shows it.
    sections = ro.make_sections(ROWS, 0.25, [make_bot(GAME, "minimax")], 0.25)
    free = tiny_play.policy(free=4)
    for made in (program(), program(sections), program(sections, free)):
        weights = tiny_play.weights(made.policy)[0]
        text = jax.jit(made).lower(weights, made.start(key), key, made.policy.player(weights)).as_text()
        for word in ("callback", "infeed", "outfeed", "send", "recv"):
            assert f"stablehlo.{word}" not in text and f"@{word}" not in text and f"_{word}" not in text, word


@pytest.mark.parametrize("critic", ["head", "separate", "central"])
def test_a_past_self_needs_no_critic(critic):
    roll = program(ro.Sections(1, past=2), tiny_play.policy(critic=critic))
    trained, _ = tiny_play.weights(roll.policy)
    past = roll.policy.player(tiny_play.weights(roll.policy, seed=5)[0])
    samples, _, _ = jax.jit(roll)(trained, roll.start(jax.random.key(0)), jax.random.key(1), past)
    assert float(jnp.std(samples.values[..., 0])) > 1e-3  # the learner's own are there in all rows


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
    assert (len(policy.prefix) >= PREFIX_WORTH_KEEPING) == (kind == "prefix")
    prompt = tiny_play.prompt(settings.get("style", "brief"))
    roll = ro.Rollout(GAME, prompt, policy, ro.Sections(6), 4, (0, 1) if "lora" in settings else (0, 0), (True, True))
    trained, frozen = tiny_play.weights(policy)
    both = {**frozen, **trained}
    samples, _, _ = jax.jit(roll)(both, roll.start(jax.random.key(0)), jax.random.key(1))
    rows = samples.flat()
    scores = jax.jit(policy.score)(both, rows)
    np.testing.assert_allclose(scores.logps, rows.logps, atol=1e-5)
    np.testing.assert_allclose(scores.values[:, 0], rows.values[:, 0], atol=1e-5)
    assert float(jnp.std(rows.logps.sum(1))) > 1e-3 and float(jnp.std(rows.values[:, 0])) > 1e-3
    if policy.width > 1:
        assert len(np.unique(np.asarray(rows.answer_lengths))) > 1


def test_sections_have_the_right_opponents():
    sections = ro.make_sections(16, self_play_frac=0.5, bots=[make_bot(GAME, "minimax")], bot_frac=0.25)
    assert (sections.own, sections.past, [n for _, n in sections.bots]) == (8, 4, [4])
    roll = program(sections)
    trained, _ = tiny_play.weights(roll.policy)
    past, _ = tiny_play.weights(roll.policy, seed=5)
    start = roll.start(jax.random.key(0))
    samples, finished, _ = jax.jit(roll)(trained, start, jax.random.key(1), roll.policy.player(past))
    seat = np.asarray(start.seat)
    who, player = np.asarray(samples.policy)[:TURNS], np.asarray(samples.agent)[:TURNS]
    weights = np.asarray(samples.weights)[:TURNS]
    assert (who[:, :8] == 0).all()
    first_game = np.asarray(samples.episode)[:TURNS] == 0
    opposite = (player != seat) & first_game
    assert (who[:, 8:][opposite[:, 8:]] == -1).all() and (weights[:, 8:][opposite[:, 8:]] == 0).all()
    assert (who[:, 8:][~opposite[:, 8:] & first_game[:, 8:]] == 0).all()
    # The past self answers with its own weights: the same prompts, other actions.
    without, _, _ = jax.jit(roll)(trained, start, jax.random.key(1), roll.policy.player(trained))
    np.testing.assert_array_equal(without.tokens[0], samples.tokens[0])
    points, count = ro.results(finished, slice(12, 16))
    assert 0 <= float(points) <= 0.5 * float(count)  # nobody beats minimax


def test_shares_that_leave_no_row_over():
    bots = [make_bot(GAME, "random"), make_bot(GAME, "minimax")]
    sections = ro.make_sections(10, 0.3, bots, 0.7)
    assert sections.rows == 10 and sections.past == 0


def test_seats_see_the_game_through_their_symmetry():
    roll = program(symmetry=games.symmetry(GAME))
    trained, _ = tiny_play.weights(roll.policy)
    start = roll.start(jax.random.key(3))
    assert len(np.unique(start.symmetry)) > 4
    samples, _, _ = jax.device_get(jax.jit(roll)(trained, start, jax.random.key(1)))
    # Followed through each seat's own symmetry, the moves are those of a real game.
    symmetry = games.symmetry(GAME)
    step, see, map_action = jax.jit(GAME.step), jax.jit(symmetry.apply), jax.jit(symmetry.map_action)
    for row in range(2):
        state = GAME.reset(jax.random.key(0))
        for t in range(4):
            player, through = int(samples.agent[t, row]), start.symmetry[row, int(samples.agent[t, row])]
            shown = tiny_play.prompt().opening_text(see(state, through), player)
            assert samples.tokens[t, row, :10].tolist() == tiny_play.TOKENIZER.encode(shown)
            move = next(a for a in range(9) if int(map_action(a, through)) == int(samples.action[t, row]))
            state, _ = step(state, jnp.int32(move))


def test_a_free_answer_that_names_no_action_is_an_event_with_its_own_reward():
    policy = tiny_play.policy(free=2)
    roll = ro.Rollout(GAME, tiny_play.prompt(), policy, ro.Sections(32), 4, (0, 0), parse_failure_reward=-0.5)
    trained, _ = tiny_play.weights(policy)
    samples, finished, _ = jax.device_get(jax.jit(roll)(trained, roll.start(jax.random.key(0)), jax.random.key(1)))
    failed, mover = samples.action < 0, samples.agent
    assert failed.mean() > 0.8  # random weights hardly ever write a cell that stands alone
    paid = np.take_along_axis(samples.rewards, mover[..., None], -1)[..., 0]
    np.testing.assert_array_equal(paid[failed & ~samples.ends], -0.5)
    assert (samples.turn[1:4] == samples.turn[:3] + 1)[~samples.ends[:3]].all()  # the game goes on
    answers = jnp.array([[ord("3"), 259], [ord("3"), 259], [ord("3"), ord("3")], [259, 0], [ord("("), ord("3")]])
    legal = jnp.ones((5, 9), bool).at[1, 2].set(False)
    assert policy.free.parser(answers, jnp.array([1, 1, 2, 0, 2]), legal).tolist() == [2, -1, -1, -1, 2]


def test_free_answers_of_one_token():
    policy = tiny_play.policy(free=1)
    roll = ro.Rollout(GAME, tiny_play.prompt(), policy, ro.Sections(8), 4, (0, 0))
    trained, _ = tiny_play.weights(policy)
    samples, _, _ = jax.device_get(jax.jit(roll)(trained, roll.start(jax.random.key(0)), jax.random.key(1)))
    assert samples.answers.shape[-1] == 1 and (samples.answer_lengths == 1).all() and (samples.logps < 0).all()


def test_games_against_a_past_self_count_however_long_they_are():
    roll = program(ro.Sections(1, past=63))
    trained, _ = tiny_play.weights(roll.policy)
    play, games, counted, ended = jax.jit(roll), roll.start(jax.random.key(0)), 0, 0
    for i in range(4):
        _, finished, games = play(trained, games, jax.random.key(i), roll.policy.player(trained))
        counted += int(ro.results(finished, roll.sections.slices()[0][1])[1])
        ended += int(finished.ended[:, 1:].sum())
    assert counted == ended > 63


def test_outcome_only_pays_the_whole_reward_at_the_end():
    roll = program(dense=False, weights=(1.0, 2.0, 0.0))
    trained, _ = tiny_play.weights(roll.policy)
    samples, finished, _ = jax.jit(roll)(trained, roll.start(jax.random.key(0)), jax.random.key(1))
    ended = np.asarray(finished.ended)
    paid = np.asarray(samples.rewards)[:TURNS]
    assert (paid[~ended] == 0).all()
    np.testing.assert_allclose(paid[ended], 2 * np.asarray(finished.total.agent)[ended])


def test_frozen_policies_give_no_samples():
    roll = ro.Rollout(GAME, tiny_play.prompt(), tiny_play.policy(lora=2), ro.Sections(4), 4, (0, 1), (True, False))
    trained, frozen = tiny_play.weights(roll.policy)
    samples, _, _ = jax.jit(roll)({**frozen, **trained}, roll.start(jax.random.key(0)), jax.random.key(1))
    np.testing.assert_array_equal(samples.weights[:4], samples.agent[:4] == 0)


def test_summary_counts_games():
    _, _, _, finished, _ = played()
    figures = jax.device_get(ro.summary(finished, ro.Sections(ROWS), competitive=True))
    assert "draws" in figures and "draws" not in ro.summary(finished, ro.Sections(ROWS), competitive=False)
    assert figures["games"] == np.asarray(finished.ended).sum()
    assert 5 <= figures["game_length"] <= 9
    assert figures["reward/agent_0"] == pytest.approx(-figures["reward/agent_1"])


def test_a_seat_can_belong_to_a_bot_for_good():
    bots = (None, make_bot(GAME, "minimax"))
    roll = ro.Rollout(
        GAME, tiny_play.prompt(), tiny_play.policy(), ro.Sections(ROWS), TURNS, seat_policy=(0, -1), seat_bots=bots
    )
    trained, _ = tiny_play.weights(roll.policy)
    samples, finished, _ = jax.device_get(jax.jit(roll)(trained, roll.start(jax.random.key(0)), jax.random.key(1)))
    np.testing.assert_array_equal(samples.policy, np.where(samples.agent == 0, 0, -1))
    np.testing.assert_array_equal(samples.weights[:TURNS], samples.agent[:TURNS] == 0)
    assert (finished.total.agent[..., 0][finished.ended] <= 0).all() and finished.ended.any()


def test_a_bot_keeps_its_seat_where_others_sit_opposite():
    minimax, weak = make_bot(GAME, "minimax"), make_bot(GAME, "random")
    sections = ro.Sections(0, bots=((weak, ROWS),))
    roll = ro.Rollout(
        GAME, tiny_play.prompt(), tiny_play.policy(), sections, TURNS, seat_policy=(0, -1), seat_bots=(None, minimax)
    )
    trained, _ = tiny_play.weights(roll.policy)
    start = roll.start(jax.random.key(0))
    samples, finished, _ = jax.device_get(jax.jit(roll)(trained, start, jax.random.key(1)))
    assert (start.seat == 0).all()
    np.testing.assert_array_equal(samples.weights[:TURNS], samples.agent[:TURNS] == 0)
    assert (finished.total.agent[..., 0][finished.ended] <= 0).all() and finished.ended.any()
