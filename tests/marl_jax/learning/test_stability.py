"""Step sizes that follow the signal, the guard, minibatches of complete groups, and metrics of an update."""

import dataclasses
import functools
import types

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st
from scipy.special import log_softmax

from configs import algorithms, published
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import ALGORITHMS, settings_from
from marl_jax.algorithms.algorithm import ClippedObjective
from marl_jax.learning import groups, losses, stability, update
from marl_jax.learning.optimizer import learning_rate, make_optimizer
from marl_jax.samples import from_prompts
from marl_jax.schema import run_fields
from tests.marl_jax import tiny_play

GRPO = ALGORITHMS.get("grpo")


def completions(n_groups=4, k=4, policies=1, rewards=None, seed=0):
    """Return one row per completion of 5 tokens, as in host tasks; groups alternate between policies."""
    n, rng = n_groups * k, np.random.default_rng(seed)
    group = np.arange(n) // k
    rewards = rng.integers(0, 2, n) if rewards is None else np.asarray(rewards)
    make = jax.jit(from_prompts, static_argnames=("n_groups", "group_size"))
    return make(
        rng.integers(0, 250, (n, 12)), np.full((n,), 7), rng.integers(0, 250, (n, 1, 5)), np.full((n, 1), 5),
        rng.uniform(-3, -1, (n, 1, 5)).astype(np.float32), rewards=rewards.astype(np.float32).reshape(n, 1, 1),
        group=group[:, None], member=(np.arange(n) % k)[:, None], n_groups=n_groups, group_size=k,
        policy=group % policies,
    )  # fmt: skip


@functools.cache
def policy(lora=None):
    return dataclasses.replace(tiny_play.policy("none", lora, free=5), rules=())


@functools.cache
def prepare_program(algo, n_policies):
    """Return the program for advantages, compiled once for all tests with these settings."""
    return jax.jit(lambda weights, samples: GRPO.compute_advantages(policy(n_policies), weights, samples, algo)[0])


def prepared(samples, n_policies=None, **changes):
    """Return policy, state before the update, samples with advantages, and settings."""
    p = policy(n_policies)
    trained, frozen = tiny_play.weights(p)
    algo = settings_from(algorithms.grpo(4, tis_clip=0.0, minibatches=1, **changes))
    state = update.new_train_state(trained, frozen, optax.sgd(1.0))
    return p, state, prepare_program(algo, n_policies)(state.weights, samples), algo


# Metrics


LOGITS = st.lists(st.floats(-5, 5), min_size=3, max_size=3)


@hypothesis.given(LOGITS, LOGITS)
def test_approx_kl_is_exact_in_the_mean_over_tokens_of_the_old_policy(old, new):
    """Schulman's k3 for KL(old ‖ new): its mean under the old policy is the KL itself."""
    old, new = (log_softmax(np.asarray(x, np.float32)) for x in (old, new))
    exact = np.sum(np.exp(old) * (old - new))
    found = np.asarray(losses.kl(old, new, "k3"))
    assert (found >= -1e-6).all()
    np.testing.assert_allclose(np.sum(np.exp(old) * found), exact, rtol=1e-3, atol=1e-5)


def test_the_loss_reports_the_kl_and_the_extreme_ratios():
    _, _, samples, algo = prepared(completions(rewards=[1, 0] * 8))
    shift = np.zeros((16, 5), np.float32)
    shift[0, 0], shift[3, 2] = -25.0, 0.5  # the log-probability of one token decreased by 25 nats
    scores = Scores(np.asarray(samples.logps) + shift, 0 * shift, 0 * shift)
    objective = ClippedObjective(critic=False)
    metrics = jax.jit(
        lambda s: objective.loss(s, objective.loss_weights_for(s, algo), scores, algo, update.Scheduled())[1]
    )(samples)
    np.testing.assert_allclose(metrics["log_ratio_min"], -25, rtol=1e-6)
    np.testing.assert_allclose(metrics["log_ratio_max"], 0.5, rtol=1e-5)
    expected = ((np.exp(-25) - 1 + 25) + (np.exp(0.5) - 1 - 0.5)) / 80
    np.testing.assert_allclose(metrics["approx_kl"], expected, rtol=1e-5)


@pytest.mark.nightly
def test_extreme_ratios_do_not_depend_on_the_parts_of_a_minibatch():
    p, state, samples, algo = prepared(completions(rewards=[1, 0, 0, 0] * 4))
    found = {}
    for parts in (1, 4):
        algo = dataclasses.replace(algo, grad_accum_steps=parts, minibatches=2)
        learn = jax.jit(update.make_update(p, optax.sgd(0.5), GRPO.objective, algo))
        found[parts] = learn(state, samples, jax.random.key(0))[1]
    assert found[1]["log_ratio_min"] < found[1]["log_ratio_max"]
    for name in ("log_ratio_min", "log_ratio_max"):
        np.testing.assert_allclose(found[1][name], found[4][name], rtol=1e-4)


