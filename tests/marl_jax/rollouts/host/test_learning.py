"""Samples of host rollouts in the hands of the algorithms: advantages by plain loops over episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import algorithms
from envs.tasks.task import Outcome
from marl_jax.algorithms import ALGORITHMS, settings_from
from tests.marl_jax.tiny_host import answers_of, conversation, free_policy, make_rollout, tree


def compute_advantages(name, samples, **changes):
    algo = settings_from(getattr(algorithms, name)(tis_clip=0.0, minibatches=1, kl_coef=0.0, **changes))
    prepared, metrics = ALGORITHMS.get(name).compute_advantages(
        free_policy(), {}, jax.tree.map(jnp.asarray, samples), algo
    )
    return jax.tree.map(np.asarray, prepared), metrics


def roll(task, **kwargs):
    rollout = make_rollout(task, **kwargs)
    try:
        return rollout({}, rollout.init(None, None))[0]
    finally:
        rollout.close()


def standardised(rewards):
    rewards = np.asarray(rewards, np.float64)
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


def check(prepared, expected, atol=1e-3):
    """expected: (row, answer) -> advantage; all of its tokens have it, and nothing else has any."""
    found = np.zeros_like(prepared.advantages)
    for n, s, x in answers_of(prepared):
        found[n, x] = expected[n, s]
    np.testing.assert_allclose(prepared.advantages, found, atol=atol)
    assert np.abs(found).max() > 0.1


async def fails_at_times(ask, example):
    """`conversation`, but the second sample of one example breaks after its first answers."""
    if example == "train 3 ab" and ask._job.sample == 1:
        await ask.chat(0).say("x")
        raise LookupError
    return await conversation(ask, example)


@pytest.mark.parametrize("task", [conversation, fails_at_times])
def test_grpo_compares_what_each_seat_earned_in_the_episodes_of_an_example(task):
    samples = roll(task, n_examples=7, samples=3)
    prepared, metrics = compute_advantages("grpo", samples, group_size=3, filter_zero_std_groups=False)
    earned = {}
    for n, s, _ in answers_of(samples):
        episode = int(samples.episode[n, s])
        earned[episode] = earned.get(episode, 0) + samples.rewards[n, s].astype(np.float64)
    advantages = {}
    for example in range(7):
        episodes = [e for e in range(3 * example, 3 * example + 3) if e in earned]
        scores = np.stack([standardised([earned[e][seat] for e in episodes]) for seat in range(2)], axis=1)
        advantages |= dict(zip(episodes, scores, strict=True))
    check(prepared, {(n, s): advantages[samples.episode[n, s]][samples.seat[n, s]] for n, s, _ in answers_of(samples)})
    assert metrics["groups"] == 14, "seven examples, two seats"


@pytest.mark.nightly
def test_labelled_answers_are_compared_with_their_like():
    async def phases(ask, example):
        chat = ask.chat(0)
        plan = await chat.say("plan", label="plan")
        act = await chat.say("act", label="act")
        plan.reward(agent=ask._job.sample)
        act.reward(agent=-ask._job.sample)
        return Outcome(1)

    samples = roll(phases, n_examples=2, samples=3)
    prepared, _ = compute_advantages("grpo", samples, group_size=3)
    ranks = standardised([0, 1, 2])
    check(prepared, {
        (n, s): ranks[samples.member[n, s]] * (1 if samples.turn[n, s] == 0 else -1) for n, s, _ in answers_of(samples)
    })  # fmt: skip


def test_at_grpo_compares_the_candidates_of_a_turn():
    samples = roll(tree, candidates=3, samples=1)
    prepared, _ = compute_advantages("at_grpo", samples, group_size=3, filter_zero_std_groups=False)
    groups = {}
    for n, s, _ in answers_of(samples):
        groups.setdefault(int(samples.group[n, s]), []).append((n, s))
    expected = {}
    for answers in groups.values():
        paid = [samples.rewards[a][samples.seat[a]] for a in answers]
        scores = standardised(paid) if len(answers) == 3 else np.zeros(len(answers))
        expected |= dict(zip(answers, scores, strict=True))
    check(prepared, expected)


@pytest.mark.parametrize("task", [conversation, fails_at_times])
def test_ppo_follows_each_seat_through_its_episode(task):
    samples = roll(task, n_examples=7, samples=2, time_order=True)
    prepared, _ = compute_advantages("ppo", samples, gamma=1.0, lam=1.0, whiten="none")
    order = {}
    for n, s, _ in answers_of(samples):
        key = int(samples.episode[n, s])
        order.setdefault(key, []).append((int(samples.turn[n, s]), int(samples.seat[n, s]), n, s))
    expected = {}
    for answers in order.values():
        answers.sort()
        for i, (_, seat, n, s) in enumerate(answers):
            expected[n, s] = sum(samples.rewards[m, t, seat] for _, _, m, t in answers[i:])
    check(prepared, expected)
    real = samples.completion_lengths > 0
    np.testing.assert_array_equal(prepared.loss_weights, real.astype(np.float32))
