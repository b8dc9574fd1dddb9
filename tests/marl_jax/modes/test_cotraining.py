"""Runs with several policies: each is trained on its own completions, and frozen ones do not change."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import algorithms, defaults, models, published
from marl_jax import setup as setups
from marl_jax.agents.policy import LoraSpec
from marl_jax.algorithms import ALGORITHMS, settings_from
from marl_jax.learning import update
from marl_jax.learning.learn_step import all_weights, learn_step, optimizer_for
from marl_jax.learning.optimizer import make_optimizer
from marl_jax.modes import train
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import run_fields, validate
from marl_jax.setup.train_programs import saved
from models.weights.load import load
from tests.marl_jax import tiny_task
from tests.marl_jax.modes.test_task_runs import untimed
from tests.marl_jax.tiny_host import FakeSampler, conversation, free_policy, make_rollout
from tests.models.tiny_models import quick_jit

pytestmark = pytest.mark.long


def equal(one, other):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


# ------------------------------------------------------------------------------------------------ adapters on one base

FIRST, SECOND, FROZEN = range(3)


@functools.cache
def adapters():
    """Return a run with three adapters: the second shares its seat with the third, which is frozen."""
    spec = LoraSpec(3, 2, 4.0, ("q", "v", "down"), learns=(True, True, False))
    policy = dataclasses.replace(free_policy(), critic="head", lora=spec)
    sampler = FakeSampler()
    speaker = Speaker(sampler, sampler.tokenizer, Sampling(max_new_tokens=8), 4000)
    speakers = [dataclasses.replace(speaker, policy=i, number=n) for i, n in enumerate((FIRST, SECOND, -1))]
    seating = ((FIRST, FIRST, FIRST), (SECOND, FROZEN))
    rollout = make_rollout(
        conversation, speakers=speakers, seating=lambda seat, turn: seating[seat][turn], n_examples=3, time_order=True
    )
    samples = rollout({}, rollout.init(None, None))[0]
    rollout.close()
    rng = np.random.default_rng(0)
    noise = {name: rng.normal(size=samples.targets.shape) for name in ("values", "advantages", "returns")}
    samples = samples.replace(completion_at=None, **{name: x.astype(np.float32) for name, x in noise.items()})
    algo = settings_from(algorithms.ppo(gae="token", epochs=1, minibatches=1, tis_clip=0.0))
    # Clipping by the norm of all gradients would couple the step sizes of the adapters.
    optimizer = make_optimizer(run_fields.group("optim", max_grad_norm=0.0, weight_decay=0.1), 10, 1)
    key = jax.random.key(0)
    trained, frozen = policy.init(policy.model.init(key), key)
    trained["adapters"] = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), trained["adapters"])
    state = update.new_train_state(trained, frozen, optimizer)
    step = quick_jit(update.make_update(policy, optimizer, ALGORITHMS.get("ppo").objective, algo))
    return state, jax.tree.map(jnp.asarray, samples), step


def of_adapter(tree, number):
    """Return the part of an adapter of parameters or moments."""
    return [np.asarray(x)[:, number] for x in jax.tree.leaves(tree["adapters"])]


def everything(state, number):
    """Return the parameters and both moments of an adapter."""
    adam = next(part for part in state.optimizer if hasattr(part, "mu"))
    return [of_adapter(tree, number) for tree in (state.trained, adam.mu, adam.nu)]


@pytest.mark.nightly
def test_an_adapter_learns_nothing_from_the_answers_of_others():
    state, samples, step = adapters()
    theirs = np.asarray(samples.policy != SECOND)[:, None]
    other = samples.replace(
        tokens=jnp.where(theirs, (samples.tokens + 1) % 256, samples.tokens),
        targets=jnp.where(theirs, (samples.targets + 1) % 256, samples.targets),
        advantages=jnp.where(theirs, -samples.advantages, samples.advantages),
        returns=jnp.where(theirs, samples.returns + 1, samples.returns),
    )
    one, two = (step(state, rows, jax.random.key(1))[0] for rows in (samples, other))
    assert equal(everything(one, SECOND), everything(two, SECOND))
    assert not equal(everything(one, SECOND), everything(state, SECOND))
    assert not equal(everything(one, FIRST), everything(two, FIRST))


def test_adapters_that_do_not_learn_keep_parameters_and_moments():
    """An adapter is frozen, or has no completion in this update after its moments have built up."""
    state, samples, step = adapters()
    first, _ = step(state, samples, jax.random.key(1))
    assert equal(everything(first, FROZEN), everything(state, FROZEN))
    for number in (FIRST, SECOND):
        assert not any(equal(a, b) for a, b in zip(everything(first, number), everything(state, number), strict=True))
    block = samples.replace(loss_weights=samples.loss_weights * (samples.policy == FIRST)[:, None])
    second, _ = step(first, block, jax.random.key(2))
    for number in (SECOND, FROZEN):
        assert equal(everything(second, number), everything(first, number))
    assert not any(equal(a, b) for a, b in zip(everything(second, FIRST), everything(first, FIRST), strict=True))
    nobody = samples.replace(loss_weights=0 * samples.loss_weights)
    third, _ = step(second, nobody, jax.random.key(3))
    assert equal(third.trained, second.trained) and int(third.skipped) == 0


@pytest.mark.nightly_for("float32")
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_moments_stay_where_an_adapter_does_not_learn(kind):
    """One step by hand: the second of two adapters has moments and a gradient, but no completion."""
    rng = np.random.default_rng(0)
    draw = lambda: {"q": {"b": jnp.asarray(rng.normal(size=(2, 2, 3, 4)), jnp.float32)}}  # noqa: E731
    policy = dataclasses.replace(free_policy(), lora=LoraSpec(2, 3, 4.0, ("q",), learns=(True, True)))
    optimizer = make_optimizer(run_fields.group("optim", adam_state_dtype=kind), 10, 1)
    trained = {"adapters": draw(), "critic": {"bias": jnp.ones(())}}
    state = update.new_train_state(trained, {}, optimizer)

    def step(state, learns):
        grads = {"adapters": draw(), "critic": {"bias": jnp.ones(())}}
        return update.apply_gradients(policy, optimizer, state, grads, {"loss": jnp.ones(())}, jnp.asarray(learns))[0]

    first = step(state, [True, True])
    second = step(first, [True, False])
    third = step(second, [False, False])
    assert not equal(everything(first, 1), everything(state, 1))
    assert equal(everything(second, 1), everything(first, 1)) and not equal(everything(second, 0), everything(first, 0))
    assert second.trained["critic"]["bias"] != first.trained["critic"]["bias"], "the adapters share it"
    assert equal(third.trained, second.trained) and equal(everything(third, 0), everything(second, 0))
    counts = [next(part for part in s.optimizer if hasattr(part, "mu")).count for s in (first, second, third)]
    assert counts == [1, 2, 3], "the schedule of the learning rate is the run's"


# ------------------------------------------------------------------------------- base models with different tokenizers


@pytest.fixture(scope="module")
def mixed(other_model):
    """A step of two agents with different shapes and tokenizers: (config, samples, before, after, …)."""
    other = models.model("smollm2-135m", weights=str(other_model), dtype="float32", remat="none")
    config = tiny_task.get_config("ppo+debate_of_bytes")
    config.task.update(dict(n_episodes=2, max_length=256))
    config.algo.update(dict(tis_clip=0.0))
    config.agents = ConfigDict(dict(agent_0="bytes", agent_1="pairs"))
    config.policies = ConfigDict(dict(bytes=defaults.policy(), pairs=defaults.policy(model=other)))
    validate.check(config)
    setup = setups.make(config)
    rollout = setup.rollout
    states, learn = start(setup)
    with jax.set_mesh(setup.mesh):
        samples, *_ = rollout(all_weights(states), rollout.init(None, None))
        learnt, metrics = learn(states, samples, jax.random.key(1))
    rollout.close()
    setup.close()
    return setup, samples, (states, learnt, metrics), learn


def start(setup):
    """Return the train states of a run and its update."""
    optimizer = optimizer_for(setup.config)
    with jax.set_mesh(setup.mesh):
        states = {b.name: update.new_train_state(*b.weights_at_start(), optimizer, setup.mesh) for b in setup.backbones}
    return states, quick_jit(functools.partial(learn_step, setup, optimizer))


@pytest.mark.nightly
def test_models_of_different_tokenizers_exchange_text(mixed):
    """Each model reads the other's completions in its own tokens."""
    setup, samples, *_ = mixed
    samples = jax.device_get(samples)
    tokenizers = {b.name: b.tokenizer for b in setup.backbones}
    assert tokenizers["bytes"].fingerprint != tokenizers["pairs"].fingerprint
    said, read = {}, {}
    for n in np.flatnonzero(samples.lengths):
        place = int(samples.episode[n, 0]), int(samples.seat[n, 0])
        tokenizer = tokenizers[("bytes", "pairs")[place[1]]]
        said[place] = tokenizer.decode(samples.targets[n, samples.completion_of[n] == 0].tolist(), skip_special=True)
        read[place] = tokenizer.decode(samples.tokens[n, : samples.context_len[n, 1]].tolist())
    assert len(said) == 4 and all(said.values())
    for (episode, seat), text in read.items():
        assert f"<{said[episode, 1 - seat]}>" in text and f"for agent_{seat}" in text