def test_the_learning_rate_of_the_next_step():
    optim = run_fields.group("optim", lr=0.1, warmup=2, schedule="linear")
    optimizer = make_optimizer(optim, 10, 2)
    params, rates = {"model": {"w": jnp.ones((2, 2))}}, []
    state = optimizer.init(params)
    for _ in range(20):
        rates.append(float(learning_rate(optim, 10, 2, state)))
        _, state = optimizer.update(params, state, params)
    np.testing.assert_allclose(rates[:4], [0.025, 0.05, 0.075, 0.1], rtol=1e-5)
    assert rates[4] == pytest.approx(0.1) and rates[-1] == pytest.approx(0.1 / 16, rel=1e-3)
    assert learning_rate(optim, 10, 2, optax.sgd(0.1).init(params)) is None


# Signal


@pytest.mark.nightly
def test_the_share_of_informative_completions_is_that_of_each_policy():
    samples = completions(policies=2, rewards=[1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    for filtered in (True, False):
        p, _, after, _ = prepared(samples, 2, filter_zero_std_groups=filtered)
        np.testing.assert_allclose(stability.signal(p, samples, after).informative, [0.0, 0.5])
    frozen = samples.replace(loss_weights=samples.loss_weights * (samples.policy != 0)[:, None])
    np.testing.assert_allclose(stability.signal(p, frozen, after).informative, [1.0, 0.5])
    ungrouped = stability.signal(p, samples, after.replace(informative=None))
    np.testing.assert_allclose(ungrouped.informative, [1.0, 1.0])


def test_groups_that_failed_do_not_weaken_the_signal_and_solved_ones_do():
    few, failed, solved = [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]
    for others, strength in ((failed, 1.0), (solved, 0.25)):
        samples = completions(rewards=few + 3 * others)
        p, _, after, _ = prepared(samples)
        found = stability.signal(p, samples, after)
        np.testing.assert_allclose([found.informative[0], found.strength[0]], [0.25, strength])
    kept = stability.worth_keeping(after, samples.loss_weights > 0)
    assert kept[:, 0].tolist() == [True, False, False, False] + 12 * [True]


@pytest.mark.nightly
def test_a_step_from_8_of_512_completions_is_at_most_018_of_a_full_one():
    scale = stability.signal_scale(jnp.asarray([8 / 512, 0.5, 1.0, 0.0]), 0.5)
    np.testing.assert_allclose(scale, [0.1768, 1.0, 1.0, 0.0], atol=1e-4)
    np.testing.assert_array_equal(stability.signal_scale(jnp.asarray([0.0, 0.3]), 0.0), 1.0)
    optimizer = make_optimizer(run_fields.group("optim", warmup=0), 10, 1)
    p = policy()
    trained, frozen = tiny_play.weights(p)
    grads = jax.tree.map(lambda x: jnp.ones_like(x) * 1e-3, trained)

    def largest(scale):
        state = update.new_train_state(trained, frozen, optimizer)
        learns, metrics = jnp.ones((1,), bool), {"loss": jnp.ones(())}
        step = jax.jit(lambda state: update.apply_gradients(p, optimizer, state, grads, metrics, learns, scale)[0])
        after = step(state)
        return max(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), after.trained, trained)))

    np.testing.assert_allclose(largest(scale[:1]) / largest(None), 0.1768, rtol=1e-2)


def test_each_adapter_moves_by_its_own_scale():
    p, state, after, algo = prepared(completions(policies=2, rewards=[1, 0, 0, 0] * 4), 2)
    learn = jax.jit(update.make_update(p, optax.sgd(1.0), GRPO.objective, algo))
    (full, _), (scaled, _) = (
        learn(state, after, jax.random.key(0), jnp.asarray(scale)) for scale in ([1.0, 1.0], [0.25, 0.0])
    )
    for new, less, old in zip(*(jax.tree.leaves(s.trained["adapters"]) for s in (full, scaled, state)), strict=True):
        np.testing.assert_allclose(less[:, 0] - old[:, 0], 0.25 * (new[:, 0] - old[:, 0]), atol=1e-6)
        np.testing.assert_array_equal(less[:, 1], old[:, 1])


# Complete groups


