"""Evaluation in games: matches, metrics with intervals, and round robins."""

import functools
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults
from envs.games import view
from envs.games.bots import UniformBot
from envs.games.game import Reward
from envs.games.tic_tac_toe.bots import MinimaxBot
from envs.games.tic_tac_toe.rules import TicTacToe
from marl_jax import setup as setups
from marl_jax.agents import critics
from marl_jax.errors import RunError
from marl_jax.evaluation import contestants, intervals, match_results, matches, records, round_robin
from marl_jax.evaluation import games as game_evaluation
from marl_jax.evaluation.matches import Match, Played
from marl_jax.modes import evaluate
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.setup.run_fingerprint import check_run, run_fingerprint
from marl_jax.setup.weights import restore_weights
from tests.marl_jax import tiny_play, tiny_puzzle, tiny_run

GAME = TicTacToe()


def result(agent):
    agent = jnp.asarray(agent, jnp.float32)
    games = len(agent)
    total = Reward(jnp.zeros(games), agent, jnp.zeros_like(agent))
    return Played(total, jnp.full((games,), 7), *(jnp.zeros((1, games)),) * 5)


def test_metrics_are_those_of_contestant_zero_in_whatever_seat():
    seating = np.asarray(matches.in_turns(4, (0, 1)))
    np.testing.assert_array_equal(seating, [[0, 1], [1, 0], [0, 1], [1, 0]])
    row = match_results.match_metrics(GAME, result([[1, -1], [1, -1], [0, 0], [-1, 1]]), seating, 0.95)
    assert (row["win_rate"], row["draw_rate"], row["loss_rate"]) == (0.5, 0.25, 0.25)
    assert (row["win_rate_seat_0"], row["win_rate_seat_1"]) == (0.5, 0.5)
    assert row["win_rate_low"] < 0.5 < row["win_rate_high"] and row["game_length"] == 7
    assert row["score"] == 0.5 + 0.25 / 2 and row["score_low"] < row["score"] < row["score_high"]
    line = intervals.describe({"opponent": "random", **row})
    assert line.startswith("random: score 0.625 [") and line.endswith("win 0.500, draw 0.250, loss 0.250")
    assert len(line) < 80


def test_minimax_never_loses_and_mostly_beats_random():
    seating = matches.in_turns(200, (0, 1))
    played = Match(GAME, (MinimaxBot(), UniformBot(GAME)))((None, None), seating, jax.random.key(0), 0.0)
    row = match_results.match_metrics(GAME, played, np.asarray(seating), 0.95)
    assert row["loss_rate"] == 0 and row["win_rate"] > 0.8
    # An additional contestant that never moves changes nothing.
    three = Match(GAME, (MinimaxBot(), MinimaxBot(), UniformBot(GAME)))
    again = three((None,) * 3, 2 * seating, jax.random.key(0), 0.0)
    jax.tree.map(np.testing.assert_array_equal, played, again)


def test_all_bots_are_met_in_one_match_and_the_team_alone_too():
    config = small()
    config.eval.opponents = ("random", "minimax")
    plan = list(game_evaluation.GameEvaluation(setups.make(config))._plan({}, baselines=False))
    assert [(name, set(seating.ravel().tolist())) for name, _, _, seating in plan] == [
        ("random", {0, 1}), ("minimax", {0, 2}),
    ]  # fmt: skip
    assert len({id(match) for _, match, _, _ in plan}) == 1
    alone, *_ = game_evaluation.GameEvaluation(setups.make(small_plan()))._plan({}, baselines=False)
    assert alone[0] == "self" and not alone[3].any()


def seated(policy, prompt):
    """One policy in both seats."""
    return SeatedTeam(tiny_play.team(policy, prompt), tiny_play.seating(0, 0))


def weights_of(contestant, seed=0):
    return {"main": tiny_play.weights(contestant.team.backbones[0].policy, seed)[0]}


@pytest.fixture(scope="module")
def player():
    return seated(tiny_play.policy(), tiny_play.prompt())