@pytest.mark.nightly
def test_every_model_learns_from_its_own_answers(mixed):
    setup, samples, (states, learnt, metrics), learn = mixed
    for name in ("bytes", "pairs"):
        assert float(metrics[f"{name}/logprob_diff"]) < 1e-4, "the learner scores what the sampler drew"
        assert int(metrics[f"{name}/completions_trained"]) == 4
        assert not equal(learnt[name].trained["model"], states[name].trained["model"])
    only = samples.replace(loss_weights=samples.loss_weights * (samples.seat == 1))
    with jax.set_mesh(setup.mesh):
        after, _ = learn(states, only, jax.random.key(1))
    assert equal(after["bytes"].trained, states["bytes"].trained)
    assert equal(after["pairs"].trained, learnt["pairs"].trained), "what the other learns changes nothing"


@pytest.mark.nightly
def test_a_frozen_model_is_given_to_no_update_and_stays_as_it_came(mixed, other_model, monkeypatch):
    """Only check which train states the update changes."""
    setup, samples, *_ = mixed
    config = setup.config.copy_and_resolve_references()
    config.policies.pairs.frozen = True
    frozen = setups.make(config)
    assert frozen.learns == tuple(name == "bytes" for name in frozen.team.policies)
    states, _ = start(frozen)
    assert equal(states["pairs"].weights, {"model": load(other_model)[1]}) and not states["pairs"].trained
    assert not [x for x in jax.tree.leaves(states["pairs"].optimizer) if x.ndim], "no moments"
    updated = []

    def record(update, state, rows, key, max_rows):
        updated.append(state)
        return dataclasses.replace(state, skipped=state.skipped + 1), {"loss": jnp.zeros(())}

    monkeypatch.setattr("marl_jax.learning.learn_step.update_active_rows", record)
    nothing = dataclasses.replace(frozen.algorithm, compute_advantages=lambda policy, weights, rows, algo: (rows, {}))
    with jax.set_mesh(frozen.mesh):
        after, _ = learn_step(dataclasses.replace(frozen, algorithm=nothing), None, states, samples,
                                    jax.random.key(1))  # fmt: skip
    assert len(updated) == 1 and updated[0] is states["bytes"]
    assert after["pairs"] is states["pairs"] and after["bytes"] is not states["bytes"]
    assert set(saved(after, {})["optimizer"]) == {"bytes"}