@pytest.mark.parametrize(("n_groups", "k", "padding"), [(1, 5, 0), (6, 1, 3), (5, 4, 4)])
def test_rows_by_group_keep_groups_together_and_lose_no_row(n_groups, k, padding):
    group = np.repeat([*range(n_groups), 0], [k] * n_groups + [padding])
    lengths = np.repeat([1, 0], [n_groups * k, padding])
    samples = types.SimpleNamespace(
        n=len(group),
        n_groups=n_groups,
        group=jnp.asarray(group)[:, None],
        completion_lengths=jnp.asarray(lengths)[:, None],
        active=lambda: jnp.asarray(lengths) > 0,
    )
    orders = jax.jit(jax.vmap(lambda key: update.rows_by_group(key, samples)))(jax.random.split(jax.random.key(0), 50))
    for order in np.asarray(orders):
        assert sorted(order) == list(range(len(group)))
        for g in range(n_groups):
            own = np.flatnonzero((group[order] == g) & (lengths[order] > 0))
            assert own.tolist() == list(range(own[0], own[0] + k))
    assert len({tuple(order) for order in np.asarray(orders).tolist()}) > (1 if n_groups + padding > 1 else 0)


@pytest.mark.nightly
def test_minibatches_of_whole_groups_have_no_net_advantage():
    samples = completions(8, 4, rewards=np.random.default_rng(1).integers(0, 2, 32))
    p, state, after, algo = prepared(samples)
    found = {}
    for whole in (True, False):
        algo = dataclasses.replace(algo, minibatches=4, minibatch_groups=whole)
        learn = jax.jit(update.make_update(p, optax.sgd(0.1), GRPO.objective, algo))
        found[whole] = learn(state, after, jax.random.key(3))[1]
    for side in ("net_advantage_min", "net_advantage_max"):
        np.testing.assert_allclose(found[True][side], 0.0, atol=1e-5)
    assert found[False]["net_advantage_min"] < -0.05 < 0.05 < found[False]["net_advantage_max"]


# Guard


@functools.cache
def check_program(policy, algo):
    """Compile a check of the guard."""

    @jax.jit
    def check(old, new, samples, after):
        return stability.UpdateGuard.before(policy, old, samples, after, algo).check(old, new)

    return check


def guarded(limit, n_policies=None, moved=0.0, only=None, factor=1.0, grad_accum_steps=1):
    """Check an update that moves the adapters of `only` (all) randomly by `moved`, and return the state."""
    samples = completions(6, 4, policies=n_policies or 1, rewards=[1, 1, 1, 1] * 6)  # no group is informative
    p, before, after, algo = prepared(samples, n_policies)
    guard = dict(guard="on", guard_drop=limit, guard_completions=8)
    algo = dataclasses.replace(algo, grad_accum_steps=grad_accum_steps, **guard)
    before = dataclasses.replace(before, lr_factor=before.lr_factor * factor)
    noise = lambda x: x + moved * jax.random.normal(jax.random.key(1), x.shape)  # noqa: E731
    trained = {name: jax.tree.map(noise, tree) if name != "critic" else tree for name, tree in before.trained.items()}
    if only is not None:
        trained = update.where_policies(jnp.arange(n_policies) == only, trained, before.trained)
    moved_to = dataclasses.replace(before, trained=trained)

    return before, moved_to, *check_program(p, algo)(before, moved_to, samples, after)


def test_the_guard_accepts_a_small_step_and_the_rate_recovers():
    _, after, state, metrics = guarded(limit=1.0, moved=1e-4, factor=0.5)
    assert metrics["rejected"] == 0 and 0 <= metrics["completion_drop"] < 0.1
    jax.tree.map(np.testing.assert_array_equal, state.trained, after.trained)
    np.testing.assert_allclose(state.lr_factor, 0.5 * stability.REGROW)
    np.testing.assert_allclose(guarded(limit=1.0, moved=1e-4)[2].lr_factor, 1.0)


def test_the_guard_restores_weights_of_a_harmful_update_from_completions_without_a_signal():
    before, after, state, metrics = guarded(limit=0.05, moved=0.5)
    assert metrics["rejected"] == 1 and metrics["completion_drop"] > 0.05
    jax.tree.map(np.testing.assert_array_equal, state.trained, before.trained)
    assert state.lr_factor.tolist() == [0.5]


def test_the_guard_judges_every_adapter_by_its_own_completions():
    before, after, state, metrics = guarded(limit=0.05, n_policies=2, moved=2.0, only=1)
    assert metrics["rejected"].tolist() == [0, 1] and metrics["completion_drop"][0] == 0
    jax.tree.map(np.testing.assert_array_equal, state.trained, before.trained)
    assert state.lr_factor.tolist() == [1.0, 0.5]


