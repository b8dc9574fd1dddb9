"""Exact play: the policy table equals the sampling probabilities, and evaluations have its row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults
from envs.games import exact
from marl_jax import setup as setups
from marl_jax.errors import ConfigError
from marl_jax.evaluation import games, match_results, matches
from marl_jax.evaluation.exact_play import ExactPlay
from marl_jax.rollouts.games import look
from marl_jax.schema import validate
from marl_jax.web import report
from tests.marl_jax import tiny_run
from tests.marl_jax.evaluation.test_evaluate import result
from tests.marl_jax.tiny_engine import quick_jit


def config_of(game, text="brief", **params):
    config = tiny_run.get_config()
    config.env = defaults.environment(game, **params)
    config.env.update(dict(text=text, style="plain"))
    return config


def per_seat(config, rank):
    """A policy for each seat: adapters on one model, or two models."""
    config.agents = dict(seat_0="first", seat_1="second")
    config.policies = dict(first=defaults.policy(), second=defaults.policy())
    config.model.lora.rank = rank
    return config


CONFIGS = {
    "names of several tokens": lambda: config_of("kuhn", "compact"),
    "adapters": lambda: per_seat(config_of("kuhn"), rank=2),
    "two models": lambda: per_seat(config_of("kuhn"), rank=0),
}


def start(config):
    """Setup, and weights that differ slightly from the initial ones so that adapters have an effect."""
    validate.check(config)
    setup = setups.make(config)
    weights = {}
    for backbone in setup.backbones:
        trained, frozen = backbone.weights_at_start()
        key = jax.random.key(backbone.number)
        noisy = jax.tree.map(lambda x, key=key: x + 0.1 * jax.random.normal(key, x.shape), trained)
        weights[backbone.name] = {**frozen, **noisy}
    return setup, weights


@pytest.mark.nightly_for("adapters", "two models")
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_table_is_what_answers_are_drawn_from(kind):
    """Probabilities reported by sampling equal those of the table in every information set."""
    setup, weights = start(CONFIGS[kind]())
    team, game = setup.team, setup.game
    play = ExactPlay(game, setup.seated(), rows=5)  # of 12: several parts
    table = play.policy(weights)
    np.testing.assert_allclose(table.sum(1), 1.0)
    assert not table[~play.tree.legal].any() and len(np.unique(table[:, 0].round(6))) > 6

    @quick_jit
    def draw(weights, key):
        seat, turn = jnp.asarray(play.tree.seat), jnp.asarray(play.tree.turn)
        policy = setup.seated().policy(seat, turn)
        seen = look(game, team, jax.tree.map(jnp.asarray, play.tree.states), seat, policy)
        keys = jax.random.split(key, len(seat))
        return team.act(team.prepare_for_sampling(weights), seen.prompts, seen.lengths, seen.legal, keys, policy)

    rows = np.arange(len(table))
    for seed in range(3):
        drawn = draw(weights, jax.random.key(seed))
        expected = np.exp(np.asarray(drawn.logps, np.float64).sum(1))
        np.testing.assert_allclose(table[rows, np.asarray(drawn.action)], expected, rtol=2e-4)
    found = play(weights)
    assert found.nash_conv == pytest.approx(exact.nash_conv(play.tree, table)) and found.nash_conv > 0
    assert found.exploitability == pytest.approx(found.nash_conv / 2)
    assert sum(found.returns) == pytest.approx(0, abs=1e-9)


def test_every_evaluation_has_the_row_and_the_report_shows_it():
    config = config_of("kuhn")
    config.eval.opponents = ()
    setup, weights = start(config)
    (exact_row,) = games.GameEvaluation(setup)(weights)
    assert exact_row["opponent"] == "best_response"
    assert exact_row["exploitability"] == exact_row["nash_conv"] / 2 == exact_row["exploitability_low"] > 0
    rows = [{"step": step, **exact_row} for step in (0, 1)]
    page = report.build(config.to_dict(), [{"step": 1, "loss": 0.0}], rows, [], {}, {})
    assert f"<td>{report.label(exact_row['nash_conv'])}</td>" in page and "exploitability, best_response" in page


def test_payoffs_are_reported_where_games_have_stakes():
    game = setups.make(config_of("kuhn")).game
    seating = np.asarray(matches.in_turns(4, (0, 1)))
    row = match_results.match_metrics(game, result([[2, -2], [1, -1], [-1, 1], [2, -2]]), seating, 0.95)
    assert row["payoff"] == pytest.approx((2 - 1 - 1 - 2) / 4)
    assert row["payoff_low"] < row["payoff"] < row["payoff_high"]
    assert next(name for name in row if f"{name}_low" in row) == "payoff"


@pytest.mark.parametrize(
    ("changes", "is_exact"),
    [
        ({}, True),
        ({"rollout.completion": "free"}, False),
        ({"env.context": "history"}, False),
        ({"agents": {"seat_0": "main", "seat_1": "bot:equilibrium"}}, False),
        ({"env.name": "tic_tac_toe"}, False),
    ],
)
def test_only_policies_that_can_be_tabulated_are(changes, is_exact):
    config = config_of("kuhn")
    for name, value in changes.items():
        *groups, field = name.split(".")
        functools.reduce(lambda at, group: at[group], groups, config)[field] = value
    assert games.is_exact(setups.make(config)) == is_exact


def test_the_best_checkpoint_may_be_that_of_least_exploitability():
    config = config_of("leduc")
    config.eval.every = 1
    config.checkpoint.update(dict(best_metric="best_response/exploitability", best_mode="min"))
    validate.check(config)
    config.checkpoint.best_metric = "best_response/win_rate"
    with pytest.raises(ConfigError, match="where METRIC is one of: .*exploitability, nash_conv"):
        validate.check(config)
    config.env = defaults.environment("tic_tac_toe")
    config.checkpoint.best_metric = "best_response/exploitability"
    with pytest.raises(ConfigError, match="but must be OPPONENT/METRIC, where OPPONENT"):
        validate.check(config)
