"""Populations: who plays whom with which shares, exact results, and resuming."""

import json

import jax
import numpy as np
import pytest

from configs import defaults
from envs.games import exact
from envs.games.equilibria import nash_average
from envs.games.registry import make
from marl_jax import setup as setups
from marl_jax.errors import ConfigError, RunError
from marl_jax.evaluation.exact_play import ExactPlay
from marl_jax.evaluation.population import Population, Standings
from marl_jax.modes import population, train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import saved, validate
from marl_jax.setup.members import with_opponents
from marl_jax.setup.weights import restore_weights
from tests.marl_jax import tiny_run


def config_of(method, rounds=2, game="kuhn", steps=2):
    config = tiny_run.get_config()
    config.env = defaults.environment(game)
    config.env.update(dict(text="brief", style="plain"))
    config.steps = steps
    config.population.update(dict(method=method, rounds=rounds, steps=2))
    return config


def results(workdir):
    return json.loads((workdir / population.FILE).read_text())["rounds"]


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.nightly)])
def rounds(request):
    """The number of responses in the population."""
    return request.param


@pytest.fixture(scope="module")
def psro(rounds, tmp_path_factory):
    """A population with a response per round; one of two rounds was stopped after the first and continued."""
    workdir = tmp_path_factory.mktemp("runs") / "psro"
    population.main(config_of("psro", rounds=1), workdir)
    if rounds > 1:
        first = (workdir / "members" / "response-01" / "metrics.jsonl").stat().st_mtime_ns
        population.main(config_of("psro", rounds=rounds), workdir)
        assert (workdir / "members" / "response-01" / "metrics.jsonl").stat().st_mtime_ns == first
    return workdir


@pytest.fixture(scope="module")
def newest(rounds, psro):
    """The folder of the last response."""
    return psro / "members" / f"response-{rounds:02}"


def test_payoffs_and_exploitability_are_exact(psro, rounds):
    members = [psro / "members" / f"response-{i:02}" for i in range(rounds + 1)]
    setup = setups.make(saved.read(members[0]), workdir=members[0])
    tree, play = exact.build(make("kuhn")), ExactPlay(setup.game, setup.seated(), 16)
    with jax.set_mesh(setup.mesh):
        tables = [play.policy(restore_weights(setup, member)[1]) for member in members]
    last = results(psro)[-1]
    for i, one in enumerate(tables):
        for j, other in enumerate(tables):
            first = exact.expected_returns(tree, np.where(tree.seat[:, None] == 0, one, other))[0]
            second = exact.expected_returns(tree, np.where(tree.seat[:, None] == 1, one, other))[1]
            assert last["payoffs"][i][j] == pytest.approx((first + second) / 2, abs=1e-9)
        assert last["of_members"][i] == pytest.approx(exact.exploitability(tree, one), abs=1e-9)
    shares = nash_average(np.array(last["payoffs"]))[0]
    np.testing.assert_allclose(last["shares"], shares, atol=1e-9)
    mixture = exact.mixture(tree, np.stack(tables), np.stack([shares, shares]))
    assert last["exploitability"] == pytest.approx(exact.exploitability(tree, mixture), abs=1e-9)


def test_a_member_responds_to_the_equilibrium_from_the_first_weights(psro, newest):
    before, last = results(psro)[-2:]
    config = saved.read(newest)
    shares = {name: share for name, share in zip(before["names"], before["shares"], strict=True) if share >= 1e-3}
    assert last["opponents"][newest.name] == pytest.approx(shares)
    assert [name.rpartition("/")[2] for name in config.opponents.members] == list(shares)
    assert config.opponents.self_play_frac == 0 and not config.opponents.prioritized
    assert config.model.init_from.endswith("members/response-00")
    assert last["best_gain"] == before["exploitability"] >= last["gain"][newest.name]


def test_the_pool_has_the_policies_of_the_members_and_is_saved(psro, newest):
    config = saved.read(newest)
    setup = setups.make(config, workdir=newest)
    with jax.set_mesh(setup.mesh):
        state = setup.rollout.init(jax.random.key(0), {"main": setup.backbone.weights_at_start()[0]})
        pool = with_opponents(setup, state).pool
    n = len(config.opponents.members)
    assert pool.step.tolist() == [*range(n), *[-1] * (len(pool.step) - n)]
    np.testing.assert_allclose(pool.share[:n], config.opponents.shares, rtol=1e-6)
    for place, member in enumerate(config.opponents.members):
        own = restore_weights(setup, psro / "members" / member.rpartition("/")[2])[1]["main"]["model"]
        jax.tree.map(lambda x, y, k=place: np.testing.assert_array_equal(x[k], y), pool.snapshots["main"]["model"], own)
    assert not setup.rollout.changes_after(25)


