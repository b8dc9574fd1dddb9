"""Host rollouts over a real batcher: the same samples in any order, and log-probs that the learner agrees with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.tasks.debate.task import ArithmeticDebate
from envs.tasks.solver_checker import SolverChecker
from envs.tasks.task import Outcome
from marl_jax.agents import scoring
from marl_jax.learning.advantages import handle_overlong
from marl_jax.learning.settings import LearnerSettings
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from models.logprobs import token_logprobs
from models.model import build
from tests.marl_jax.tiny_engine import QuickEngine, quick_jit
from tests.marl_jax.tiny_host import (
    CONFIG,
    MAX_LENGTH,
    Talk,
    answers_of,
    assert_equal_samples,
    free_policy,
    make_rollout,
    merging_tokenizer,
    tree,
    visible,
)
from tests.models.tiny_models import random_params

TREE, CANDIDATES = Talk(tree), 3


@functools.cache
def model_and_params(seed=0):
    model = build(CONFIG)
    return model, random_params(model, seed)


@functools.cache
def engine():
    """One for all tests of this file, so that programs are compiled once; every rollout publishes its weights."""
    return QuickEngine(*model_and_params(), dtype=jnp.float32, bucket=128, chunk=4)


def roll(task, candidates, *, rows, reverse=False, concurrency=100, temperature=1.0, params=None):
    """A rollout; `reverse` starts the episodes from the last to the first."""
    tokenizer = merging_tokenizer()
    with BatcherThread(Batcher(engine(), rows=rows, max_length=MAX_LENGTH, chunk=4)) as sampler:
        speaker = Speaker(sampler, tokenizer, Sampling(temperature, max_new_tokens=7), MAX_LENGTH)
        rollout = make_rollout(task, sampler, speakers=[speaker], candidates=candidates, concurrency=concurrency)
        if reverse:
            play = rollout.runner.play
            rollout.runner.play = lambda jobs, *args, **kwargs: play(jobs[::-1], *args, **kwargs)[::-1]
        try:
            return rollout({"policy": params or model_and_params()[1]}, rollout.init(None, None))
        finally:
            rollout.close()


@pytest.mark.nightly
def test_other_rows_and_another_order_of_arrival_give_the_same_samples():
    first, _, metrics = roll(TREE, CANDIDATES, rows=4)
    assert metrics["episodes/failed"] == 0
    for other in (
        roll(TREE, CANDIDATES, rows=16, reverse=True),
        roll(TREE, CANDIDATES, rows=2, concurrency=2),
    ):
        assert_equal_samples(first, other[0], atol=1e-5)


class Deadlines:
    """A sampler whose every seventh request is past its deadline, so that the batcher ends it early."""

    def __init__(self, sampler):
        self.sampler, self.requests = sampler, 0
        self.set_weights = sampler.set_weights

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None):
        self.requests += 1
        return await self.sampler.answer(ids, sampling, policy, n, deadline if self.requests % 7 else 0.0)


@pytest.mark.nightly_for("512-own0-*", "512-own1-*")
@pytest.mark.parametrize(
    "max_length, own, late", [(MAX_LENGTH, (), False), (MAX_LENGTH, (3, 2, 12), False), (80, (), True)]
)
def test_completions_cut_by_any_limit_are_truncated(max_length, own, late):
    """Limits of the policy, the request and the conversation. Completions that were cancelled are not used."""
    stops = tuple(map(chr, range(32, 70)))
    limits = {}

    async def talk(ask, example):
        chat = ask.chat(0)
        for turn in range(3):
            reply = await chat.say("ab", sampling={"max_new_tokens": own[turn]} if own else {})
            start = chat.said[-1].start
            limits[start, reply.tokens] = min(own[turn] if own else 7, max_length - start)
        return Outcome(1)

    tokenizer = merging_tokenizer()
    with BatcherThread(Batcher(engine(), rows=8, max_length=MAX_LENGTH, chunk=4, tokenizer=tokenizer)) as sampler:
        speaker = Speaker(
            Deadlines(sampler) if late else sampler,
            tokenizer,
            Sampling(max_new_tokens=7, stop_strings=stops),
            max_length,
        )
        rollout = make_rollout(talk, sampler, speakers=[speaker], n_examples=8, concurrency=1)
        try:
            samples, _, metrics = rollout({"policy": model_and_params()[1]}, rollout.init(None, None))
        finally:
            rollout.close()
    cut = []
    for n, s, x in answers_of(samples):
        tokens = samples.targets[n, x].tolist()
        stopped = tokens[-1] in tokenizer.stop_ids or any(stop in tokenizer.decode(tokens) for stop in stops)
        assert stopped or len(tokens) == limits[samples.context_len[n, s], tuple(tokens)]
        cut.append(not stopped)
    assert 0 < sum(cut) < len(cut) and late == ("episodes/failed/answer_lost" in metrics)
    share = handle_overlong(free_policy(), jax.tree.map(jnp.asarray, samples), LearnerSettings())[1]
    assert float(share["truncated_completions"]) == pytest.approx(np.mean(cut)) == metrics["truncated_rate"]
    assert [bool(samples.truncated[n, s]) for n, s, _ in answers_of(samples)] == cut


@functools.partial(quick_jit, static_argnames="model")
def full_logps(model, params, tokens, targets, temperatures):
    hidden, _ = model.forward(params, tokens, dtype=jnp.float32)
    return token_logprobs(model, params, hidden, targets, temperatures)[0]


def test_log_probs_are_those_of_the_learner():
    temperature = 0.7
    model, params = model_and_params(seed=1)
    samples, _, _ = roll(TREE, CANDIDATES, rows=8, temperature=temperature, params=params)
    contexts, expected = [], []
    for n, _, x in answers_of(samples):
        contexts.append((visible(samples, n, samples.logits_index[n, x[0]]), samples.targets[n, x].tolist()))
        expected.append(samples.logps[n, x])
    assert len(contexts) == (samples.completion_lengths > 0).sum() > 20

    # Each completion after its context, in a separate row.
    tokens = np.zeros((len(contexts), MAX_LENGTH), np.int32)
    for line, (context, targets) in zip(tokens, contexts, strict=True):
        line[: len(context) + len(targets)] = context + targets
    temperatures = np.full(len(tokens), temperature, np.float32)
    logps = np.asarray(full_logps(model, params, tokens, np.roll(tokens, -1, 1), temperatures))
    for line, (context, targets), logp in zip(logps, contexts, expected, strict=True):
        np.testing.assert_allclose(line[len(context) - 1 :][: len(targets)], logp, atol=2e-5)

    # Rows as the learner reads them, each once.
    score = quick_jit(functools.partial(scoring.score, free_policy(temperature)))
    scores = score({"model": params}, jax.tree.map(jnp.asarray, samples))
    np.testing.assert_allclose(scores.logps, samples.logps, atol=2e-5)


@pytest.mark.nightly_for("two")
@pytest.mark.parametrize("task", [ArithmeticDebate(n_examples=20), SolverChecker(n_examples=20)], ids=["debate", "two"])
def test_the_projects_tasks_run_on_a_model(task):
    candidates = 2 if isinstance(task, SolverChecker) else 1
    samples, state, metrics = roll(task, candidates, rows=8)
    assert metrics["episodes/finished"] + metrics.get("episodes/failed/too_long", 0) == 6
    assert metrics["episodes/finished"] >= 1 and state["step"] == 1
    assert set(samples.seat[samples.completion_lengths > 0].tolist()) == {0, 1}
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), samples))
