"""The GRPO family: loss and gradient of every member by hand, whole episodes in groups, candidates of one prompt."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import algorithms, planning, published
from experiments import plan_path
from marl_jax import setup as setups
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import ALGORITHMS, settings_from
from marl_jax.learning import update as updates
from marl_jax.learning.learn_step import all_weights, learn_step, optimizer_for
from marl_jax.learning.update import Scheduled
from marl_jax.samples import from_prompts
from marl_jax.schema import batches
from tests.marl_jax import tiny_play, tiny_puzzle
from tests.marl_jax.tiny_puzzle import K
from tests.marl_jax.tiny_samples import by_hand
from tests.models.tiny_models import quick_jit

pytestmark = pytest.mark.long

# ------------------------------------------------------------------------------------------------ the family by hand

LENGTHS = (1, 3)
CHANGE = jnp.array([[0.22, 0, 0, 0], [0.2, -0.1, -0.1, 0]])  # of the log-probabilities since sampling
UP, MORE, LESS = float(np.exp(0.22)), float(np.exp(0.2)), float(np.exp(-0.1))  # 1.2461, 1.2214, 0.9048


ROOT = float(np.sqrt(1 / 2)) / 4
PUBLISHED = ("dapo", "dr_grpo", "gspo", "rloo")
POLICY = types.SimpleNamespace(critic="none")  # nothing is asked of it


def two_answers(name="at_grpo", rewards=(4.0, 0.0), lengths=LENGTHS):
    """A group: an answer of one token that earned 4, and one of three tokens that earned nothing.

    Of AT-GRPO, two candidates in one row; of the others, the only answers of two episodes, in a row each.
    """
    inside = np.arange(4) < np.asarray(lengths)[:, None]
    rewards = jnp.asarray(rewards)
    if name == "at_grpo":
        completion_of = np.where(inside, np.arange(2)[:, None], -1).reshape(1, 8)
        more = dict(member=jnp.array([[0, 1]]), rewards=rewards[None, :, None])
    else:
        completion_of = np.where(inside, 0, -1)
        more = dict(member=jnp.array([[0], [1]]), rewards=rewards[:, None, None], ends=jnp.ones((2, 1), bool))
    wide = jnp.full(completion_of.shape, -1.0)
    return by_hand(completion_of, logps=wide, n_groups=1, group_size=2, **more)


def learn(samples, algo, change=0.0):
    """(samples as prepared, metrics, loss, gradient as [answers, 4]) of log-probabilities that changed since."""
    algorithm = next(a for a in map(ALGORITHMS.get, ALGORITHMS) if a.settings is type(algo))

    @quick_jit
    def learnt(samples, change):
        rows, metrics = algorithm.compute_advantages(POLICY, {}, samples, algo)
        weighed = algorithm.objective.loss_weights_for(rows, algo)

        def loss(logps):
            scores = Scores(logps, jnp.zeros_like(logps), jnp.zeros_like(logps))
            return algorithm.objective.loss(rows, weighed, scores, algo, Scheduled(algo.entropy_coef))[0]

        shape = rows.logps.shape if jnp.ndim(change) else ()
        return rows, metrics, *jax.value_and_grad(loss)(rows.logps + jnp.reshape(change, shape) * rows.mask())

    rows, metrics, value, gradient = learnt(samples, jnp.asarray(change))
    return rows, metrics, float(value), gradient.reshape(-1, 4)


@pytest.mark.parametrize(
    "name, loss, gradient",
    [
        # Advantages 1 and -1; the first ratio, 1.2461, is clipped at 1.2; means of each answer, then of the two.
        ("grpo", -1.2 / 2 + (MORE + 2 * LESS) / 6, [[0, 0, 0, 0], [MORE / 6, LESS / 6, LESS / 6, 0]]),
        # Divided by K - 1, the standard deviation is sqrt(8), not 2, as in the published algorithms.
        # The upper clip is 1.28, so the first answer still pulls; a mean over all four tokens.
        ("dapo", ROOT * (-UP + MORE + 2 * LESS), [[-ROOT * UP, 0, 0, 0], [ROOT * MORE, ROOT * LESS, ROOT * LESS, 0]]),
        # Advantages 2 and -2; sums over a constant length of 4.
        ("dr_grpo", -2 * 1.2 / 8 + 2 * (MORE + 2 * LESS) / 8, [[0, 0, 0, 0], [MORE / 4, LESS / 4, LESS / 4, 0]]),
        # One ratio per answer: the second's is exp(0) = 1 on all its tokens; the first is clipped at 1.0004.
        ("gspo", 2 * ROOT * (1 - 1.0004), [[0, 0, 0, 0], [ROOT / 1.5, ROOT / 1.5, ROOT / 1.5, 0]]),
        # Advantages 4 and -4: each against the other; ratios of whole answers, 1.2461 and 1, and no mean over tokens.
        ("rloo", -4 * 1.2 / 2 + 4 / 2, [[0, 0, 0, 0], [2, 2, 2, 0]]),
        ("at_grpo", -1.2 / 2 + (MORE + 2 * LESS) / 6, [[0, 0, 0, 0], [MORE / 6, LESS / 6, LESS / 6, 0]]),
    ],
)
def test_loss_and_gradient_by_hand(name, loss, gradient):
    limit = dict(max_new_tokens=10) if name == "dapo" else {}
    algo = getattr(published if name in PUBLISHED else algorithms, name)(2, **limit)
    algo.update(dict(tis_clip=0.0, kl_coef=0.0))
    _, metrics, found, grads = learn(two_answers(name), settings_from(algo), CHANGE)
    assert (int(metrics["groups"]), float(metrics["zero_std_groups"]), float(metrics["group_reward_std"])) == (1, 0, 2)
    assert found == pytest.approx(loss, abs=1e-5)
    np.testing.assert_allclose(grads, gradient, atol=1e-5)


def four_answers(seat, rewards):
    """Two groups of two one-token candidates."""
    first = jnp.zeros((2, 2), jnp.int32)
    completion_of = np.array([[0, -1, -1, -1, 1, -1, -1, -1]] * 2)
    return by_hand(
        completion_of, n_seats=2, seat=first + jnp.array(seat)[:, None], group=first + jnp.arange(2)[:, None],
        member=first + jnp.arange(2), rewards=jnp.array(rewards), logps=jnp.full(completion_of.shape, -1.0), n_groups=2,
        group_size=2,
    )  # fmt: skip


def test_dr_mas_by_hand():
    """Each agent's spread over the batch: 2 for agent 0, 1/2 for agent 1, so that both have advantages of 1 and -1.

    With agents taken as one it is sqrt((4 + 4 + 1/4 + 1/4) / 4) = 1.4577.
    """
    algo = tiny_puzzle.algo(group_size=2, normalize="agent")
    change = jnp.zeros((4, 4)).at[:, 0].set(jnp.array([0.22, 0.1, -0.1, 0.22]))
    # Agent 0 earned 4 and 0, agent 1 earned 1 and 0; the rewards of the other seat do not count.
    samples = four_answers([0, 1], [[[4.0, 9.0], [0.0, 9.0]], [[9.0, 1.0], [9.0, 0.0]]])
    rows, _, loss, gradient = learn(samples, algo, change)
    up, ten, less = float(np.exp(0.22)), float(np.exp(0.1)), float(np.exp(-0.1))
    np.testing.assert_allclose(rows.at_first(rows.advantages), [[1, -1], [1, -1]], atol=1e-4)
    assert loss == pytest.approx((-1.2 + ten - less + up) / 4, abs=1e-5)  # the first is clipped at 1.2
    np.testing.assert_allclose(gradient[:, 0], [0, ten / 4, -less / 4, up / 4], atol=1e-5)

    as_one = four_answers([0, 0], [[[4.0, 9.0], [0.0, 9.0]], [[1.0, 1.0], [0.0, 0.0]]])
    rows, *_ = learn(as_one, algo, change)
    np.testing.assert_allclose(rows.at_first(rows.advantages), np.array([[2, -2], [0.5, -0.5]]) / 1.457738, atol=1e-4)


@pytest.mark.parametrize("name", ["grpo", "at_grpo"])
def test_a_group_of_equal_rewards_is_dropped_or_kept_as_zeros(name):
    samples = two_answers(name, rewards=(0.0, 0.0))
    algo = tiny_puzzle.algo(name, group_size=2)
    rows, metrics, *_ = learn(samples, algo)
    assert float(metrics["zero_std_groups"]) == 1 and not rows.loss_weights.any()
    rows, *_ = learn(samples, dataclasses.replace(algo, filter_zero_std_groups=False))
    assert rows.loss_weights.all() and not rows.advantages.any()


def test_candidates_that_do_not_exist_are_no_members():
    """A third candidate of no tokens: the mean is that of the other two."""
    samples = two_answers()
    more = lambda x, value: jnp.concatenate([x, jnp.full_like(x[:, :1], value)], axis=1)  # noqa: E731
    empty = lambda x, value: jnp.concatenate([x, jnp.full((1, 4), value, x.dtype)], axis=1)  # noqa: E731
    wider = samples.replace(
        completion_of=empty(samples.completion_of, -1),
        logps=empty(samples.logps, -1.0),
        rewards=more(samples.rewards, 50.0),
        member=more(samples.member, 2),
        loss_weights=more(samples.loss_weights, 0.0),
        group_size=3,
        **{name: more(getattr(samples, name), 0) for name in ("completion_lengths", "seat", "group", "ends", "turn")},
    )
    wider = wider.replace(advantages=wider.logps * 0)
    rows, metrics, *_ = learn(wider, tiny_puzzle.algo(group_size=2))
    np.testing.assert_allclose(rows.at_first(rows.advantages), [[1, -1, 0]], atol=1e-5)
    assert float(metrics["group_reward_std"]) == 2


# ------------------------------------------------------------------------------------------------- whole episodes


@functools.cache
def played():
    """(rollout, params, the state before, samples, the state after), of 45 turns."""
    rollout = tiny_puzzle.episodes(turns=45)
    trained, _ = tiny_play.weights(rollout.team.backbones[0].policy)
    params = {"main": trained}
    start = rollout.init(jax.random.key(0), params)
    samples, after, finished = jax.jit(rollout.run)(params, start, jax.random.key(1))
    return params, start, *jax.device_get((samples, after, finished))


def in_time(samples, name):
    """A field of one-answer rows as [R, B, …]."""
    return samples.in_time(getattr(samples, name))


def test_a_group_starts_from_one_position_and_goes_different_ways():
    _, start, samples, after, _ = played()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(start), after)
    counts = samples.loss_weights[:, 0] > 0
    first = counts & (samples.turn[:, 0] == 0)
    group = samples.group[:, 0]
    for number in np.unique(group[counts]):
        mine = first & (group == number)
        prompt = samples.context_len[mine, 0] - samples.positions[mine, 0]
        assert len(set(prompt)) == 1
        beginnings = samples.tokens[mine][:, : prompt[0]]
        assert (beginnings == beginnings[0]).all()
    assert len(np.unique(group[counts])) > 2 and np.bincount(group[first]).max() == K
    action = in_time(samples, "action")
    assert (action[:, :K] != action[:, :1]).any()


def test_every_episode_is_whole():
    _, _, samples, _, finished = played()
    counts, ends = in_time(samples, "loss_weights") > 0, in_time(samples, "ends")
    episodes, turns = in_time(samples, "episode"), in_time(samples, "turn")
    for b in range(counts.shape[1]):
        for episode in np.unique(episodes[:, b][counts[:, b]]):
            mine = counts[:, b] & (episodes[:, b] == episode)
            assert ends[mine, b].sum() == 1
            assert turns[mine, b].tolist() == list(range(mine.sum()))
    np.testing.assert_array_equal(ends, finished.ended)
    assert (in_time(samples, "rewards")[~counts] == 0).all() and not counts.all()


def test_advantages_are_those_of_the_returns_of_episodes():
    params, _, samples, _, _ = played()
    algo = tiny_puzzle.algo("grpo")
    compute_advantages = quick_jit(
        lambda w, s: ALGORITHMS.get("grpo").compute_advantages(tiny_puzzle.policy(), w, s, algo)
    )
    rows, metrics = compute_advantages(params["main"], samples)
    found = np.asarray(samples.in_time(rows.at_first(rows.advantages)))
    counts, groups = in_time(samples, "loss_weights") > 0, 0
    episodes, rewards, seats = (in_time(samples, name) for name in ("episode", "rewards", "seat"))
    for g in range(counts.shape[1] // K):
        for episode in range(5):
            for seat in range(2):
                returns = {}
                for b in range(g * K, g * K + K):
                    mine = counts[:, b] & (episodes[:, b] == episode)
                    if mine.any():
                        returns[b] = float(rewards[mine, b, seat].sum())
                groups += bool(returns)
                values = np.array(list(returns.values()))
                for b, value in returns.items():
                    mine = counts[:, b] & (episodes[:, b] == episode) & (seats[:, b] == seat)
                    expected = (value - values.mean()) / (values.std() + 1e-6) if np.ptp(values) > 1e-6 else 0.0
                    np.testing.assert_allclose(found[mine, b], expected, atol=1e-3)
    assert int(metrics["groups"]) == groups


# ------------------------------------------------------------------------------------- candidates of one prompt


@functools.cache
def candidates(long_names):
    """(policy, trained, frozen, rows of K candidates with advantages) of two turns."""
    rollout = tiny_puzzle.tree(lora=2, long_names=long_names, turns=2)
    policy = rollout.team.backbones[0].policy
    trained, frozen = tiny_play.weights(policy)
    params = {"main": {**frozen, **trained}}
    samples, *_ = jax.jit(rollout.run)(params, rollout.init(jax.random.key(0), params), jax.random.key(1))
    algo = tiny_puzzle.algo(filter_zero_std_groups=False)
    rows = quick_jit(lambda s: ALGORITHMS.get("at_grpo").compute_advantages(policy, {}, s, algo)[0])(samples)
    return policy, trained, frozen, rows


@functools.partial(quick_jit, static_argnames="policy")
def separate(rows, policy):
    """Put every candidate in a separate row with its full prompt: K times as many rows."""
    skip = len(policy.prefix)
    room = rows.tokens.shape[1] - rows.n_completions * rows.branch_len
    each = lambda x: jnp.repeat(x, rows.n_completions, axis=0)  # noqa: E731
    own = lambda x: x.reshape(rows.n * rows.n_completions, 1, *x.shape[2:])  # noqa: E731
    wide = lambda x: x.reshape(rows.n * rows.n_completions, 1, -1)  # noqa: E731
    prompts = jnp.pad(each(rows.tokens[:, :room]), ((0, 0), (0, policy.width)))
    names = ("seat", "episode", "turn", "loss_weights", "rewards", "action", "legal")
    alone = from_prompts(
        prompts,
        each(rows.context_len[:, 0] - skip),
        wide(rows.targets),
        own(rows.completion_lengths),
        wide(rows.logps),
        skip=skip,
        policy=each(rows.policy),
        **{name: own(getattr(rows, name)) for name in names},
    )
    return alone.replace(advantages=wide(rows.advantages)[:, 0])


@pytest.mark.nightly_for("True")
@pytest.mark.parametrize("long_names", [False, True])
def test_loss_and_gradients_are_the_same_when_candidates_share_their_prompt(long_names):
    policy, trained, frozen, rows = candidates(long_names)
    alone = separate(rows, policy)
    assert rows.tokens.size < alone.tokens.size / 2
    algo, state = tiny_puzzle.algo(), updates.TrainState(trained, frozen, None, jnp.int32(0))
    objective = ALGORITHMS.get("at_grpo").objective
    gradients = jax.jit(functools.partial(updates.summed_gradients, policy, objective, algo, updates.Scheduled()))
    expected, of_each = gradients(state, alone)
    found, metrics = gradients(state, rows)
    assert float(metrics["loss"]) == pytest.approx(float(of_each["loss"]), abs=1e-6)
    assert float(metrics["logprob_diff"]) < 1e-5
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), found, expected)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(found)) > 1e-4


@pytest.mark.nightly
def test_minibatches_and_their_parts_keep_groups_together():
    policy, trained, frozen, rows = candidates(True)
    optimizer, objective = optax.sgd(0.1), ALGORITHMS.get("at_grpo").objective

    def learnt(rows, **settings):
        train_state = updates.new_train_state(trained, frozen, optimizer)
        update = updates.make_update(policy, optimizer, objective, tiny_puzzle.algo(minibatches=1, **settings))
        return jax.jit(update)(train_state, rows, jax.random.key(0))

    whole, _ = learnt(separate(rows, policy))
    parts, metrics = learnt(rows, grad_accum_steps=3)
    assert float(metrics["logprob_diff"]) < 1e-5
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), parts.trained, whole.trained)


# ------------------------------------------------------------------------------------------------------- a whole step


@pytest.mark.nightly_for("at_grpo_lora", "roles_grpo", "roles", "at_grpo_apart", "grpo", "single")
@pytest.mark.parametrize("form", planning.FORMS)
def test_a_step_of_every_form_fits_together(form):
    """Traced, not compiled: rollout, advantages and update agree on what passes between them."""
    config = plan_path.get_config(form)
    config.model.shape = tiny_play.SHAPE
    config.rollout.num_envs //= 2
    config.mesh.data = 1
    setup = setups.make(config)
    key = jax.random.key(0)
    with jax.set_mesh(setup.mesh):
        rollout, optimizer = setup.rollout, optimizer_for(config)
        new = lambda t, f: updates.new_train_state(t, f, optimizer)  # noqa: E731
        train_states = {backbone.name: jax.eval_shape(new, *backbone.abstract()) for backbone in setup.backbones}
        params = all_weights(train_states)
        state = jax.eval_shape(rollout.init, key, params)
        samples, after, _ = jax.eval_shape(rollout.__call__, params, state, key)
        learnt, metrics = jax.eval_shape(functools.partial(learn_step, setup, optimizer), train_states, samples, key)
    assert samples.n == batches.rows(config)
    assert samples.n_completions == (config.algo.group_size if config.algo.name == "at_grpo" else 1)
    jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype) or pytest.fail(f"{a} {b}"), state, after)
    assert jax.tree.structure(learnt) == jax.tree.structure(train_states)
    assert ("zero_std_groups" in metrics) == (config.algo.name != "sft") and "explained_variance" not in metrics
    distinct = {policy for seat in range(setup.game.n_players) for policy in setup.seating.policies(seat)}
    assert len(distinct) == (2 if form in ("at_grpo_lora", "at_grpo_apart") else 1)
