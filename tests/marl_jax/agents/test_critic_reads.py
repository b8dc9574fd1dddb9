"""A critic that reads the prompt and one completion: same values and gradients as separate rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.tasks.task import Outcome
from marl_jax.agents import critics, scoring
from marl_jax.agents.policy import LoraSpec
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.settings import Sampling
from tests.marl_jax.tiny_host import (
    FakeSampler,
    answers_of,
    conversation,
    free_policy,
    make_rollout,
    merging_tokenizer,
    visible,
)
from tests.models.tiny_models import quick_jit


async def forked(ask, example):
    """Build a conversation of three completions, the last one in a fork."""
    chat = ask.chat(0, system="S")
    await chat.say(example)
    await chat.say("once more, ab")
    await chat.fork().say("and now?")
    return Outcome(1)


@functools.cache
def samples(task=conversation, policies=1):
    """Return rows of a host rollout; with two policies, the second one acts from the second turn on."""
    settings = {}
    if policies == 2:
        sampler = FakeSampler()
        one = Speaker(sampler, sampler.tokenizer, Sampling(max_new_tokens=8), 4000)
        speakers = [one, dataclasses.replace(one, number=1)]
        settings = dict(speakers=speakers, seating=lambda seat, turn: min(turn, 1))
    rollout = make_rollout(task, n_examples=2, samples=1, time_order=True, **settings)
    try:
        return rollout({}, rollout.init(None, None))[0]
    finally:
        rollout.close()


@functools.cache
def critic(kind, lora=False):
    spec = LoraSpec(2, 2, 4.0, ("q", "v", "down")) if lora else None
    return dataclasses.replace(free_policy(), critic=kind, critic_reads="completion", lora=spec)


@functools.cache
def weights(policy):
    """Return weights away from the initial ones, whose values are all 0."""

    @jax.jit
    def init(key):
        trained, frozen = policy.init(policy.model.init(key), key)
        leaves, tree = jax.tree.flatten(trained)
        keys = jax.random.split(key, len(leaves))
        noisy = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
        return frozen, jax.tree.unflatten(tree, noisy)

    return init(jax.random.key(0))


def alone(samples):
    """Return every completion in a separate row after its prompt: tokens [A, T], lengths, first reads, policies."""
    found = []
    for n, _, x in answers_of(samples):
        opening, answer = samples.tokens[n, : samples.prompt_len[n]], samples.targets[n, x]
        found.append((np.concatenate([opening, answer]), len(opening), samples.policy[n]))
    tokens = np.zeros((len(found), max(len(t) for t, *_ in found)), np.int32)
    for row, (t, *_) in zip(tokens, found, strict=True):
        row[: len(t)] = t
    lengths, openings, ids = (np.array(x, np.int32) for x in zip(*((len(t), o, p) for t, o, p in found), strict=True))
    return tokens, lengths, openings, ids


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "lora"), [("separate", False), ("head", True)])
def test_values_and_gradients_are_those_of_answers_in_rows_of_their_own(kind, lora):
    policy, (frozen, trained) = critic(kind, lora), weights(critic(kind, lora))
    rows = samples(policies=2) if lora else samples()
    tokens, lengths, openings, ids = alone(rows)
    assert not lora or set(ids) == {0, 1}
    noise = np.random.default_rng(0).normal(size=rows.targets.shape).astype(np.float32) * (rows.completion_of >= 0)

    def ours(trained):
        values = scoring.score(policy, {**frozen, **trained}, jax.tree.map(jnp.asarray, rows)).values
        return jnp.sum(noise * values), values

    def plain(trained):
        held = {**frozen, **trained}
        params = held["critic"]["model"] if kind == "separate" else held["model"]
        adapters = policy.adapters(held, jnp.asarray(ids)) if lora else None
        hidden, _ = policy.model.forward(params, tokens, lengths=lengths, adapters=adapters, dtype=jnp.float32)
        values = critics.read(held["critic"], hidden)
        total = 0.0
        for a, (n, _, x) in enumerate(answers_of(rows)):
            total += jnp.sum(noise[n, x] * values[a, openings[a] - 1 : openings[a] - 1 + len(x)])
        return total, values

    # A separate trunk has the same backward pass as the policy, so gradients of one of them suffice.
    program = functools.partial(jax.value_and_grad, has_aux=True) if lora else lambda f: lambda x: (f(x), None)
    (found, values), gradient = quick_jit(program(ours))(trained)
    (expected, wanted), slow = quick_jit(program(plain))(trained)
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
    for a, (n, _, x) in enumerate(answers_of(rows)):
        np.testing.assert_allclose(values[n, x], wanted[a, openings[a] - 1 :][: len(x)], atol=1e-5)
    if not lora:
        return
    top = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(slow))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5 * top), gradient, slow)
    assert top > 1e-2


def test_the_debate_changes_no_value_and_another_question_does():
    policy, (frozen, trained) = critic("head"), weights(critic("head"))
    rows = samples()
    view = jax.tree.map(np.asarray, critics.answers_alone(jax.tree.map(jnp.asarray, rows)))
    place = np.arange(rows.tokens.shape[1])
    between = (view.segment == -1) & (place < rows.lengths[:, None])
    opening = place < rows.prompt_len[:, None]
    assert between.any(1)[rows.lengths > 0].all(), "or nothing is said between the answers"
    score = quick_jit(lambda s: scoring.score(policy, {**frozen, **trained}, s))
    before = score(jax.tree.map(jnp.asarray, rows))
    real = rows.completion_of >= 0
    later = real & (np.take_along_axis(rows.turn, np.maximum(rows.completion_of, 0), 1) > 0)
    for where, hears in ((between, np.zeros_like(real)), (opening, real)):
        other = rows.replace(tokens=np.where(where, (rows.tokens + 1) % 256, rows.tokens))
        after = score(jax.tree.map(jnp.asarray, other))
        assert ((np.asarray(after.values) != np.asarray(before.values)) & real == hears).all()
        assert (np.asarray(after.logps) != np.asarray(before.logps))[later].any(), "the policy reads all of it"


def test_an_answer_sees_the_opening_and_itself():
    """The attention rule of `Samples` in plain Python, also in forks and after another policy's turn."""
    for rows in (samples(), samples(forked), samples(policies=2)):
        view = jax.tree.map(np.asarray, critics.answers_alone(jax.tree.map(jnp.asarray, rows)))
        for n, _, x in answers_of(rows):
            opening = rows.tokens[n, : rows.prompt_len[n]].tolist()
            for i, token in enumerate(x):
                seen = visible(hidden(view), n, int(view.logits_index[n, token]))
                assert seen == opening + rows.targets[n, x[:i]].tolist()
                assert view.positions[n, view.logits_index[n, token]] == len(seen) - 1


def hidden(view):
    """Put tokens outside the view into a separate branch, which `visible` does not attend to."""
    return view.replace(branch=np.where(view.segment == -1, view.n_completions, view.branch))


def test_the_opening_is_what_was_asked_first():
    decode = merging_tokenizer().decode
    for rows, system in ((samples(), "abba"), (samples(forked), "S"), (samples(policies=2), "abba")):
        for n in np.flatnonzero(rows.lengths):
            text = decode(rows.tokens[n, : rows.prompt_len[n]].tolist())
            assert "train" in text and text.endswith("<|im_start|>assistant\n") and text.count("assistant") == 1
            assert (system in text) or rows.seat[n, 0] == 1