def test_the_least_exploitable_mixture_is_below_every_member_and_the_equilibrium(psro):
    folders = sorted((psro / "members").iterdir())
    setup = setups.make(saved.read(folders[0]), workdir=folders[0])
    members = Population(setup, "least_exploitable")
    for folder in folders:
        members.add(folder)
    standings = members.standings()
    assert standings.exploitability <= min(*standings.of_members, results(psro)[-1]["exploitability"]) + 1e-4
    assert standings.shares.sum() == pytest.approx(1)
    equilibrium = nash_average(standings.payoffs)[0]
    np.testing.assert_allclose(standings.opponents, (standings.shares + equilibrium) / 2)
    tree, tables = exact.build(make("kuhn")), np.stack(members._policies)
    mixture = exact.mixture(tree, tables, np.stack([standings.opponents] * 2))
    assert standings.best_gain == pytest.approx(exact.exploitability(tree, mixture))
    assert standings.best_gain >= standings.exploitability - 1e-4


@pytest.mark.nightly
def test_members_that_share_programs_are_ordinary_runs(newest, tmp_path):
    train.train(saved.read(newest), tmp_path / "alone")
    rows = [read_json_lines(folder / "metrics.jsonl") for folder in (newest, tmp_path / "alone")]
    timed = ("time", "seconds", "per_s", "memory", "device_idle")
    own, alone = ([{k: v for k, v in row.items() if not any(t in k for t in timed)} for row in one] for one in rows)
    assert own == alone


def test_results_are_a_table_and_a_page(psro, newest, rounds):
    table = (psro / "population.md").read_text()
    assert f"| {newest.name} |" in table and table.count("\n|") == 5 + 2 * rounds
    page = (psro / "population.html").read_text()
    assert "newest response" in page and "<svg" in page


@pytest.mark.nightly
def test_a_league_has_a_main_policy_and_two_exploiters(tmp_path):
    population.main(config_of("league", rounds=1, game="tic_tac_toe"), tmp_path)
    last = results(tmp_path)[-1]
    assert last["names"] == ["main-00", "main-01", "main_exploiter-01", "league_exploiter-01"]
    assert last["exploitability"] is None
    payoffs = np.array(last["payoffs"])
    np.testing.assert_array_equal(payoffs, -payoffs.T)
    with pytest.raises(RunError, match="folder of a run or sweep"):
        population.main(config_of("league"), tmp_path / "members" / "main-00")


@pytest.mark.quick
def test_members_of_a_league():
    shares = np.ones(3) / 3
    standings = Standings(("main-00", "main-01", "main_exploiter-01"), np.zeros((3, 3)), shares, shares)
    config = config_of("league")
    main = population.main_policy(2, standings, config)
    assert (main.name, main.start, main.prioritized, main.self_play_frac) == ("main-02", "main-01", True, 0.35)
    assert set(main.opponents) == set(standings.names)
    exploiter = population.main_exploiter(2, standings, config)
    assert (exploiter.start, dict(exploiter.opponents)) == ("main-00", {"main-01": 1.0})
    assert population.league_exploiter(2, standings, config).prioritized
    settings = population.member_config(config, main, 2, population.Path("members"))
    assert settings.opponents.pool_size == 7 and settings.seed == 2


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env.name": "hanabi"}, "must be '' except for competitive games for two"),
        (
            {"population.meta_solver": "least_exploitable", "env.name": "tic_tac_toe"},
            "must be 'nash' unless the game can",
        ),
        (
            {"population.meta_solver": "least_exploitable", "rollout.completion": "free"},
            "must be 'nash' unless the game",
        ),
        ({"opponents.pool_size": 3, "opponents.self_play_frac": 0.5}, "a population sets them for each member"),
        ({"population.method": "", "opponents.members": ("no/such",)}, "must have folders of existing runs"),
        ({"population.method": "", "opponents.shares": (0.5,)}, "must have one for each run in members"),
        ({"population.method": "", "opponents.shares": (0.0,)}, "numbers >= 0, not all of them 0"),
        ({"population.method": "", "opponents.members": ("a",)}, "must have at most pool_size: 0"),
    ],
)
def test_invalid_populations_are_refused(changes, message):
    config = config_of("psro")
    for name, value in changes.items():
        group, _, field = name.rpartition(".")
        config[group][field] = value
    if "env.name" in changes:
        config.env.params = {}
    with pytest.raises(ConfigError, match=message):
        validate.check(config)


def test_members_of_another_game_are_refused(psro):
    config = tiny_run.get_config("pool")
    config.opponents.members = (str(psro / "members" / "response-00"),)
    setup = setups.make(config)
    with jax.set_mesh(setup.mesh), pytest.raises(RunError, match="not a run of tic_tac_toe like this one"):
        state = setup.rollout.init(jax.random.key(0), {"main": setup.backbone.weights_at_start()[0]})
        with_opponents(setup, state)


def test_a_missing_member_is_named(newest, tmp_path):
    config = saved.read(newest).unlock()
    config.opponents.members = (str(tmp_path / "gone"),)
    with pytest.raises(ConfigError, match="gone"):
        validate.check(config)
    assert Checkpoints(newest, read_only=True).latest == 2
    validate.check(config, workdir=newest)  # its checkpoint has the pool