# ------------------------------------------------------------------------------------------------------ blocks of turns


def checkpoint(workdir, step):
    checkpoints = Checkpoints(workdir, read_only=True)
    found = checkpoints.restore(step=step) if step else checkpoints.restore()
    checkpoints.close()
    return found


@pytest.mark.nightly
def test_turns_learn_in_blocks_and_a_resumed_run_is_the_same(tmp_path):
    """One policy per turn: two steps train the first and two the second, with an interruption."""
    config = tiny_task.get_config("ppo+debate_of_bytes")
    config.steps, config.checkpoint.every, config.checkpoint.keep = 5, 1, 5
    config.task.update(dict(n_episodes=2, max_length=256))
    config.agents = ConfigDict({"all": "first", "all@1": "later"})
    config.policies = ConfigDict(dict(first=defaults.policy(), later=defaults.policy()))
    config.model.lora.rank = 2
    config.algo = published.maporl(turns=2, epochs=1, minibatches=1, train_turns=(1, 0), turn_block=2)
    config.optim.update(dict(lr=0.05, weight_decay=0.1))
    validate.check(config)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.train(config, whole)
    rows = read_json_lines(whole / "metrics.jsonl")
    assert [row["train_turn"] for row in rows] == [1, 1, 0, 0, 1]
    assert all(row["completions"] == 8 and row["completions_trained"] == 4 for row in rows)
    # With this step size, completions sampled after another update would have very different log-probabilities.
    assert all(row["logprob_diff"] < 1e-5 for row in rows)

    names = setups.make(config).team.policies
    kept = [checkpoint(whole, step).state for step in range(1, 6)]
    for step, (before, after) in enumerate(zip(kept, kept[1:], strict=False), 1):
        (one,), (two,) = ([*state["trained"].values()] for state in (before, after))
        unchanged = {name: equal(of_adapter(one, i), of_adapter(two, i)) for i, name in enumerate(names)}
        later = rows[step]["train_turn"] == 1
        assert unchanged == {"first": later, "later": not later}, step

    shutil.copytree(whole, parts)
    for step in (4, 5):
        shutil.rmtree(parts / "checkpoints" / str(step))
    train.train(config, parts)
    ours, theirs = checkpoint(whole, None), checkpoint(parts, None)
    assert ours.step == theirs.step == 5 and ours.meta == theirs.meta
    jax.tree.map(np.testing.assert_array_equal, ours.state, theirs.state)
    assert untimed(whole) == untimed(parts)