@pytest.mark.nightly_for("24-1", "1-16")
@pytest.mark.parametrize("steps, at_once", [(1, 16), (6, 4), (24, 1)])
def test_the_guard_scores_no_more_rows_at_a_time_than_the_update(monkeypatch, steps, at_once):
    """The rows of two policies, 8 each, next to an update of 24 rows."""
    scored, answer_logps = [], stability.scoring.answer_logps

    def record(policy, weights, samples):
        scored.append(samples.n)
        return answer_logps(policy, weights, samples)

    expected = guarded(limit=1.0, n_policies=2, moved=0.5)[3]
    monkeypatch.setattr(stability.scoring, "answer_logps", record)
    if steps == 1:  # then the program is the one above
        jax.clear_caches()
    metrics = guarded(limit=1.0, n_policies=2, moved=0.5, grad_accum_steps=steps)[3]
    assert set(scored) == {at_once}
    assert (metrics["completion_drop"] > 0).all()
    np.testing.assert_allclose(metrics["completion_drop"], expected["completion_drop"], rtol=1e-5)


def test_weights_that_are_not_finite_are_rejected():
    before, after, state, metrics = guarded(limit=1.0, moved=float("nan"))
    assert metrics["rejected"] == 1
    jax.tree.map(np.testing.assert_array_equal, state.trained, before.trained)


@pytest.mark.nightly
def test_the_guard_scores_completions_of_many_groups_and_none_that_do_not_count():
    samples = completions(8, 4, rewards=[1, 0, 0, 0] * 4 + [1, 1, 1, 1] * 4)
    samples = samples.replace(loss_weights=samples.loss_weights.at[:8].set(0.0))  # the first two groups
    p, state, after, algo = prepared(samples)
    algo = dataclasses.replace(algo, guard="on", guard_completions=18)
    guard = stability.UpdateGuard.before(p, state, samples, after, algo)
    # Groups 2 and 3 have one completion worth keeping, which the update makes more likely; all of the others are.
    assert sorted(guard.rows.group[:, 0].tolist()) == sorted([2, 3] + [g for g in range(4, 8) for _ in range(4)])
    assert guard.weight.sum() == 18 and (guard.rows.advantages >= 0).all()


def test_guards_are_for_adapters_unless_the_config_says_otherwise():
    def is_guarded(algo, n=None):
        return stability.is_guarded(policy(n), settings_from(algo))

    assert not is_guarded(algorithms.grpo()) and is_guarded(algorithms.grpo(), 2)
    assert is_guarded(algorithms.ppo(guard="on"))
    assert not is_guarded(algorithms.ppo(guard="off"), 2) and not is_guarded(algorithms.sft(), 2)
    for form in (published.grpo(), published.dapo(), published.gspo(), published.rloo(), published.maporl()):
        assert not is_guarded(form, 2) and settings_from(form).signal_frac == 0


# Options


def test_batch_wide_deviation_is_that_of_all_informative_groups():
    rewards = np.asarray([[1.0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 1, 1]], np.float32)
    found = jax.device_get(jax.jit(lambda rewards: groups.advantages(rewards, normalize="batch"))(rewards))
    centred = rewards[:2] - rewards[:2].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(found.advantages[:2], centred / np.sqrt(np.mean(centred**2)), rtol=1e-4)
    np.testing.assert_array_equal(found.advantages[2], 0.0)


def test_ratio_masks():
    _, _, samples, _ = prepared(completions(1, 4, rewards=[1, 0, 0, 0]))
    old = np.full((4, 5), np.log(0.5), np.float32)
    new = old.copy()
    new[0, 0], new[1, 1], new[2, 2] = np.log([0.75, 0.25, 0.45])
    ratio_mask = jax.jit(losses.ratio_mask, static_argnums=(3, 4))
    mask = ratio_mask(samples, new, old, "probability", 0.2)
    assert np.argwhere(mask == 0).tolist() == [[0, 0], [1, 1]]
    # k3 of the three changed tokens is 0.095, 0.193 and 0.005, averaged over five tokens
    mask = ratio_mask(samples, new, old, "sequence", 0.01)
    assert np.argwhere(np.asarray(mask)[:, 0] == 0).tolist() == [
        [1]
    ]  # row 0 has a positive advantage, row 2 changed little


@pytest.mark.nightly_for("probability", "sequence")
@pytest.mark.parametrize("kind", ["probability", "sequence"])
def test_a_run_of_updates_with_a_ratio_mask_is_finite(kind):
    p, state, samples, algo = prepared(completions(rewards=[1, 0, 0, 0] * 4), ratio_mask=kind, ratio_mask_limit=1e-3)
    algo = dataclasses.replace(algo, minibatches=2)
    learn = jax.jit(update.make_update(p, optax.sgd(5.0), GRPO.objective, algo))
    state, metrics = learn(state, samples, jax.random.key(0))
    assert metrics["skipped"] == 0 and np.isfinite(metrics["loss"])