@pytest.mark.nightly
def test_a_greedy_policy_plays_the_same_game_twice_and_it_can_be_written_out(player):
    trained = weights_of(player)
    match = Match(GAME, (player, UniformBot(GAME)))
    seating, key = matches.in_turns(4, (0, 1)), jax.random.key(3)
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


def test_values_are_what_the_critic_says_of_the_prompt(player):
    """Values equal those of a forward pass over the prompts; bots have none."""
    trained, policy = weights_of(player), player.team.backbones[0].policy
    seating, key = matches.in_turns(2, (0, 1)), jax.random.key(3)
    match = Match(GAME, (player, UniformBot(GAME)), values=True)
    played = match((trained, None), seating, key, 0.0)
    games = records.write_out(match, played, seating, key, ["tiny", "random"], "eval")
    moves = [move for game in games for move in game.moves]
    assert [move.value is None for move in moves] == [not move.prompt for move in moves]
    asked = [move for move in moves if move.prompt]
    tokens = jnp.asarray([tiny_play.TOKENIZER.encode(move.prompt) for move in asked])
    forward = jax.jit(functools.partial(policy.model.forward, dtype=jnp.float32))
    hidden, _ = forward(trained["main"]["model"], tokens)
    expected = critics.read(trained["main"]["critic"], hidden[:, -1])
    np.testing.assert_allclose([move.value for move in asked], expected, atol=1e-4)
    assert np.ptp(expected) > 1e-3


def test_temperature_decides_between_the_likeliest_and_a_draw(player):
    trained = weights_of(player)
    match = Match(GAME, (player,))
    greedy = match((trained,), matches.alone(16, 2), jax.random.key(0), 0.0)
    assert len(np.unique(greedy.action[:, :], axis=1).T) == 1
    drawn = match((trained,), matches.alone(16, 2), jax.random.key(0), 1.0)
    assert len(np.unique(drawn.action[:, :], axis=1).T) > 8


def test_everyone_against_everyone_and_elo():
    both = [contestants.Contestant("minimax", MinimaxBot()), contestants.Contestant("random", UniformBot(GAME))]
    played = round_robin.round_robin(GAME, both, 100, jax.random.key(0), 0.0)
    table, draws, distinct, *_ = played
    assert distinct[0, 1] == 100 and distinct[0, 0] == 0 and 0 <= draws[0, 1] < 0.3
    assert table[0, 1] > 0.85 and table[0, 1] + table[1, 0] == pytest.approx(1) and table[0, 0] == 0.5
    rated = round_robin.ratings(played)
    strong, weak = rated["elo"]
    assert strong > weak + 200 and strong + weak == pytest.approx(2000)
    assert rated["elo_low"][0] < strong < rated["elo_high"][0]
    assert rated["nash_share"] == pytest.approx([1, 0]) and rated["nash_average"] == pytest.approx(
        [0, table[1, 0] - 0.5]
    )


def rated(points, games=100):
    """Ratings of contestants with these points against each other, without draws."""
    games = games * (1 - np.eye(len(points)))
    return round_robin.ratings(round_robin.RoundRobin(np.asarray(points), 0 * games, games))


def test_rock_paper_and_scissors_are_equal_whatever_the_rating():
    points = 0.5 + np.array([[0, 0.5, -0.5], [-0.5, 0, 0.5], [0.5, -0.5, 0]])
    columns = rated(points)
    assert columns["elo"] == pytest.approx([1000] * 3)
    assert columns["nash_average"] == pytest.approx([0] * 3) and columns["nash_share"] == pytest.approx([1 / 3] * 3)
    assert np.ptp(rated(np.where(points == 0.5, 0.5, 0.9 * points + 0.05))["elo_low"]) < 60


