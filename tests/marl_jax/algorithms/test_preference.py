"""Preference algorithms: pairs in rows against pairs in two, planted preferences, files of pairs, and configs."""

import contextlib
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import algorithms
from envs.tasks.data import DataError
from envs.tasks.task import Outcome
from marl_jax import setup as setups
from marl_jax.agents import scoring
from marl_jax.agents.verifier import read_chat
from marl_jax.algorithms import ALGORITHMS
from marl_jax.algorithms.preference import compute_advantages
from marl_jax.errors import ConfigError, RunError
from marl_jax.learning import preferences
from marl_jax.learning.update import Scheduled, new_train_state, summed_gradients
from marl_jax.modes import evaluate, train
from marl_jax.rollouts import labelled, pairs
from marl_jax.running.metric_help import explain
from marl_jax.running.metrics import read_json_lines
from marl_jax.samples import rows as take
from marl_jax.schema import validate
from marl_jax.setup import scorers
from marl_jax.setup.weights import restore_weights, untuned_weights
from models import lora, tokenizers
from tests.marl_jax import tiny_host, tiny_task, tiny_verifier

ONLINE = ("dpo", "ipo", "sppo", "nash_md")
TREND = ("loss", "preference_accuracy", "preference_margin")


@pytest.fixture(scope="module", autouse=True)
def small():
    """Use short rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "TOKEN_UNIT", 32)
        yield


# --------------------------------------------------------------------------------------------------------------- rows


async def two_turns(ask, example):
    """Two seats reply twice; the first is rewarded for its last text, the second loses what the first wins."""
    chats = [ask.chat(0), ask.chat(1)]
    for turn in range(2):
        for chat in chats:
            reply = await chat.say(f"{example} {turn}")
    amount = len(reply.text) / 7
    reply.reward(team=amount, agent=-2 * amount)
    return Outcome(0.5)


@functools.cache
def played():
    """Policy, weights of policy and reference, and samples with one row per episode and seat."""
    policy = tiny_host.free_policy()
    rollout = tiny_host.make_rollout(two_turns, samples=2, n_examples=4)
    try:
        samples, _, _ = rollout({}, rollout.init(None, None))
    finally:
        rollout.close()
    trained, _ = policy.init(policy.model.init(jax.random.key(0), jnp.float32), jax.random.key(1))
    other = policy.model.init(jax.random.key(2), jnp.float32)
    return policy, trained, {"reference": other}, jax.tree.map(jnp.asarray, samples)


@functools.cache
def scored():
    """Log-probabilities of policy and reference on separate rows, and scores of the joined ones."""
    policy, trained, frozen, samples = played()
    logps = jax.jit(functools.partial(scoring.answer_logps, policy))(trained, samples)
    ref = jax.jit(functools.partial(scoring.reference_logps, policy))({**frozen, **trained}, samples)
    return logps, ref, jax.jit(functools.partial(scoring.score, policy))(trained, preferences.join_pairs(samples))


def algorithm(name, **changes):
    entry = ALGORITHMS.get(name)
    return entry, dataclasses.replace(entry.settings(), **changes)


def by_hand(name, algo, samples, logps, ref, old):
    """The loss of the published formulas, pair by pair, from log-probabilities of separate rows."""
    mask = np.asarray(samples.completion_of) >= 0
    first = {n: np.asarray(getattr(samples, n))[:, 0] for n in ("group", "seat", "member")}
    returns = np.zeros((samples.n_groups, 2, samples.n_seats))
    np.add.at(returns, (np.asarray(samples.group), np.asarray(samples.member)), np.asarray(samples.rewards))
    sums, ratios, drift = {}, {}, {}
    for row in range(samples.n):
        if samples.completion_lengths[row, 0] == 0:
            continue
        key = first["group"][row], first["seat"][row], first["member"][row]
        sums[key] = np.sum((logps * mask)[row])
        ratios[key] = np.sum(((logps - ref) * mask)[row]) / (mask[row].sum() if algo.average_tokens else 1)
        drift[key] = np.sum(((old - ref) * mask)[row])
    weights = {key: math.exp(-algo.mixture * x) for key, x in drift.items()}
    mean = np.mean(list(weights.values()))
    losses = []
    for group, seat in sorted({key[:2] for key in sums}):
        won, lost = ((group, seat, member) for member in (0, 1))
        r = returns[group, :, seat]
        if r[0] == r[1] and name in ("dpo", "ipo"):
            continue
        won, lost = (won, lost) if r[0] >= r[1] else (lost, won)
        p = 0.5 if r[0] == r[1] else 1.0
        a, b, beta = ratios[won], ratios[lost], algo.beta
        if name == "dpo":
            losses.append(math.log1p(math.exp(-beta * (a - b))))
        elif name == "ipo":
            losses.append((a - b - 1 / (2 * beta)) ** 2)
        elif name == "sppo":
            losses.append((a - (p - 0.5) / beta) ** 2 + (b + (p - 0.5) / beta) ** 2)
        else:
            sides = ((won, lost, p - 0.5), (lost, won, 0.5 - p))
            losses.append(np.mean([-sums[i] * (weights[j] / mean * x - beta * ratios[i]) for i, j, x in sides]))
    return np.mean(losses), len(losses)


@pytest.mark.nightly_for("sppo")
@pytest.mark.parametrize("name", ONLINE)
def test_the_loss_of_joined_rows_equals_the_published_formula_on_separate_ones(name, monkeypatch):
    policy, _, _, samples = played()
    logps, ref, scores = scored()
    monkeypatch.setattr(scoring, "answer_logps", lambda *_: logps)
    monkeypatch.setattr(scoring, "reference_logps", lambda *_: ref)
    entry, algo = algorithm(name)
    prepared, metrics = jax.jit(lambda s: compute_advantages(policy, {}, s, algo))(samples)
    assert prepared.n == samples.n // 2
    weighed = entry.objective.loss_weights_for(prepared, algo)
    loss = jax.jit(lambda part: entry.objective.loss(*part, algo, Scheduled()))
    value, reported = loss((prepared, weighed, scores))
    own, other = np.asarray(logps), np.asarray(logps if algo.previous_reference else ref)
    expected, count = by_hand(name, algo, samples, own, other, own)
    np.testing.assert_allclose(value, expected, rtol=2e-4, atol=1e-6)
    tied = float(metrics["tied_pairs"]) * float(metrics["pairs"]) if algo.drops_ties else 0.0
    assert float(metrics["pairs"]) - tied == pytest.approx(count)
    parts = [
        loss((take(prepared, slice(i, None, 2)), *jax.tree.map(lambda x, i=i: x[i::2], (weighed, scores))))
        for i in range(2)
    ]
    np.testing.assert_allclose(sum(part for part, _ in parts), value, rtol=1e-4, atol=1e-6)
    for metric in {**reported, **metrics}:
        assert explain(metric), metric


@pytest.mark.nightly
def test_accumulated_gradients_equal_those_of_the_minibatch():
    policy, trained, frozen, samples = played()
    gradients = []
    for parts in (1, 2):
        entry, algo = algorithm("dpo", grad_accum_steps=parts)
        state = new_train_state(trained, frozen, optax.sgd(0.1))
        prepared, _ = jax.jit(lambda s, algo=algo: compute_advantages(policy, {**frozen, **trained}, s, algo))(samples)
        run = jax.jit(lambda s, x, e=entry, a=algo: summed_gradients(policy, e.objective, a, Scheduled(), s, x))
        gradients.append(run(state, prepared)[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), *gradients)
    assert max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(gradients[0])) > 1e-4


# ---------------------------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def pair_file(tmp_path_factory):
    """A file with the pairs of a planted preference; no prompt occurs twice."""
    return tiny_verifier.write_pairs(tmp_path_factory.mktemp("pairs") / "train.jsonl", tiny_verifier.pairs(3200))


@pytest.mark.nightly
def test_dpo_recovers_a_planted_preference(pair_file, tmp_path):
    config = tiny_verifier.preference_config("dpo", pair_file)
    config.eval.every, config.checkpoint.best_metric = config.steps, "pairs/accuracy"
    validate.check(config)
    train.train(config, tmp_path)
    *_, held_out = (row for row in read_json_lines(tmp_path / "eval.jsonl") if row["opponent"] == "pairs")
    assert held_out["accuracy"] > 0.9 and held_out["games"] > 120, "a twentieth of 3200 prompts, never learned from"
    rows = read_json_lines(tmp_path / "metrics.jsonl")
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-3), "policy and reference are equal at first"
    last = {name: np.mean([row[name] for row in rows[-10:]]) for name in rows[-1] if name in TREND}
    assert last["loss"] < 0.3 and last["preference_accuracy"] > 0.9
    assert last["preference_margin"] > 1.0
    other = tiny_verifier.preference_config("dpo", pair_file)
    other.model.init_from, other.model.shape.vocab_size = str(tmp_path), 512
    with pytest.raises(RunError, match=r"does not fit: shape is .* there and .*'vocab_size': 512"):
        train.train(other, tmp_path / "other")  # a reference with another vocabulary


@pytest.mark.nightly
@pytest.mark.parametrize("name, rank", [("dpo", 0), ("dpo", 2), ("ipo", 2)])
def test_held_out_margins_are_those_of_the_models(name, rank, pair_file, tmp_path):
    """They are computed again from logits, without samples, batches and adapters of the policy."""
    config = tiny_verifier.preference_config(name, pair_file)
    config.steps, config.algo.n_pairs, config.model.lora.rank, config.model.dtype = 2, 16, rank, "float32"
    config.eval.every, config.checkpoint.every, config.checkpoint.best_metric = 2, 2, "pairs/accuracy"
    config.optim.warmup = 0
    validate.check(config)
    train.train(config, tmp_path)
    first, last = (row for row in read_json_lines(tmp_path / "eval.jsonl") if row["opponent"] == "pairs")
    assert first["accuracy"] == 0.5 and first["margin"] == pytest.approx(0.0, abs=1e-5)

    with contextlib.closing(setups.make(config, workdir=tmp_path)) as setup, jax.set_mesh(setup.mesh):
        policy, tokenizer = setup.backbone.policy, setup.backbone.tokenizer
        model = policy.model
        before, after = untuned_weights(setup)["main"], restore_weights(setup, tmp_path, "newest")[1]["main"]
        if policy.lora is not None:
            scale = lora.scales(policy.lora.n, policy.lora.rank, policy.lora.alpha)
            after["model"] = lora.merge(after["model"], after["adapters"], scale, 0)

    @jax.jit
    def log_likelihood(params, tokens, start, end):
        hidden, _ = model.forward(params, tokens[None], dtype=jnp.float32)
        logps = jax.nn.log_softmax(model.logits(params, hidden)[0, :-1])
        each = jnp.take_along_axis(logps, tokens[1:, None], axis=1)[:, 0]
        after = jnp.arange(1, len(tokens))
        total = jnp.sum(each * ((after >= start) & (after < end)))
        return total / (end - start) if name == "ipo" else total

    margins = []
    for pair in pairs.split_pairs(pairs.read_pairs(pair_file), "validation", config.algo.held_out):
        ratios = []
        for text in (pair.chosen, pair.rejected):
            reading = read_chat(tokenizer, [*pair.messages, {"role": "assistant", "content": text}], 128)
            tokens = np.array([*reading.tokens, tokenizer.stop_ids[0]])
            padded = np.pad(tokens, (0, 128 - len(tokens)))
            new, old = (log_likelihood(w["model"], padded, reading.start, len(tokens)) for w in (after, before))
            ratios.append(float(new - old))
        margins.append(config.algo.beta * (ratios[0] - ratios[1]))
    assert len(margins) == last["games"] > 100
    assert last["margin"] == pytest.approx(np.mean(margins), abs=1e-4)
    assert last["accuracy"] == pytest.approx(np.mean(np.array(margins) > 0))


@pytest.fixture(scope="module")
def rewarded(pair_file, tmp_path_factory):
    """The folder of a trained reward model."""
    folder = tmp_path_factory.mktemp("reward_model")
    config = tiny_verifier.preference_config("reward_model", pair_file)
    config.eval.every = config.steps
    config.checkpoint.best_metric = "pairs/accuracy"
    validate.check(config)
    train.train(config, folder)
    return folder


@pytest.mark.nightly
def test_a_reward_model_ranks_held_out_pairs(rewarded):
    metrics = read_json_lines(rewarded / "metrics.jsonl")
    assert metrics[0]["loss"] == pytest.approx(math.log(2), abs=1e-6), "the head starts at zero"
    start, *_, end = read_json_lines(rewarded / "eval.jsonl")
    assert start["opponent"] == "pairs" and start["accuracy"] == 0.5
    assert end["accuracy"] > 0.85 and end["accuracy_low"] <= end["accuracy"] <= end["accuracy_high"]
    assert 0 <= end["ece"] < 0.2 and end["margin"] > 1.0
    assert 120 < end["games"] < 200, "a twentieth of 3200 prompts"


@pytest.mark.nightly
def test_a_reward_model_is_evaluated_and_scores_like_a_verifier(rewarded, pair_file):
    config = tiny_verifier.preference_config("reward_model", pair_file)
    (row,) = evaluate.main(config, rewarded)
    assert row["part"] == "test" and row["accuracy"] > 0.8
    with scorers.open_scorer(rewarded) as opened:
        good, bad = opened.scorer([tiny_verifier.chat("a", "a"), tiny_verifier.chat("a", "b")])
    assert good > bad


@pytest.mark.nightly
@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("sides", ("episode", "completion"))
def test_online_pairs_train(name, sides, tmp_path):
    config = tiny_task.get_config("grpo")
    config.algo = getattr(algorithms, name)(pairs=sides, labels="difference")
    config.algo.epochs = 1  # so that the first values are those before an update
    config.task.n_episodes = 8
    validate.check(config)
    train.train(config, tmp_path)
    rows = read_json_lines(tmp_path / "metrics.jsonl")
    assert len(rows) == 3 and all(math.isfinite(row["loss"]) for row in rows)
    assert all(row["pairs"] > 0 for row in rows)
    assert sides == "completion" or rows[0]["pairs"] == 8, "four examples for each of two roles"
    assert rows[0]["completion_kl"] == pytest.approx(0.0, abs=1e-3)
    assert abs(rows[-1]["completion_kl"]) > 0 or name == "sppo"


# --------------------------------------------------------------------------------------------------------------- files


def test_pairs_in_both_forms_of_trl(tmp_path):
    rows = [
        {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"},
        {
            "prompt": [{"role": "user", "content": "2 + 2?"}],
            "chosen": [{"role": "assistant", "content": "4"}],
            "rejected": [{"role": "assistant", "content": "5"}],
        },
    ]
    one, two = pairs.read_pairs(tiny_verifier.write_pairs(tmp_path / "pairs.jsonl", rows))
    assert one == two == pairs.Pair(({"role": "user", "content": "2 + 2?"},), "4", "5")


def test_lines_that_are_not_pairs_are_reported_together(tmp_path):
    rows = [{"prompt": "a", "chosen": "b"}, {"prompt": "a", "chosen": "b", "rejected": 3}, {"chosen": "b"}]
    path = tiny_verifier.write_pairs(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(DataError) as error:
        pairs.read_pairs(path)
    assert "pairs.jsonl:1: rejected is missing" in str(error.value)
    assert "pairs.jsonl:2: rejected is 3, but must be a string" in str(error.value)
    assert "pairs.jsonl:3: prompt, rejected is missing" in str(error.value)
    with pytest.raises(DataError, match="nothing.jsonl"):
        pairs.read_pairs(str(tmp_path / "nothing.jsonl"))


def test_pairs_that_cannot_be_learned_from_are_left_out_and_counted():
    tokenizer = tokenizers.load("tiny")
    question = ({"role": "user", "content": "q"},)
    given = [
        pairs.Pair(question, "yes", "no"), pairs.Pair(question, "same", "same"), pairs.Pair(question, "", "no"),
        pairs.Pair(question, "yes", "n" * 200),
    ]  # fmt: skip
    answers, counts = pairs.tokenize(tokenizer, given, 100, stop=True)
    assert counts == {"pairs": 4, "used": 1, "equal": 1, "empty": 1, "too_long": 1}
    assert [one.right for one in answers] == [True, False]
    assert all(one.reading.tokens[-1] == tokenizer.stop_ids[0] for one in answers)
    with pytest.raises(DataError, match="pair 1: the roles are assistant"):
        pairs.tokenize(tokenizer, [pairs.Pair(({"role": "assistant", "content": "q"},), "a", "b")], 100, stop=True)


def test_splits_are_disjoint_and_keep_prompts_together():
    given = [pairs.Pair(({"role": "user", "content": f"q{i // 2}"},), "a", f"b{i}") for i in range(2000)]
    splits = {part: pairs.split_pairs(given, part, 0.2) for part in ("train", "validation", "test")}
    assert sum(map(len, splits.values())) == 2000
    prompts = {part: {pair.messages[0]["content"] for pair in split} for part, split in splits.items()}
    assert not prompts["train"] & prompts["test"] and not prompts["validation"] & prompts["test"]
    assert 0.15 < 1 - len(splits["train"]) / 2000 < 0.25
    assert pairs.split_pairs(given, "test", 0.0) == []


def test_pairs_stay_together_in_every_order():
    reading = pairs.Reading((1, 2, 3), 1)
    answers = [labelled.Labelled(i // 2, dataclasses.replace(reading, start=1 + (i // 2) % 2), i % 2 == 0)
               for i in range(10)]  # fmt: skip
    rollout = pairs.PairRollout(answers, 6)
    samples, state, _ = rollout({}, rollout.init(None, None))
    np.testing.assert_array_equal(samples.group[:, 0], [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(samples.rewards[:, 0, 0], [1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(samples.context_len[::2], samples.context_len[1::2])
    assert samples.logits_index[0, 0] == samples.context_len[0, 0] - 1
    assert state["position"] == 6 and samples.n_groups == 3


# ------------------------------------------------------------------------------------------------------------- configs


def problems(config):
    with pytest.raises(ConfigError) as error:
        validate.check(config)
    return "\n".join(error.value.problems)


def test_configs_that_cannot_work_are_refused():
    config = tiny_verifier.preference_config("dpo", "pairs.jsonl")
    config.algo.update(dict(n_pairs=9, grad_accum_steps=2))
    assert "config.algo.n_pairs is 9, but must be a multiple of the microbatches of a step (2)" in problems(config)
    config = tiny_verifier.preference_config("reward_model", "")
    assert "config.algo.data is '', but must be a JSONL file of pairs" in problems(config)
    config = tiny_verifier.preference_config("dpo")
    config.task.n_episodes = 7
    assert "config.task.n_episodes is 7, but must be a multiple of the episodes of a pair (2)" in problems(config)
    config = tiny_verifier.preference_config("dpo")
    config.algo.pairs = "both"
    assert "config.algo.pairs is 'both', but must be one of: episode, completion" in problems(config)
    config = tiny_verifier.preference_config("reward_model", "pairs.jsonl")
    config.eval.every, config.checkpoint.best_metric = 60, "balanced/auc"
    assert "but must be pairs/METRIC" in problems(config)
