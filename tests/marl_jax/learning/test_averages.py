"""Moving averages: seat baselines and the magnet, and the entropy schedule."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.games.tic_tac_toe.rules import TicTacToe
from marl_jax import setup as setups
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms.algorithm import ClippedObjective
from marl_jax.algorithms.ppo import PPO
from marl_jax.dryrun import programs
from marl_jax.errors import ConfigError
from marl_jax.learning import averages
from marl_jax.learning.learn_step import optimizer_for, scheduled_values
from marl_jax.learning.update import Scheduled
from marl_jax.modes import train
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from marl_jax.setup.train_programs import at_start
from tests.marl_jax import tiny_play
from tests.marl_jax.evaluation.test_exact_play import config_of
from tests.marl_jax.tiny_engine import quick_jit
from tests.marl_jax.tiny_samples import by_hand

ROLE = dict(baseline="seat_ema", whiten="none")


# Role baselines


def test_a_baseline_moves_towards_the_mean_return_of_its_seat():
    samples = by_hand(
        [[0, 0, 1], [0, 1, 1]],
        n_seats=3,
        seat=jnp.array([[0, 1], [0, 1]]),
        returns=jnp.array([[1.0, 9.0, -4.0], [3.0, 7.0, 9.0]]),  # only first tokens count
        loss_weights=jnp.array([[1.0, 1.0], [1.0, 0.0]]),
    )
    found = averages.follow_returns(jnp.array([1.0, 2.0, 3.0]), samples, 0.9)
    np.testing.assert_allclose(found, [0.9 * 1 + 0.1 * 2, 0.9 * 2 + 0.1 * -4, 3.0], rtol=1e-6)


FOUR = by_hand([[0]] * 4, n_seats=2)


@jax.jit
def followed_by_four(before, seats, returns, weights, decay):
    samples = FOUR.replace(seat=seats[:, None], returns=returns[:, None], loss_weights=weights[:, None])
    return averages.follow_returns(before, samples, decay)


@given(
    st.lists(st.tuples(st.floats(-5, 5, width=32), st.integers(0, 1), st.booleans()), min_size=4, max_size=4),
    st.floats(0, 1, width=32),
)
@settings(max_examples=50, deadline=None)
def test_a_baseline_stays_between_what_it_was_and_what_was_earned(earned, decay):
    returns, seats, counts = map(np.array, zip(*earned, strict=True))
    before = np.array([0.5, -0.5], np.float32)
    given_ = (np.asarray(seats, np.int32), np.asarray(returns, np.float32), np.asarray(counts, np.float32))
    found = np.asarray(followed_by_four(before, *given_, np.float32(decay)))
    for seat in (0, 1):
        seen = [before[seat], *(value for value, who, counts in earned if who == seat and counts)]
        assert min(seen) - 1e-5 <= found[seat] <= max(seen) + 1e-5


def test_advantages_are_whole_returns_less_the_baseline_of_the_seat():
    """Against a walk to the end of each game; a truncated game bootstraps from the seat's baseline."""
    policy = tiny_play.policy(critic="none")
    rollout = tiny_play.rollout(TicTacToe(), policy, 8, 6, prompt=tiny_play.prompt())
    trained, frozen = tiny_play.weights(policy)
    params = {"main": {**frozen, **trained}}
    start = jax.jit(rollout.init)(jax.random.key(0), params)
    samples, _, _ = jax.device_get(quick_jit(rollout.run)(params, start, jax.random.key(1)))
    usual = np.array([0.3, -0.2], np.float32)
    weights = {**params["main"], "baseline": jnp.asarray(usual)}
    algo = tiny_play.ppo(gamma=1.0, lam=0.5, **ROLE)
    compute_advantages = quick_jit(lambda w, s: PPO.compute_advantages(policy, w, s, algo))
    ready, metrics = jax.device_get(compute_advantages(weights, samples))
    assert float(metrics["baseline/seat_1"]) == pytest.approx(-0.2)

    paid, seat, ends = (np.asarray(samples.in_time(x)) for x in (samples.rewards, samples.seat, samples.ends))
    turns = len(seat) - samples.lookahead
    found = np.asarray(ready.in_time(ready.at_first(ready.advantages)))
    returns = np.asarray(ready.in_time(ready.at_first(ready.returns)))
    cut = 0
    for t, b in np.ndindex(turns, seat.shape[1]):
        mine, total = seat[t, b], 0.0
        for u in range(t, len(seat)):
            if u >= turns and seat[u, b] == mine:
                total, cut = total + usual[mine], cut + 1
                break
            total += paid[u, b, mine]
            if ends[u, b]:
                break
        assert returns[t, b] == pytest.approx(total, abs=1e-5)
        assert found[t, b] == pytest.approx(total - usual[mine], abs=1e-5)
    assert ends.any() and cut


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(baseline="seat_ema"), "config.algo.whiten is 'agent' with algo.baseline 'seat_ema'"),
        (dict(gae="token", **ROLE), "config.algo.gae is 'token' with algo.baseline 'seat_ema'"),
        (dict(magnet_coef=-1.0), "config.algo.magnet_coef is -1.0"),
        (dict(entropy_ratio=2.0), "config.algo.entropy_ratio is 2.0"),
    ],
)
def test_refused(changes, message):
    config = config_of("kuhn")
    config.algo.update(changes)
    with pytest.raises(ConfigError, match=message):
        validate.check(config)