def test_a_copy_changes_elo_but_not_the_nash_average():
    points = 0.5 + np.array([[0, 0.4, -0.3], [-0.4, 0, 0.2], [0.3, -0.2, 0]])
    copied = [0, 1, 2, 1]
    once, twice = rated(points), rated(points[np.ix_(copied, copied)])
    assert np.abs(np.subtract(once["elo"], twice["elo"][:3])).max() > 20
    assert twice["nash_average"][:3] == pytest.approx(once["nash_average"], abs=1e-6)
    assert twice["nash_share"][1] + twice["nash_share"][3] == pytest.approx(once["nash_share"][1], abs=1e-6)


def test_cross_play_compares_the_diagonal_with_the_rest():
    table = np.array([[10.0, 4.0], [6.0, 8.0]])
    assert round_robin.cross_play(table) == {"self_play": 9.0, "cross_play": 5.0, "gap": 4.0}


# ------------------------------------------------------------------------------------------------- distinct games


@pytest.mark.nightly
def test_levels_are_walked_and_repeats_count_once():
    game = tiny_puzzle.game().held_out()  # 8 levels, planner and executor
    team = seated(tiny_puzzle.policy(), tiny_puzzle.prompt())
    trained = weights_of(team)
    match = match_results.new_match(game, (team,))
    seating, key = matches.alone(20, 2), jax.random.key(3)
    played = jax.device_get(match((trained,), seating, key, 0.0))
    written = records.write_out(match, played, seating, key, ["tiny"], "eval")
    for row, record in enumerate(written):
        assert record.start_board == view.board(game, game.reset_level(row % 8))
        assert len(record.moves) == played.length[row]
        how, score = "solved" if played.success[row] else "not solved", np.mean(record.scores)
        assert record.result == f"{how} with score {score:.3g}"

    same = match_results.repeats(match, played, np.asarray(seating), 0.0)
    np.testing.assert_array_equal(same, same[np.arange(20) % 8])
    assert len(np.unique(same)) == 8 and len(np.unique(match_results.repeats(match, played, seating, 1.0))) == 20
    row = match_results.match_metrics(game, played, np.asarray(seating), 0.95, same)
    rate = np.mean(played.success)
    assert row["success"] == pytest.approx(rate)
    assert (row["success_low"], row["success_high"]) == pytest.approx(intervals.wilson(8 * rate, 8)[1:])
    score = played.total.team + played.total.agent.mean(1)
    assert row["score_high"] - row["score_low"] > 1.2 * np.subtract(*intervals.bootstrap(score)[:0:-1])


def test_drawn_starts_of_training_games_stay_drawn(player):
    game = tiny_puzzle.game()
    match, key = Match(game, (UniformBot(game),)), jax.random.key(0)
    levels = [int(match.reset(k, row).inner.level) for row, k in enumerate(match.start_keys(key, 12))]
    assert levels != list(range(12)) and len(set(levels)) > 4


@pytest.mark.nightly
def test_two_greedy_checkpoints_have_two_games_and_against_chance_all_count(player):
    first, second = (weights_of(player, seed) for seed in (0, 1))
    three = [contestants.Contestant(name, player, w) for name, w in (("a", first), ("b", second))]
    three.append(contestants.Contestant("random", UniformBot(GAME)))
    distinct = round_robin.round_robin(GAME, three, 16, jax.random.key(0), 0.0).distinct
    np.testing.assert_array_equal(distinct, [[0, 2, 16], [2, 0, 16], [16, 16, 0]])
    won = np.array([[0.5, 1.0], [0.0, 0.5]])
    gap = lambda n: np.subtract(*rated(won, n)["elo"])  # noqa: E731
    assert 0 < gap(2) < gap(512) / 3


def test_an_answer_that_names_no_move_is_reported(player):
    free = seated(tiny_play.policy(free=3), tiny_play.prompt())
    trained = weights_of(free)
    match = Match(GAME, (free, UniformBot(GAME)))
    seating, key = matches.in_turns(4, (0, 1)), jax.random.key(0)
    played = jax.device_get(match((trained, None), seating, key, 0.0))
    told = 0
    for game in records.write_out(match, played, seating, key, ["tiny", "random"], "eval"):
        for move in game.moves:
            parse_failure_reward = game.players[move.player] == "tiny" and move.answer != move.action
            assert move.error == ("names no legal move; a random one was played" if parse_failure_reward else "")
            told += parse_failure_reward
    assert told, "or the test cannot fail"


