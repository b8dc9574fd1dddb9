"""The GRPO family: loss and gradient of every member by hand, whole episodes in groups, prompts read once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import algorithms, planning
from experiments import plan_path
from marl_jax.agents import shared_prompt
from marl_jax.agents.policy import Scores
from marl_jax.config import validate
from marl_jax.learning import grpo, losses
from marl_jax.learning import update as updates
from marl_jax.modes import setup as setups
from marl_jax.modes import train
from marl_jax.samples import Samples
from tests.marl_jax import tiny_play, tiny_puzzle
from tests.marl_jax.tiny_puzzle import K

# ------------------------------------------------------------------------------------------------ the family by hand

LENGTHS = jnp.array([1, 3])
CHANGE = jnp.array([[0.22, 0, 0, 0], [0.2, -0.1, -0.1, 0]])  # of the log-probabilities since sampling
UP, MORE, LESS = float(np.exp(0.22)), float(np.exp(0.2)), float(np.exp(-0.1))  # 1.2461, 1.2214, 0.9048


class TableOfLogps:
    """A policy whose weights are the log-probabilities themselves."""

    critic, share = "none", 1

    def score(self, weights, rows):
        return Scores(weights["model"], jnp.zeros_like(rows.logps), jnp.zeros_like(rows.logps))


def two_answers():
    """One group of AT-GRPO: an answer of one token that earned 4, and one of three tokens that earned nothing."""
    zeros, ones = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2))
    wide = jnp.zeros((1, 2, 4))
    return Samples(
        tokens=zeros[..., None], prompt_lengths=zeros + 1, answers=wide.astype(jnp.int32), answer_lengths=LENGTHS[None],
        action=zeros, legal=jnp.ones((1, 2, 1), bool), logps=wide - 1.0, values=wide, weights=ones, agent=zeros,
        policy=zeros, episode=zeros, turn=zeros, rewards=jnp.array([[[4.0], [0.0]]]), ends=zeros > 0, group=zeros,
        advantages=wide, returns=wide,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name, loss, gradient",
    [
        # Advantages 1 and -1; the first ratio, 1.2461, is clipped at 1.2; means of each answer, then of the two.
        ("grpo", -1.2 / 2 + (MORE + 2 * LESS) / 6, [[0, 0, 0, 0], [MORE / 6, LESS / 6, LESS / 6, 0]]),
        # The upper clip is 1.28, so the first answer still pulls; a mean over all four tokens.
        ("dapo", -UP / 4 + (MORE + 2 * LESS) / 4, [[-UP / 4, 0, 0, 0], [MORE / 4, LESS / 4, LESS / 4, 0]]),
        # Advantages 2 and -2; sums over a constant length of 4.
        ("dr_grpo", -2 * 1.2 / 8 + 2 * (MORE + 2 * LESS) / 8, [[0, 0, 0, 0], [MORE / 4, LESS / 4, LESS / 4, 0]]),
        # One ratio per answer: the second's is exp(0) = 1 on all its tokens; the first is clipped at 1.0004.
        ("gspo", -1.0004 / 2 + 1 / 2, [[0, 0, 0, 0], [1 / 6, 1 / 6, 1 / 6, 0]]),
        # Advantages 4 and -4: each against the other.
        ("rloo", -4 * 1.2 / 2 + 4 * (MORE + 2 * LESS) / 6, [[0, 0, 0, 0], [MORE / 1.5, LESS / 1.5, LESS / 1.5, 0]]),
        ("at_grpo", -1.2 / 2 + (MORE + 2 * LESS) / 6, [[0, 0, 0, 0], [MORE / 6, LESS / 6, LESS / 6, 0]]),
    ],
)
def test_loss_and_gradient_by_hand(name, loss, gradient):
    algo = getattr(algorithms, name)(2)
    algo.update(dict(tis_clip=0.0, name="at_grpo"))  # the same group either way
    rows, figures = grpo.prepare(TableOfLogps(), {}, two_answers(), algo, 1)
    assert (int(figures["groups"]), float(figures["zero_std_groups"]), float(figures["group_reward_std"])) == (1, 0, 2)
    weights = losses.token_weights(rows.mask(), rows.weights, algo.loss_agg, rows.width)
    objective = jax.value_and_grad(updates._objective, argnums=2, has_aux=True)
    (found, _), grads = objective(TableOfLogps(), algo, {"model": rows.logps + CHANGE}, {}, rows, weights, weights)
    assert float(found) == pytest.approx(loss, abs=1e-5)
    np.testing.assert_allclose(grads["model"], gradient, atol=1e-5)


def four_answers():
    """Two groups of two one-token answers: agent 0 earned 4 and 0, agent 1 earned 1 and 0."""
    one = two_answers()
    rows = jax.tree.map(lambda x: jnp.concatenate([x, x], axis=1), one)
    agent = jnp.array([[0, 0, 1, 1]])
    rewards = jnp.array([[[4.0, 9.0], [0.0, 9.0], [9.0, 1.0], [9.0, 0.0]]])
    return rows.replace(answer_lengths=jnp.ones((1, 4), jnp.int32), agent=agent, rewards=rewards)


def test_dr_mas_by_hand():
    """Each agent's spread over the batch: 2 for agent 0, 1/2 for agent 1, so that both have advantages of 1 and -1.

    With agents taken as one it is sqrt((4 + 4 + 1/4 + 1/4) / 4) = 1.4577.
    """
    algo = algorithms.dr_mas(2)
    algo.update(dict(tis_clip=0.0, name="at_grpo"))
    change = jnp.zeros((4, 4)).at[:, 0].set(jnp.array([0.22, 0.1, -0.1, 0.22]))

    def learn(samples, n_players):
        rows, _ = grpo.prepare(TableOfLogps(), {}, samples, algo, n_players)
        weights = losses.token_weights(rows.mask(), rows.weights, algo.loss_agg, rows.width)
        objective = jax.value_and_grad(updates._objective, argnums=2, has_aux=True)
        (loss, _), grads = objective(TableOfLogps(), algo, {"model": rows.logps + change}, {}, rows, weights, weights)
        return rows.advantages[:, 0], float(loss), grads["model"][:, 0]

    advantages, loss, gradient = learn(four_answers(), 2)
    up, ten, less = float(np.exp(0.22)), float(np.exp(0.1)), float(np.exp(-0.1))
    np.testing.assert_allclose(advantages, [1, -1, 1, -1], atol=1e-4)
    assert loss == pytest.approx((-1.2 + ten - less + up) / 4, abs=1e-5)  # the first is clipped at 1.2
    np.testing.assert_allclose(gradient, [0, ten / 4, -less / 4, up / 4], atol=1e-5)

    as_one = four_answers()
    as_one = as_one.replace(agent=as_one.agent * 0, rewards=as_one.rewards.at[0, 2:, 0].set(jnp.array([1.0, 0.0])))
    advantages, *_ = learn(as_one, 2)
    np.testing.assert_allclose(advantages, np.array([2, -2, 0.5, -0.5]) / 1.457738, atol=1e-4)


def test_a_group_of_equal_rewards_is_dropped_or_kept_as_zeros():
    samples = two_answers()
    samples = samples.replace(rewards=samples.rewards * 0)
    algo = tiny_puzzle.algo(group=2)
    rows, figures = grpo.prepare(TableOfLogps(), {}, samples, algo, 1)
    assert float(figures["zero_std_groups"]) == 1 and rows.weights.tolist() == [0, 0]
    algo.filter_zero_std_groups = False
    rows, _ = grpo.prepare(TableOfLogps(), {}, samples, algo, 1)
    assert rows.weights.tolist() == [1, 1] and not rows.advantages.any()


# ------------------------------------------------------------------------------------------------- whole episodes


@functools.cache
def played():
    roll = tiny_puzzle.episodes(turns=45)
    trained, _ = tiny_play.weights(roll.policy)
    start = roll.start(jax.random.key(0))
    return trained, start, *jax.device_get(jax.jit(roll)(trained, start, jax.random.key(1)))


def test_a_group_starts_from_one_position_and_goes_different_ways():
    _, start, samples, _, after = played()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(start), after)
    counts = samples.weights > 0
    first = counts & (samples.turn == 0)
    for group in np.unique(samples.group[counts]):
        beginnings = samples.tokens[first & (samples.group == group)][:, :28]
        assert (beginnings == beginnings[0]).all()
    assert len(np.unique(samples.group[counts])) > 2
    assert (samples.action[:, :K] != samples.action[:, :1]).any()


def test_every_episode_is_whole():
    _, _, samples, finished, _ = played()
    counts = samples.weights > 0
    for b in range(samples.action.shape[1]):
        for episode in np.unique(samples.episode[:, b][counts[:, b]]):
            mine = counts[:, b] & (samples.episode[:, b] == episode)
            assert samples.ends[mine, b].sum() == 1
            assert samples.turn[mine, b].tolist() == list(range(mine.sum()))
    np.testing.assert_array_equal(samples.ends, finished.ended)
    assert (samples.rewards[~counts] == 0).all() and not counts.all()


def test_advantages_are_those_of_the_returns_of_episodes():
    trained, _, samples, _, _ = played()
    algo = tiny_puzzle.algo("grpo")
    rows, figures = grpo.prepare(tiny_puzzle.policy(), trained, samples, algo, 2)
    found = np.asarray(rows.advantages[:, 0]).reshape(samples.action.shape)
    counts, groups = samples.weights > 0, 0
    for g in range(samples.action.shape[1] // K):
        for episode in range(5):
            for seat in range(2):
                returns = {}
                for b in range(g * K, g * K + K):
                    mine = counts[:, b] & (samples.episode[:, b] == episode)
                    if mine.any():
                        returns[b] = float(samples.rewards[mine, b, seat].sum())
                groups += bool(returns)
                values = np.array(list(returns.values()))
                for b, value in returns.items():
                    mine = counts[:, b] & (samples.episode[:, b] == episode) & (samples.agent[:, b] == seat)
                    expected = (value - values.mean()) / (values.std() + 1e-6) if np.ptp(values) > 1e-6 else 0.0
                    np.testing.assert_allclose(found[mine, b], expected, atol=1e-3)
    assert int(figures["groups"]) == groups


# -------------------------------------------------------------------------------------------------- shared prompts


@functools.cache
def candidates(long_names):
    roll = tiny_puzzle.tree(lora=2, long_names=long_names, turns=2)
    trained, frozen = tiny_play.weights(roll.policy)
    samples, _, _ = jax.jit(roll)({**frozen, **trained}, roll.start(jax.random.key(0)), jax.random.key(1))
    rows, _ = grpo.prepare(roll.policy, {}, samples, tiny_puzzle.algo(filter_zero_std_groups=False), 2)
    return roll.policy, trained, frozen, rows


@pytest.mark.parametrize("long_names", [False, True])
def test_loss_and_gradients_are_the_same_when_candidates_share_their_prompt(long_names):
    policy, trained, frozen, rows = candidates(long_names)
    sharing = dataclasses.replace(policy, share=K)
    assert shared_prompt.join(rows, K).tokens.size < rows.tokens.size / 2
    algo = tiny_puzzle.algo()
    weights = losses.token_weights(rows.mask(), rows.weights, algo.loss_agg, rows.width)

    def both(policy):
        objective = jax.value_and_grad(functools.partial(updates._objective, policy, algo), has_aux=True)
        return jax.jit(objective)(trained, frozen, rows, weights, weights)

    (alone, _), expected = both(policy)
    (shared, figures), found = both(sharing)
    assert float(shared) == pytest.approx(float(alone), abs=1e-6) and float(figures["logprob_diff"]) < 1e-5
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), found, expected)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(found)) > 1e-4


def test_minibatches_and_their_parts_keep_groups_together():
    policy, trained, frozen, rows = candidates(True)
    sharing = dataclasses.replace(policy, share=K)
    algo = tiny_puzzle.algo(minibatches=1, grad_accum_steps=3)
    optimiser = optax.sgd(0.1)

    def learnt(policy, algo):
        train_state = updates.new_train_state(trained, frozen, optimiser)
        return jax.jit(updates.make_update(policy, optimiser, algo))(train_state, rows, jax.random.key(0))

    whole, _ = learnt(policy, tiny_puzzle.algo(minibatches=1))
    parts, figures = learnt(sharing, algo)
    assert float(figures["logprob_diff"]) < 1e-5
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), parts.trained, whole.trained)


# ------------------------------------------------------------------------------------------------------- a whole step


@pytest.mark.parametrize("form", planning.FORMS)
def test_a_step_of_every_form_fits_together(form):
    """Traced, not compiled: rollout, advantages and update agree on what passes between them."""
    config = plan_path.get_config(form)
    config.model.shape = tiny_play.SHAPE
    config.rollout.games //= 2
    setup = setups.make(config)
    key = jax.random.key(0)
    with jax.set_mesh(setup.mesh):
        rollout, optimiser = setup.rollout(), updates.make_optimiser(config.optim, config.steps, 4)
        new = lambda t, f: updates.new_train_state(t, f, optimiser)  # noqa: E731
        train_states = {backbone.name: jax.eval_shape(new, *backbone.abstract()) for backbone in setup.backbones}
        games = jax.eval_shape(rollout.start, key)
        play = functools.partial(train.play_step, setup, rollout)
        samples, after, _, _ = jax.eval_shape(play, train.all_weights(train_states), games, None, key)
        learn = functools.partial(train.learn_step, setup, optimiser)
        learnt, figures = jax.eval_shape(learn, train_states, samples, key)
    assert samples.action.size == validate.samples(config)
    jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype) or pytest.fail(f"{a} {b}"), games, after)
    assert jax.tree.structure(learnt) == jax.tree.structure(train_states)
    assert "zero_std_groups" in figures and "explained_variance" not in figures
    assert len(set(setup.seat_policy)) == (2 if form in ("at_grpo_lora", "at_grpo_apart") else 1)
