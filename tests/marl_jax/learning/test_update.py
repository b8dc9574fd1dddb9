"""The update: advantages from a real rollout, gradients, values that are not finite, schedules."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import defaults
from envs.games.tic_tac_toe.rules import TicTacToe
from marl_jax.agents import critics, scoring
from marl_jax.algorithms import ALGORITHMS
from marl_jax.learning import losses, update
from marl_jax.learning import optimizer as optimizers
from models import registry
from models.model import build
from tests.marl_jax import tiny_play
from tests.marl_jax.learning.test_advantages import streams

pytestmark = pytest.mark.long

GAME = TicTacToe()
PPO = ALGORITHMS.get("ppo")
SGD = optax.sgd(0.1)


@functools.cache
def played(**settings):
    """Return policy, trained and frozen weights, and samples of a rollout."""
    policy = tiny_play.policy(**settings)
    rollout = tiny_play.rollout(GAME, policy, 8, 6, prompt=tiny_play.prompt())
    trained, frozen = tiny_play.weights(policy, reference=True)
    params = {"main": {**frozen, **trained}}
    samples, _, _ = jax.jit(rollout.run)(params, rollout.init(jax.random.key(0), params), jax.random.key(1))
    return policy, trained, frozen, samples


@functools.cache
def prepare_program(algo, **settings):
    """Return the program for advantages, compiled once for all tests with these settings."""
    policy = played(**settings)[0]
    return jax.jit(lambda w, s: PPO.compute_advantages(policy, w, s, algo)[0])


@functools.cache
def update_program(algo, optimizer, **settings):
    """Return the update, compiled once for all tests with these settings."""
    return jax.jit(update.make_update(played(**settings)[0], optimizer, PPO.objective, algo))


def prepared(algo, samples=None, **settings):
    """Return samples with advantages, by default those of a rollout."""
    _, trained, frozen, own = played(**settings)
    same = dataclasses.replace(algo, minibatches=1, grad_accum_steps=1, epochs=1, entropy_coef=0.0, value_clip=0.0)
    compute_advantages = prepare_program(same, **settings)  # advantages do not depend on these settings
    return compute_advantages({**frozen, **trained}, own if samples is None else samples)


def step(algo, rows=None, optimizer=SGD, program=None, **settings):
    """Run one update and return train state and metrics."""
    _, trained, frozen, _ = played(**settings)
    train_state = update.new_train_state(trained, frozen, optimizer)
    if rows is None:
        rows = prepared(algo, **settings)
    program = program or update_program(algo, optimizer, **settings)
    return program(train_state, rows, jax.random.key(0))


def moved(train_state, **settings):
    """Return how far each part of the weights has moved."""
    before = jax.device_get(played(**settings)[1])
    after = jax.device_get(train_state.trained)
    squares = {part: jax.tree.map(lambda a, b: np.sum((a - b) ** 2), after[part], before[part]) for part in before}
    return {part: float(np.sqrt(sum(jax.tree.leaves(tree)))) for part, tree in squares.items()}


def test_prepare_equals_walking_the_streams():
    samples = played()[-1]
    rows = prepared(tiny_play.ppo(gamma=0.9, lam=0.7, whiten="none"))
    given = (samples.rewards, samples.at_first(samples.values), samples.seat, samples.ends)
    arrays = [np.asarray(samples.in_time(x)) for x in given]
    expected, known = streams(*arrays, gamma=0.9, lam=0.7, tail=2)
    assert known[:6].all(), "two turns of looking ahead close every stream of an alternating game"
    np.testing.assert_allclose(rows.advantages[:, 0], expected[:6].ravel(), atol=1e-5)
    np.testing.assert_allclose(rows.returns[:, 0], (expected + arrays[1])[:6].ravel(), atol=1e-5)
    np.testing.assert_array_equal(rows.loss_weights, np.ones((48, 1)))

    white = prepared(tiny_play.ppo())
    for seat in (0, 1):
        mine = np.asarray(white.advantages)[np.asarray(white.seat) == seat]
        assert mine.mean() == pytest.approx(0, abs=1e-5) and mine.std() == pytest.approx(1, abs=1e-3)


def test_the_first_minibatch_has_ratio_one():
    _, metrics = step(tiny_play.ppo(minibatches=1))
    assert float(metrics["logprob_diff"]) < 1e-5
    assert float(metrics["ratio"]) == pytest.approx(1, abs=1e-4)
    assert float(metrics["clip_frac_low"]) == float(metrics["clip_frac_high"]) == 0


def test_the_loss_toward_legal_names_is_their_probability_without_the_mask():
    """Written out with the whole vocabulary; a step on this loss alone makes legal names more likely."""
    policy, trained, frozen, _ = played(long_names=True)
    plain, algo = (tiny_play.ppo(minibatches=1, legal_coef=coef, entropy_coef=0.0) for coef in (0.0, 0.5))
    rows = prepared(plain, long_names=True)
    weights, choices = {**frozen, **trained}, jax.device_get(policy.answers.choices)

    @jax.jit
    def probabilities(model, rows):  # [N, W, V]
        return jax.nn.softmax(policy.model.logits(model, scoring.before_answers(policy, model, rows, None)))

    p = np.asarray(probabilities(weights["model"], rows))
    said = []
    for i, (action, legal) in enumerate(zip(np.asarray(rows.action)[:, 0], np.asarray(rows.legal)[:, 0], strict=True)):
        name = choices.ids[action]
        for w in range(choices.lengths[action]):
            alive = [a for a in range(9) if legal[a] and (choices.ids[a, :w] == name[:w]).all()]
            said.append(p[i, w, sorted({choices.ids[a, w] for a in alive} - {-1})].sum())
    state, metrics = step(algo, rows=rows, long_names=True)
    assert float(metrics["legal_prob"]) == pytest.approx(np.mean(said), rel=1e-4)
    _, without = step(plain, rows=rows, long_names=True)
    assert "legal_prob" not in without
    added = float(metrics["loss"]) - float(without["loss"])
    assert added == pytest.approx(-0.5 * np.mean(np.log(said)), rel=1e-3)
    quiet = rows.replace(advantages=0 * rows.advantages, returns=rows.values)
    program = update_program(algo, SGD, long_names=True)
    state, first = step(algo, rows=quiet, program=program, long_names=True)
    _, second = program(state, quiet, jax.random.key(0))
    assert float(second["legal_prob"]) > 1.2 * float(first["legal_prob"])


def test_loss_equals_the_formula_written_out():
    policy, trained, frozen, _ = played()
    algo = tiny_play.ppo(minibatches=1, kl_coef=0.3, entropy_coef=0.02, value_coef=0.7, value_clip=0.05)
    rows = prepared(algo)
    rows = rows.replace(logps=rows.logps + 0.3 * jnp.sin(jnp.arange(48.0))[:, None], values=rows.values + 0.1)
    _, metrics = step(algo, rows=rows)
    scores = jax.jit(functools.partial(scoring.score, policy))({**frozen, **trained}, rows)
    first = lambda x: np.asarray(x, np.float64)[:, 0]  # noqa: E731
    logp, entropy, value = map(first, scores[:3])
    old, reference, old_value = map(first, (rows.logps, rows.ref_logps, rows.values))
    advantage, target = map(first, (rows.advantages, rows.returns))
    ratio = np.exp(logp - old)
    clipped = np.maximum(-ratio * advantage, -np.clip(ratio, 0.8, 1.2) * advantage).mean()
    kl = (np.exp(reference - logp) - 1 - (reference - logp)).mean()
    near = old_value + np.clip(value - old_value, -0.05, 0.05)
    fit = 0.5 * np.maximum((value - target) ** 2, (near - target) ** 2).mean()
    assert float(metrics["loss"]) == pytest.approx(clipped + 0.3 * kl - 0.02 * entropy.mean() + 0.7 * fit, rel=1e-4)
    assert float(metrics["clip_frac_low"] + metrics["clip_frac_high"]) > 0


def test_parts_of_a_minibatch_give_the_same_gradient():
    whole, _ = step(tiny_play.ppo(minibatches=1))
    parts, _ = step(tiny_play.ppo(minibatches=1, grad_accum_steps=4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), whole.trained, parts.trained)
    assert moved(whole)["model"] > 1e-3


def test_rows_of_weight_zero_change_nothing():
    algo = tiny_play.ppo(minibatches=1)
    rows = prepared(algo)
    some = rows.replace(loss_weights=rows.loss_weights.at[10:].set(0.0))
    junk = some.replace(advantages=some.advantages.at[10:].set(1e6), returns=some.returns.at[10:].set(-1e6))
    a, b = (step(algo, rows=r)[0].trained for r in (some, junk))
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.nightly
def test_minibatches_of_nothing_do_not_blur_the_metrics():
    rows = prepared(tiny_play.ppo(minibatches=8))
    one = rows.replace(loss_weights=rows.loss_weights.at[1:].set(0.0))  # seven of eight have no weight
    still = optax.sgd(0.0)
    (_, several), (_, together) = (step(tiny_play.ppo(minibatches=m), rows=one, optimizer=still) for m in (8, 1))
    for name in ("entropy", "loss", "ratio", "grad_norm", "logprob_diff"):
        assert float(several[name]) == pytest.approx(float(together[name]), rel=1e-5, abs=1e-6), name


@pytest.fixture(scope="module")
def watched_parts():
    """Return settings, an update in four parts, and a list with one entry per processed part."""
    algo, score, calls = tiny_play.ppo(minibatches=1, grad_accum_steps=4), scoring.score, []
    program = jax.jit(update.make_update(played()[0], SGD, PPO.objective, algo))

    def watched(*given, **more):
        jax.debug.callback(lambda: calls.append(1))
        return score(*given, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scoring, "score", watched)
        step(algo, program=program)  # traces it
    jax.effects_barrier()
    assert len(calls) == 4
    return algo, program, calls


@pytest.mark.parametrize("active,read", [(0, 0), (10, 1), (24, 2), (25, 3), (48, 4)])
def test_parts_without_anything_to_learn_are_not_read(active, read, watched_parts):
    algo, program, calls = watched_parts
    chosen = jnp.argsort(jnp.sin(jnp.arange(48.0))) < active  # spread over the batch
    rows = prepared(algo).replace(loss_weights=chosen.astype(jnp.float32)[:, None])
    calls.clear()
    parts, metrics = step(algo, rows=rows, program=program)
    jax.effects_barrier()
    assert len(calls) == read
    whole, expected = step(tiny_play.ppo(minibatches=1), rows=rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), whole.trained, parts.trained)
    for name in ("loss", "entropy", "grad_norm"):
        assert float(metrics[name]) == pytest.approx(float(expected[name]), abs=1e-5)


@pytest.fixture(scope="module")
def counted_rows():
    """Return an update of at most 24 rows if these suffice, and a list of processed row counts."""
    sizes, learn = [], update.make_update(played()[0], SGD, PPO.objective, tiny_play.ppo(minibatches=1))

    def counting(state, samples, key):
        jax.debug.callback(lambda: sizes.append(samples.n))
        return learn(state, samples, key)

    return jax.jit(lambda state, rows, key: update.update_active_rows(counting, state, rows, key, 24)), sizes


@pytest.mark.nightly
@pytest.mark.parametrize("active", [10, 24, 25])
def test_only_active_rows_are_read_where_few_are(active, counted_rows):
    """At most 24 active rows are extracted, with the same result; 25 rows use the full batch."""
    few, sizes = counted_rows
    algo = tiny_play.ppo(minibatches=1)
    chosen = jnp.argsort(jnp.sin(jnp.arange(48.0))) < active
    rows = prepared(algo).replace(loss_weights=chosen.astype(jnp.float32)[:, None])
    sizes.clear()
    found, _ = step(algo, rows=rows, program=few)
    jax.effects_barrier()
    assert sizes == [24 if active <= 24 else 48]
    expected, _ = step(algo, rows=rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found.trained, expected.trained)


def test_an_update_that_is_not_finite_is_skipped_and_counted():
    algo = tiny_play.ppo(minibatches=2, epochs=2)
    rows = prepared(algo)
    optimizer = optax.adam(1e-2)
    train_state, metrics = step(algo, rows=rows.replace(advantages=rows.advantages * jnp.nan), optimizer=optimizer)
    assert int(metrics["skipped"]) == int(metrics["skipped_in_a_row"]) == 4
    assert max(moved(train_state).values()) == 0
    assert int(optax.tree_utils.tree_get(train_state.optimizer, "count")) == 0
    # One bad row affects one minibatch per epoch; the others succeed and reset the count of consecutive skips.
    spoilt = rows.replace(returns=rows.returns.at[0].set(jnp.inf))
    train_state, metrics = step(algo, rows=spoilt, optimizer=optimizer)
    assert int(metrics["skipped"]) == 2 and int(metrics["skipped_in_a_row"]) <= 2
    assert moved(train_state)["model"] > 0 and all(
        np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(train_state.trained))
    )


@pytest.mark.nightly_for("settings1", "settings0")
@pytest.mark.parametrize("settings", [{}, dict(critic="central"), dict(lora=2)])
def test_everything_that_should_learn_learns(settings):
    train_state, metrics = step(tiny_play.ppo(kl_coef=0.1, minibatches=1, entropy_coef=0.0), **settings)
    _, _, frozen, _ = played(**settings)
    for part, distance in moved(train_state, **settings).items():
        assert distance > 1e-5, part
    jax.tree.map(np.testing.assert_array_equal, train_state.frozen, frozen)
    assert float(metrics["kl"]) > 0  # the weights differ from the reference on purpose


def test_each_adapter_learns_from_its_own_agent_only():
    trained = played(lora=2)[1]
    algo = tiny_play.ppo(kl_coef=0.1, minibatches=1, entropy_coef=0.0)
    rows = prepared(algo, lora=2)
    only_first = rows.replace(loss_weights=(rows.policy == 0).astype(jnp.float32)[:, None])
    train_state, _ = step(algo, rows=only_first, lora=2)
    change = jax.tree.map(
        lambda a, b: jnp.abs(a - b).sum((0, 2, 3)), train_state.trained["adapters"], trained["adapters"]
    )
    totals = sum(jax.tree.leaves(change))
    assert float(totals[0]) > 1e-5 and float(totals[1]) == 0


def test_kl_in_the_reward_lowers_what_the_mover_gets():
    samples = played()[-1]
    rows = prepared(tiny_play.ppo(kl_coef=0.5, kl_in="reward", kl_kind="k1"))
    paid = np.asarray(samples.rewards)[:48, 0] - np.asarray(rows.rewards)[:, 0]
    mover = np.asarray(rows.seat)[:, 0]
    expected = 0.5 * np.asarray(rows.logps - rows.ref_logps)[:, 0]
    np.testing.assert_allclose(paid[np.arange(48), mover], expected, atol=1e-5)
    assert (paid[np.arange(48), 1 - mover] == 0).all()


@pytest.mark.nightly
def test_stale_samples_are_weighed():
    samples = played()[-1]
    algo = tiny_play.ppo(minibatches=1, tis_clip=2.0)
    rows = prepared(algo, samples.replace(logps=samples.logps - 0.5))
    np.testing.assert_allclose(rows.old_logps, samples.logps[:48], atol=1e-5)
    _, metrics = step(algo, rows=rows)
    assert float(metrics["ratio"]) == pytest.approx(1, abs=1e-4)
    assert float(metrics["logprob_diff"]) == pytest.approx(0.5, abs=1e-4)
    weight = losses.truncated_importance(rows.old_logps, rows.logps, 2.0)
    np.testing.assert_allclose(weight, np.exp(0.5), rtol=1e-4)


@pytest.mark.parametrize(("kind", "middle"), [("constant", 1.0), ("linear", 0.55), ("cosine", 0.55)])
def test_schedules(kind, middle):
    optim = defaults.optimizer()
    optim.update(dict(lr=1.0, schedule=kind, min_lr_ratio=0.1))
    optim.warmup_updates = 4
    rate = optimizers.schedule(optim, 24)
    np.testing.assert_allclose([float(rate(i)) for i in range(4)], [0.25, 0.5, 0.75, 1.0], rtol=1e-5)
    assert float(rate(14)) == pytest.approx(middle, rel=1e-5)
    assert float(rate(24)) == pytest.approx(1.0 if kind == "constant" else 0.1, rel=1e-4)


@pytest.mark.parametrize("family", ["qwen2.5-0.5b-instruct", "smollm2-135m", "dialogpt-medium"])
def test_norms_and_biases_do_not_decay(family):
    params = jax.eval_shape(build(registry.get(family).config).init, jax.random.key(0))
    decays = jax.tree_util.tree_leaves_with_path(optimizers.decays(params))
    decays = {jax.tree_util.keystr(path, simple=True, separator="."): flag for path, flag in decays}
    spared = {name for name, flag in decays.items() if not flag}
    assert spared == {name for name in decays if "norm" in name or "bias" in name} and 0 < len(spared) < len(decays)


@pytest.mark.parametrize("kind", ["separate", "central"])
def test_a_trunk_that_learns_is_in_float32_though_the_base_is_not(kind):
    base = {"embed": jnp.ones((3, 2), jnp.bfloat16)}
    made = critics.init(kind, tiny_play.policy().model.cfg, base)
    assert {x.dtype for x in jax.tree.leaves(made)} == {jnp.dtype("float32")}


def test_the_critic_may_have_its_own_rate():
    optim = defaults.optimizer()
    optim.update(dict(lr=1e-3, critic_lr=1e-2, schedule="constant", warmup=0, max_grad_norm=0.0))
    optimizer = optimizers.make_optimizer(optim, 10, 1)
    params = {"model": {"w": jnp.ones((2, 2))}, "critic": {"weight": jnp.ones(2)}}
    changes, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
    np.testing.assert_allclose(changes["model"]["w"], -1e-3, rtol=1e-4)
    np.testing.assert_allclose(changes["critic"]["weight"], -1e-2, rtol=1e-4)