# ---------------------------------------------------------------------------------------------- runs on the disk


def small(**env):
    """Return the config of the tiny run, or of another game."""
    config = tiny_run.get_config()
    if env:
        config.env = defaults.environment(**env)
        config.env.update(dict(text="brief", style="plain"))
    return config


def small_plan():
    """Return Plan-Path with planner and executor, with batches that eight devices can divide."""
    config = tiny_puzzle.get_config()
    config.algo.update(dict(minibatches=1, grad_accum_steps=1))
    return config


def save(folder, config):
    """Write a run with one checkpoint, at step 1, with its initial weights."""
    made = setups.make(config)
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, {"trained": {"main": made.backbone.weights_at_start()[0]}}, {"run": run_fingerprint(made)})
    checkpoints.close()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with the same folder name: (setup, folder, folder)."""
    one, other = (tmp_path_factory.mktemp(name) / "run" for name in "ab")
    config = small()
    config.rollout.max_new_tokens = 5
    save(other, config)
    return save(one, small()), one, other


def test_a_checkpoint_is_read_only_by_its_own_kind_of_run(runs):
    setup, folder, _ = runs
    assert restore_weights(setup, folder)[0] == restore_weights(setup, folder, "1")[0] == 1
    other_game = setups.make(small(name="connect_four"))
    with pytest.raises(RunError, match="from another run: env.name is 'tic_tac_toe' there and 'connect_four' here"):
        restore_weights(other_game, folder)
    with pytest.raises(RunError, match="has no checkpoint of step 999; the step must be one of: 1"):
        restore_weights(setup, folder, "999")
    with pytest.raises(RunError, match="has no best checkpoint: none has a value of checkpoint.best_metric"):
        restore_weights(setup, folder, "best")


def test_another_size_is_accepted_and_other_rules_texts_or_models_are_not(tmp_path):
    config = small_plan()
    run = json.loads(json.dumps(run_fingerprint(setups.make(config))))

    def check(**changes):
        changed = small_plan()
        for place, value in changes.items():
            *groups, field = place.split("__")
            here = changed
            for group in groups:
                here = here[group]
            here[field] = value
        check_run(run, setups.make(changed), tmp_path)

    check(env__params__size=6, env__params__budget=16, env__params__goal_reward=3.0, seed=5)
    check(env__params__planner_weight=0.5)
    for place, value, message in (
        ("env__params__view", "local", "env.params.view is None there and 'local' here"),
        ("env__text", "full", "env.text is 'brief' there and 'full' here"),
        ("model__shape__d_ff", 32, "'d_ff': 16.* there and .*'d_ff': 32"),
        ("model__lora__rank", 2, "models.main.lora is {} there"),
    ):
        with pytest.raises(RunError, match=message):
            check(**{place: value})
    asked = small_plan()
    asked.env.update(dict(text="full", reasoning=True))
    asked.rollout.update(dict(completion="free", max_new_tokens=16))
    asks, does_not = (
        json.loads(json.dumps(run_fingerprint(setups.make(asked)))) for asked.env.reasoning in (True, False)
    )
    assert asks["env"]["reasoning"] and not does_not["env"]["reasoning"]
    with pytest.raises(RunError, match="env.reasoning is False there and True here"):
        asked.env.reasoning = True
        check_run(does_not, setups.make(asked), tmp_path)
    lora = small_plan()
    lora.model.lora.rank = 2
    run = json.loads(json.dumps(run_fingerprint(setups.make(lora))))
    with pytest.raises(RunError, match="config.seed is 0 there and 5 here"):  # the base is initialized from it
        check(model__lora__rank=2, seed=5)


def test_opponents_by_folder(runs, tmp_path):
    setup, one, other = runs
    named = contestants.find_contestants(("random", str(one), str(other), f"{one}@1", str(one)), setup)
    assert [c.name for c in named] == ["random", str(one), str(other), "run@1"]
    with pytest.raises(RunError, match="@last', but its step must be 'newest'"):
        contestants.find_contestant(f"{one}@last", setup)
    saved = json.loads((one / "config.json").read_text())
    saved["mesh"]["data"] = 3  # from another machine
    saved["rollout"]["num_envs"] = 3
    (one.parent / "meshed").mkdir()
    (one.parent / "meshed" / "config.json").write_text(json.dumps(saved))
    (one.parent / "meshed" / "checkpoints").symlink_to(one / "checkpoints")
    assert contestants.find_contestant(str(one.parent / "meshed"), setup).weights
    del saved["model"]["name"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(
        RunError, match=f"{tmp_path}/config.json is not the config of a run that this version can play: .*name"
    ):
        contestants.find_contestant(str(tmp_path), setup)


def test_an_opponent_keeps_its_own_dtype_and_length_of_answers(runs):
    setup = runs[0]
    for field, value in (("dtype", "bfloat16"), ("max_new_tokens", 5)):
        config = small()
        config.rollout.completion = "free"
        free = setups.make(config)
        (config.model if field == "dtype" else config.rollout)[field] = value
        assert contestants._shape(setups.make(config)) != contestants._shape(free)
    assert contestants._shape(setups.make(small())) == contestants._shape(setup)


def test_cross_play_is_among_policies_on_levels_that_training_never_sees(monkeypatch):
    setup = setups.make(small_plan())
    table = np.array([[10.0, 4.0, 1.0], [6.0, 8.0, 1.0], [1.0, 1.0, 0.0]])
    seen, played = [], round_robin.RoundRobin(table, np.zeros((3, 3)), np.full((3, 3), 8))
    monkeypatch.setattr(round_robin, "round_robin", lambda game, *_: seen.append(game) or played)
    player = setup.seated()
    who = [contestants.Contestant(name, player, {}) for name in "ab"]
    result = round_robin.everyone(setup, [*who, contestants.Contestant("random", UniformBot(setup.game))])
    assert result["cross_play"] == {"self_play": 9.0, "cross_play": 5.0, "gap": 4.0}
    assert seen == [setup.game.held_out()] != [setup.game]


def test_a_cooperative_table_of_real_games():
    game = tiny_puzzle.game().held_out()
    team = seated(tiny_puzzle.policy(), tiny_puzzle.prompt())
    both = [contestants.Contestant(name, team, weights_of(team, seed)) for seed, name in enumerate("ab")]
    table, _, distinct, *_ = round_robin.round_robin(game, both, 16, jax.random.key(0), 0.0)
    np.testing.assert_array_equal(distinct, [[8, 16], [16, 8]])  # 8 levels, with each other in both seats
    assert table[0, 1] == table[1, 0] and len(np.unique(table)) == 3
    np.testing.assert_array_equal(np.argmin(matches.in_turns(8, (0, 1), lap=4), axis=1), [0, 1, 0, 1, 1, 0, 1, 0])
    np.testing.assert_array_equal(np.argmin(matches.in_turns(6, (0, 1), lap=3), axis=1), [0, 1, 0, 1, 0, 1])


def test_only_the_first_process_writes_and_someone_must_be_played(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(game_evaluation.GameEvaluation, "__call__", lambda *_, **__: [])
    monkeypatch.setattr("marl_jax.setup.weights.untuned_weights", lambda setup: {})
    config = small()
    config.eval.opponents = ()
    with pytest.raises(RunError, match="config.eval.opponents is empty, but tic_tac_toe needs at least one opponent"):
        evaluate.main(config, tmp_path / "a")
    config = small_plan()
    with caplog.at_level(logging.INFO):
        evaluate.main(config, tmp_path / "a")
    assert (tmp_path / "a" / "evaluation.json").is_file()
    assert "eval.games is 16, but there are only 8 levels to evaluate on" in caplog.text
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    evaluate.main(config, tmp_path / "b")
    assert not (tmp_path / "b").exists()