# Magnet and entropy


PULLED = by_hand([[0], [0]], logps=jnp.full((2, 1), -1.0), magnet_logps=jnp.array([[-2.0], [-0.5]]))


def loss_of(logps, algo, scheduled=None):
    """Return the clipped loss of two completions with magnet probabilities e^-2 and e^-0.5."""
    objective = ClippedObjective(critic=True)
    scores = Scores(logps, jnp.array([[0.7], [0.3]]), jnp.zeros((2, 1)))
    return objective.loss(
        PULLED, objective.loss_weights_for(PULLED, algo), scores, algo, scheduled or Scheduled(algo.entropy_coef)
    )


def test_the_magnet_pulls_the_policy_to_it():
    logps = jnp.array([[-1.0], [-1.0]])
    algo = tiny_play.ppo(entropy_coef=0.0, kl_kind="k2", magnet_coef=0.4, **ROLE)
    loss, metrics = jax.jit(loss_of, static_argnums=1)(logps, algo)
    assert float(metrics["magnet_kl"]) == pytest.approx((0.5 * 1 + 0.5 * 0.25) / 2)
    assert float(loss) == pytest.approx(0.4 * float(metrics["magnet_kl"]))  # advantages are 0
    grads = jax.jit(jax.grad(lambda x: loss_of(x, algo)[0]))(logps)
    np.testing.assert_allclose(grads, [[0.4 * 1.0 / 2], [0.4 * -0.5 / 2]], rtol=1e-6)
    assert "magnet_kl" not in loss_of(logps, tiny_play.ppo(**ROLE))[1] and "value_loss" not in metrics


def test_the_entropy_bonus_falls_from_step_to_step():
    algo = tiny_play.ppo(entropy_coef=0.5, entropy_ratio=0.2, **ROLE)
    found = [scheduled_values(algo, step, steps=11).entropy_coef for step in (0, 5, 10)]
    np.testing.assert_allclose(found, [0.5, 0.3, 0.1])

    @jax.jit
    def loss(step):
        return loss_of(jnp.full((2, 1), -1.0), algo, scheduled_values(algo, step, steps=11))[0]

    np.testing.assert_allclose([loss(step) for step in (0, 10)], [-0.5 * 0.5, -0.1 * 0.5], rtol=1e-6)
    assert scheduled_values(tiny_play.ppo(entropy_coef=0.5), 3, steps=11) == Scheduled(0.5, 3)


@pytest.mark.parametrize("lora", [None, 2])
def test_the_magnet_is_a_copy_of_what_acts_and_follows_it(lora):
    policy = tiny_play.policy(lora=lora)
    trained, _ = tiny_play.weights(policy)
    algo = tiny_play.ppo(magnet_coef=0.1, magnet_decay=0.75)
    start = averages.init(policy, trained, algo, n_seats=2)
    assert set(start) == {"magnet"} and set(start["magnet"]) == {"adapters" if lora else "model"}
    assert averages.init(policy, trained, tiny_play.ppo(), n_seats=2) == {}
    moved = jax.tree.map(lambda x: x + 1.0, trained)
    followed = averages.ema_update(policy, start, moved, None, algo)["magnet"]
    jax.tree.map(
        lambda now, old: np.testing.assert_allclose(now, np.asarray(old) + 0.25, atol=1e-6), followed, start["magnet"]
    )


# Runs


def magnetic():
    config = config_of("kuhn")
    config.steps, config.checkpoint.every = 3, 2
    config.model.lora.rank = 2
    config.algo.update(dict(magnet_coef=0.3, magnet_decay=0.5, kl_kind="k2", entropy_ratio=0.1, **ROLE))
    return config


def state(workdir):
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    return restored.step, restored.state


@pytest.mark.nightly
def test_averages_resume_as_if_never_interrupted(tmp_path):
    config = magnetic()
    validate.check(config)
    train.train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "3")
    train.train(config, tmp_path / "broken")
    (step, expected), (other_step, found) = state(tmp_path / "whole"), state(tmp_path / "broken")
    assert step == other_step == 3
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    kept = expected["averages"]["main"]
    assert kept["baseline"].shape == (2,) and (kept["baseline"] != 0).all()
    same = jax.tree.map(np.array_equal, kept["magnet"], {"adapters": expected["trained"]["main"]["adapters"]})
    assert not all(jax.tree.leaves(same))  # it follows slowly
    rows, again = (read_json_lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "broken"))
    assert rows[0]["magnet_kl"] < rows[2]["magnet_kl"] == again[2]["magnet_kl"]
    assert rows[0]["baseline/seat_0"] == 0 != rows[2]["baseline/seat_0"] == again[2]["baseline/seat_0"]
    assert "value_loss" not in rows[0]


def test_compiling_ahead_knows_the_averages():
    config = magnetic()
    setup = setups.make(config)
    optimizer, rollout = optimizer_for(config), setup.rollout
    with jax.set_mesh(setup.mesh):
        states, _ = at_start(setup, rollout, optimizer, jax.random.key(0))
    described = programs.abstract_state(setup, rollout, optimizer).train_states
    shape = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding.spec), tree)  # noqa: E731
    assert shape(states) == shape(described) and states["main"].averages["magnet"]
