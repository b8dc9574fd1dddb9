"""VDN and QMIX: fits of matrix games, mixing, targets, and the rows of a round in the update."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import softmax

from configs import algorithms, defaults
from envs.games.matrix.rules import Matrix
from envs.games.registry import make
from experiments import matrix
from marl_jax.agents import critics, scoring
from marl_jax.agents.answers import ByValue, DecodeInputs
from marl_jax.algorithms import settings_from, vdn
from marl_jax.errors import ConfigError
from marl_jax.learning import rounds
from marl_jax.learning.update import Scheduled, TrainState, rows_by_group, summed_gradients
from marl_jax.modes import train
from marl_jax.rollouts.games import look
from marl_jax.rollouts.joint import JointRollout
from marl_jax.running.metrics import read_json_lines
from marl_jax.samples import rows as take
from marl_jax.schema import validate
from tests.marl_jax import tiny_play, tiny_puzzle

# Fits of tables: every seat has a hidden state for each stage, and all joint actions are equally likely


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def fitted(game: Matrix, kind: str, steps: int = 3000):
    """Fit joint values to their targets with full batches; return values [stages, A, A] and greedy actions."""
    stages, a = game.n_stages, game.n_actions
    cfg = types.SimpleNamespace(d_model=2 * stages)
    critic = critics.init(kind, cfg, {}, a, 2, jax.random.key(0))
    hidden = jnp.eye(2 * stages).reshape(stages, 2, -1)  # of each seat in each stage
    states = hidden[:, 0] + hidden[:, 1]
    payoffs, links = jnp.asarray(game.payoffs, jnp.float32), jnp.asarray(game.links())

    def joint(critic, values):  # [stages, …, P]
        at = states.reshape(stages, *(1,) * (values.ndim - 2), -1) if kind == "q_mixed" else None
        return scoring.joint_values({"critic": critic}, at, values)

    def table(critic):
        values = critics.read(critic, hidden)[..., :a]  # without passing
        pairs = jnp.broadcast_arrays(values[:, 0, :, None], values[:, 1, None, :])
        return joint(critic, jnp.stack(pairs, axis=-1)), values

    def loss(critic, target):
        best = joint(target, jnp.max(table(target)[1], axis=-1))
        goal = payoffs + jnp.append(best, 0.0)[links]
        return jnp.mean((table(critic)[0] - goal) ** 2)

    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, steps))

    def step(carry, _):
        critic, target, moments = carry
        updates, moments = optimizer.update(jax.grad(loss)(critic, target), moments)
        critic = optax.apply_updates(critic, updates)
        target = jax.tree.map(lambda slow, now: 0.9 * slow + 0.1 * now, target, critic)
        return (critic, target, moments), None

    (critic, _, _), _ = jax.lax.scan(step, (critic, critic, optimizer.init(critic)), length=steps)
    joint_values, values = table(critic)
    return joint_values, jnp.argmax(values, axis=-1)


def earned(game, actions):
    """Return the reward of greedy play."""
    stage, total = 0, 0.0
    while stage < game.n_stages:
        first, second = map(int, actions[stage])
        total += game.payoffs[stage][first][second]
        stage = int(game.links()[stage, first, second])
    return total


def test_vdn_earns_7_in_the_two_step_game():
    """Its best sum of values for 2B is 6.5, less than the 7 of 2A."""
    game = make("matrix")
    values, actions = fitted(game, "q")
    np.testing.assert_allclose(values[2], [[-1.5, 2.5], [2.5, 6.5]], atol=1e-2)
    assert earned(game, actions) == 7


def test_qmix_earns_8_in_the_two_step_game():
    game = make("matrix")
    values, actions = fitted(game, "q_mixed")
    np.testing.assert_allclose(values[2], [[0, 1], [1, 8]], atol=0.2)
    assert earned(game, actions) == 8


@pytest.mark.parametrize("kind", ["q", "q_mixed"])
def test_no_monotonic_method_finds_the_optimum_of_qtran(kind):
    game = make("matrix", preset="qtran")
    values, actions = fitted(game, kind)
    assert earned(game, actions) == 0
    if kind == "q":
        np.testing.assert_allclose(values[0, :2, :2], [[-6.22, -4.89], [-4.89, -3.56]], atol=1e-2)
        payoffs = np.asarray(game.payoffs[0])
        design = np.array([[*(np.arange(3) == i), *(np.arange(3) == j)] for i in range(3) for j in range(3)], float)
        fit = design @ np.linalg.lstsq(design, payoffs.reshape(-1), rcond=None)[0]
        np.testing.assert_allclose(values[0], fit.reshape(3, 3), atol=1e-2)


def test_additive_payoffs_are_fitted_exactly():
    rng = np.random.default_rng(0)
    payoffs = rng.normal(size=(3, 1)) + rng.normal(size=(1, 3))
    game = Matrix((tuple(map(tuple, payoffs.tolist())),), ())
    np.testing.assert_allclose(fitted(game, "q")[0][0], payoffs, atol=1e-4)


def test_a_mixture_never_decreases_in_a_value():
    critic = critics.init("q_mixed", types.SimpleNamespace(d_model=4), {}, 2, 3, jax.random.key(0))
    state, values = jax.random.normal(jax.random.key(1), (64, 4)), 3 * jax.random.normal(jax.random.key(2), (64, 3))
    slopes = jax.jit(jax.vmap(jax.grad(lambda v, s: critics.mix(critic, s, v))))(values, state)
    assert np.min(slopes) >= 0 and np.std(slopes) > 0


def test_targets_equal_a_loop():
    rng = np.random.default_rng(0)
    rewards, best = rng.normal(size=(2, 6, 4)).astype(np.float32)
    ends = rng.random((6, 4)) < 0.3
    found = np.asarray(jax.jit(rounds.lambda_targets)(rewards, ends, best, 0.9, 0.7))
    for game in range(4):
        target = best[-1, game]
        for k in reversed(range(5)):
            after = 0.0 if ends[k, game] else 0.3 * best[k + 1, game] + 0.7 * target
            target = rewards[k, game] + 0.9 * after
            assert found[k, game] == pytest.approx(target, abs=1e-5)


# Acting by value


def policy_of(game, prompt, critic="q", lora=None, epsilon=0.25):
    answers, seats = ByValue(tiny_play.answers(prompt).choices, epsilon=epsilon), game.n_players
    return tiny_play.policy_of(prompt, answers, critic, lora, n_seats=seats, simultaneous=game.simultaneous)


def test_actions_are_sampled_by_value():
    names = tiny_play.answers(tiny_play.prompt()).choices
    n, legal = 9, jnp.arange(9) < 4
    weight = np.random.default_rng(0).standard_normal((1, n + 1), np.float32)
    critic = {"weight": weight, "bias": np.zeros(n + 1, np.float32)}
    batch = 4000

    @jax.jit
    def sampled(temperature):
        inputs = DecodeInputs(
            model=None, params={}, hidden=jnp.ones((batch, 1)), lengths=jnp.zeros(batch, jnp.int32),
            legal=jnp.broadcast_to(legal, (batch, n)), temperature=jnp.full(batch, temperature), cache=None,
            keys=jax.random.split(jax.random.key(1), batch), adapters=None, dtype=jnp.float32, critic=critic,
        )  # fmt: skip
        return ByValue(names, epsilon=0.2).sample(inputs)

    expected = 0.8 * softmax(weight[0, :4] / 0.5) + 0.2 / 4
    reply = jax.device_get(sampled(0.5))
    shares = np.bincount(reply.action, minlength=n) / batch
    np.testing.assert_allclose(shares[:4], expected, atol=0.03)
    assert not shares[4:].any()
    np.testing.assert_allclose(reply.logps[:, 0], np.log(expected)[reply.action], atol=1e-5)
    np.testing.assert_array_equal(reply.tokens, np.maximum(names.ids, 0)[reply.action])
    assert set(sampled(0.0).action.tolist()) == {int(np.argmax(weight[0, :4]))}


# Rounds


@functools.cache
def played(critic="q", lora=None):
    """Return the policy, its weights and samples of two rounds of the two-step game, with targets."""
    game = make("matrix")
    prompt = tiny_play._prompt_of(game)
    policy = policy_of(game, prompt, critic, lora)
    roll = tiny_play.rollout(game, policy, 4, 4, kind=JointRollout)
    trained, frozen = tiny_play.weights(policy)
    weights = {**frozen, **trained, "target": trained}

    @jax.jit
    def play(weights):
        key = jax.random.key(0)
        samples, _, _ = roll({"main": weights}, roll.init(key, {"main": weights}), key)
        return samples, vdn.compute_advantages(policy, weights, samples, ALGO)[0]

    return policy, trained, frozen, *play(weights)


ALGO = settings_from(algorithms.vdn(minibatches=1, lam=0.0))


@pytest.mark.nightly_for("q-None")
@pytest.mark.parametrize("critic, lora", [("q", None), ("q_mixed", 2)])
def test_the_rows_of_a_round_share_its_value_and_target(critic, lora):
    policy, trained, frozen, sampled, samples = played(critic, lora)
    weights = {**frozen, **trained}
    assert samples.n == 16 and samples.n_groups * 2 >= 16 and np.all(samples.loss_weights == 1)
    order = np.asarray(jax.jit(rows_by_group)(jax.random.key(3), samples))
    picked = take(jax.device_get(samples), order)
    assert picked.seat[:, 0].tolist() == [0, 1] * 8
    np.testing.assert_array_equal(picked.group[::2], picked.group[1::2])
    np.testing.assert_array_equal(picked.returns[::2], picked.returns[1::2])

    @jax.jit
    def joint(weights, picked):
        """The values that the learner computes, and those mixed from values of the seats."""
        values = scoring.score(policy, weights, picked).values[:, 0]
        own = scoring.value_taken(scoring.head_values(policy, weights, picked), picked)[:, 0].reshape(-1, 2)
        if critic == "q":
            return values, jnp.sum(own, axis=1)
        return values, critics.mix(weights["critic"], scoring.central_states(policy, weights, picked)[::2, 0], own)

    values, expected = jax.device_get(joint(weights, picked))
    np.testing.assert_allclose(values[::2], expected, atol=1e-5)
    np.testing.assert_array_equal(values[::2], values[1::2])
    # Rewards arrive with the second seat's move, and a game has two rounds.
    others = np.asarray(jax.jit(rounds.others)(sampled))[:, 0]
    sampled = jax.device_get(sampled)
    reward = rounds.by_round(sampled, sampled.rewards[..., 0])  # [K, P, B]
    ends = rounds.by_round(sampled, sampled.ends).any(1)
    assert not reward[:, 0].any() and ends.any()
    actions = rounds.by_round(sampled, sampled.action)
    np.testing.assert_array_equal(rounds.by_round(sampled, others[:, None]), actions[:, ::-1])


def test_gradients_of_parts_add_up_to_those_of_a_minibatch():
    policy, trained, frozen, _, samples = played("q_mixed", 2)
    picked = take(jax.device_get(samples), np.asarray(jax.jit(rows_by_group)(jax.random.key(3), samples)))
    state = TrainState(trained, frozen, None, None)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(parts, samples):
        algo = dataclasses.replace(ALGO, grad_accum_steps=parts)
        order = jnp.arange(samples.n).reshape(parts, -1).T.reshape(-1)  # as `active_first` arranges rows
        given = take(samples, order)
        return summed_gradients(policy, vdn.TemporalDifference(), algo, Scheduled(), state, given)[0]

    whole, parts = gradients(1, picked), gradients(4, picked)
    # Both sum the same terms in float32, in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-5), whole, parts)
    assert max(np.max(np.abs(x)) for x in jax.tree.leaves(jax.device_get(whole))) > 1e-4


@pytest.mark.nightly
def test_seats_pass_where_another_one_moves():
    """In Plan-Path planner and executor alternate; every turn has a row for both."""
    game, prompt = tiny_puzzle.game(), tiny_puzzle.prompt()
    policy = policy_of(game, prompt)
    roll = tiny_play.rollout(game, policy, 3, 4, prompt=prompt, kind=JointRollout)
    weights = {"main": {**tiny_play.weights(policy)[0]}}
    state = roll.init(jax.random.key(0), weights)
    samples, _, metrics = jax.jit(roll.__call__)(weights, state, jax.random.key(1))
    assert samples.completion_at.shape == (10, 3) and samples.lookahead == 2
    seats, actions, turns = (
        np.asarray(rounds.by_round(samples, x)) for x in (samples.seat, samples.action, samples.turn)
    )
    movers = turns[:, 0] % 2
    assert (seats == np.array([0, 1])[:, None]).all()
    for seat in (0, 1):
        assert ((actions[:, seat] == game.n_actions) == (movers != seat)).all()
    lengths = np.asarray(rounds.by_round(samples, samples.completion_lengths))
    assert ((lengths > 0) == (actions < game.n_actions)).all()
    seen = look(game, roll.team, state.games.state, jnp.ones(3, jnp.int32), jnp.zeros(3, jnp.int32))
    np.testing.assert_array_equal(samples.tokens[3:6], seen.prompts)  # what the executor sees as the planner moves
    assert metrics["completions"] == 12


# Configs and runs


def refused(**algo_and_changes):
    config = defaults.get_config()
    config.algo = getattr(algorithms, algo_and_changes.pop("algo"))()
    config.env = defaults.environment(algo_and_changes.pop("env", "matrix"))
    config.env.update(dict(text="brief", style="plain"))
    config.eval.opponents = ()
    for name, value in algo_and_changes.items():
        group, field = name.split("__")
        config[group][field] = value
    with pytest.raises(ConfigError) as error:
        validate.check(config)
    return "\n".join(error.value.problems)


@pytest.mark.quick
@pytest.mark.parametrize(
    "changes, message",
    [
        (
            dict(algo="qmix", env="kuhn"),
            "algo.name is 'qmix' with env.name 'kuhn', whose seats play against each other",
        ),
        (dict(algo="coma", env="leduc"), "algo.name is 'coma' with env.name 'leduc', whose seats play against"),
        (dict(algo="vdn", rollout__completion="free"), "rollout.completion must be 'constrained'"),
        (dict(algo="vdn", env__context="history"), "env.context must be 'turn'"),
        (
            dict(algo="qmix", rollout__unroll_length=3),
            "unroll_length is 3, but must be a multiple of 2, the turns of a",
        ),
        (dict(algo="maddpg", agents__seat_0="bot:optimal"), "every seat must have a policy"),
        (dict(algo="vdn", algo__epsilon=2.0), "config.algo.epsilon is 2.0, but must be a number >= 0 and <= 1"),
    ],
)
def test_bad_configs_are_refused(changes, message):
    assert message in refused(**changes)


@pytest.mark.quick
def test_every_method_is_accepted():
    for form in (None, "vdn", "coma", "maddpg", "mappo", "vdn+qtran", "qmix+qtran+per_role", "coma+per_role"):
        validate.check(matrix.get_config(form))
    with pytest.raises(ValueError, match="form is 'qmxi', but must be one of: vdn, qmix, coma, maddpg, mappo"):
        matrix.get_config("qmxi")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "form, score",
    [
        ("vdn", 7),
        ("qmix", 8),
        ("vdn+qtran", 0),
        ("qmix+qtran", 0),
        ("qmix+per_role", 8),
        ("coma", None),
        ("maddpg", None),
        ("mappo", None),
        ("coma+per_role", None),
    ],
)
def test_runs_earn_what_their_method_can_represent(tmp_path, form, score):
    config = matrix.get_config(form)
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    train.train(config, tmp_path)
    last = [row for row in read_json_lines(tmp_path / "eval.jsonl") if row["opponent"] == "self"][-1]
    assert last["score"] == score if score is not None else last["score"] >= 7
