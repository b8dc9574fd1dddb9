"""Refill of host tasks: further examples replace uninformative ones, and a step can be repeated exactly."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from envs.tasks.replies import EpisodeError
from envs.tasks.task import Outcome
from marl_jax.errors import RunError
from marl_jax.rollouts.host.collate import collate, pack, sizes_for
from marl_jax.rollouts.host.conversation import Speaker, derive_seed
from marl_jax.rollouts.host.refill import informative_examples
from marl_jax.sampling.settings import Sampling
from tests.marl_jax.tiny_host import FakeSampler, Talk, assert_equal_samples, conversation, make_rollout

SIZES = dict(n_examples=4, samples=2)


async def graded(ask, example):
    """Half of the answers are right."""
    reply = await ask.chat(0).say(example)
    reply.reward(team=derive_seed(reply.text) % 2)
    return Outcome(derive_seed(reply.text) % 2)


def roll(task, sampler=None, state=None, **kwargs):
    rollout = make_rollout(Talk(task, ("one", "two"), n=50), sampler, **SIZES | kwargs)
    try:
        return rollout({}, state or rollout.init(None, None))
    finally:
        rollout.close()


def played(task, n, **kwargs):
    """The episodes of a step's rollouts, each as a list of examples."""
    rollout = make_rollout(Talk(task, ("one", "two"), n=50), **SIZES | kwargs)
    state, k = rollout.init(None, None), rollout.samples
    found = [rollout.runner.play(rollout.jobs(state, number), ended=pack) for number in range(n)]
    rollout.close()
    return [[episodes[i : i + k] for i in range(0, len(episodes), k)] for episodes in found]


def returns(episodes):
    return [sum(r.rewards.team for chat in e.chats for said in chat.said for r in said.replies) for e in episodes]


def refilled(rollouts):
    """The examples of the batch by hand, and how many rollouts were played."""
    batch, number = list(rollouts[0]), 1
    differs = lambda episodes: len(set(returns(episodes))) > 1  # noqa: E731
    while number < len(rollouts) and not all(map(differs, batch)):
        offers = [episodes for episodes in rollouts[number] if differs(episodes)]
        lacking = [i for i, episodes in enumerate(batch) if not differs(episodes)]
        for place, episodes in zip(lacking, offers, strict=False):
            batch[place] = episodes
        number += 1
    return batch, number


@pytest.mark.parametrize("seed", range(5))
def test_uninformative_examples_are_replaced_by_informative_ones_of_further_rollouts(seed):
    rollouts = played(graded, 4, seed=seed)
    batch, number = refilled(rollouts)
    samples, state, metrics = roll(graded, seed=seed, refill=3)
    episodes = [episode for example in batch for episode in example]
    expected = collate(episodes, sizes_for(episodes, samples=2), n_seats=2)
    real = expected.lengths > 0
    np.testing.assert_array_equal(samples.tokens[: len(real)][real][:, :64], expected.tokens[real][:, :64])
    np.testing.assert_array_equal(samples.group[: len(real), :1][real], expected.group[:, :1][real])
    np.testing.assert_array_equal(samples.rewards[: len(real), :1][real], expected.rewards[:, :1][real])
    assert state["position"] == 4 * number and metrics["refill/rollouts"] == number - 1
    assert metrics["refill/replaced"] == sum(new is not old for new, old in zip(batch, rollouts[0], strict=True)) / 4

    first, _, plain = roll(graded, seed=seed)
    for name in ("success", "reward/team", "completions", "completion_length", "episodes", "episodes/finished"):
        assert metrics[name] == plain[name], name
    every = [roll(graded, seed=seed, state=dict(seed=seed, position=4 * i, step=0, sizes=[]))[2] for i in range(number)]
    assert metrics["tokens"] == sum(one["tokens"] for one in every) and not {"refill/rollouts"} & plain.keys()
    if number == 1:
        assert_equal_samples(samples, first)


def test_the_seeds_above_need_several_rollouts_and_do_not_all_use_up_the_budget():
    numbers = {refilled(played(graded, 4, seed=seed))[1] for seed in range(5)}
    assert len(numbers) > 1 and min(numbers) < 4


def test_equal_rewards_end_with_the_budget_and_the_first_rollout():
    samples, state, metrics = roll(conversation, reward_levels=dict(team=0, agent=0, process=0), refill=3)
    expected, _, _ = roll(conversation, reward_levels=dict(team=0, agent=0, process=0))
    assert_equal_samples(samples, expected)
    assert state["position"] == 16 and (metrics["refill/rollouts"], metrics["refill/replaced"]) == (3, 0)


def test_a_rollout_of_which_every_episode_failed_is_not_repeated():
    async def fails(ask, example):
        raise EpisodeError("the server is gone")

    _, state, metrics = roll(fails, refill=3)
    assert state["position"] == 4 and metrics["refill/rollouts"] == 0


def test_an_interrupted_step_is_repeated_from_the_journal_of_all_its_rollouts(tmp_path):
    def lucky(known=()):
        """A task whose grade of an episode changes if it is asked for again though it is known."""

        async def play(ask, example):
            async def grade():
                return (derive_seed(ask._job.id) + (ask._job.id in known)) % 2

            reply = await ask.chat(0).say(example)
            reply.reward(team=await ask.record("grade", grade()))
            return Outcome(1)

        return play

    class Ends(FakeSampler):
        """Fails in the second rollout."""

        async def answer(self, *args, **kwargs):
            if self.requests == 12:
                raise RunError("the device is gone")
            return await super().answer(*args, **kwargs)

    expected, state, metrics = roll(lucky(), journal=tmp_path / "whole", refill=3)
    assert metrics["refill/rollouts"] >= 1 and metrics["refill/replaced"] > 0
    with pytest.raises(RunError, match="the device is gone"):
        roll(lucky(), Ends(), journal=tmp_path / "broken", refill=3)
    (journal,) = (tmp_path / "broken").iterdir()
    known = {json.loads(line)[0] for line in journal.read_text().splitlines()[1:]}
    assert {f"{position}.{sample}" for position in range(4) for sample in range(2)} <= known
    again, same, repeated = roll(lucky(known), journal=tmp_path / "broken", refill=3)
    assert_equal_samples(again, expected)
    assert same == state and repeated["refill/rollouts"] == metrics["refill/rollouts"]
    assert list((tmp_path / "broken").iterdir()) == [journal]


@pytest.mark.parametrize("seed", [4, 9])
def test_two_processes_play_as_many_rollouts_and_keep_their_own_examples(seed):
    """With these seeds one process needs fewer rollouts than the other; it skips its share of the rest."""
    barrier, said = threading.Barrier(2, timeout=20), {}

    def gather_of(number):
        def gather(value):
            said[number] = value
            barrier.wait()
            values = [said[0], said[1]]
            barrier.wait()
            return values

        return gather

    def process(number):
        return roll(graded, process=(number, 2), gather=gather_of(number), refill=3, seed=seed)

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(process, range(2)))
    assert parts[0][1] == parts[1][1] and parts[0][2] == parts[1][2], "state and metrics are the same"
    halves = [[rollout[2 * i : 2 * i + 2] for rollout in played(graded, 4, seed=seed)] for i in range(2)]
    fewer, more = sorted(refilled(rollouts)[1] for rollouts in halves)
    assert fewer < more and parts[0][1]["position"] == 4 * more
    for (samples, _, _), rollouts in zip(parts, halves, strict=True):
        paid = [value for episodes in refilled(rollouts)[0] for value in returns(episodes)]
        assert samples.rewards[samples.lengths > 0][:, 0, 0].tolist() == paid


# ------------------------------------------------------------------------------------------- informative examples


async def of_candidates(ask, example):
    """Two turns with candidates, which differ at the second one; then one answer without a competitor."""
    chat = ask.chat(0)
    for turn in range(2):
        reply = await chat.say(f"{example} {turn}", n=ask.candidates)
        for k, candidate in enumerate(reply.replies):
            candidate.reward(agent=turn * k)
        chat.keep(0)
    last = await ask.chat(1).say("Well?")
    last.reward(team=1)
    return Outcome(1)


async def second_differs(ask, example):
    """Two seats; only the reward of the second depends on the episode."""
    replies = [await ask.chat(seat).say(example) for seat in range(2)]
    replies[0].reward(agent=1)
    replies[1].reward(agent=ask.random.random())
    return Outcome(1)


def found(task, candidates=1, speakers=None, seating=lambda seat, turn: 0, **kwargs):
    rollout = make_rollout(task, n_examples=3, candidates=candidates, speakers=speakers, seating=seating)
    episodes = rollout.runner.play(rollout.jobs(rollout.init(None, None)), ended=pack)
    rollout.close()
    return informative_examples([episodes[i : i + 2] for i in range(0, 6, 2)], 2, **kwargs)


def test_one_informative_group_makes_an_example_informative():
    assert found(of_candidates, candidates=3) == [True] * 3
    assert found(of_candidates, candidates=3, reward_levels=dict(agent=0.0)) == [False] * 3


def test_only_turns_that_learn_count():
    assert found(of_candidates, candidates=3, turns=(1,)) == [True] * 3
    assert found(of_candidates, candidates=3, turns=(0,)) == [False] * 3


def test_only_seats_that_learn_count():
    def speaker(policy, number):
        sampler = FakeSampler()
        return Speaker(sampler, sampler.tokenizer, Sampling(max_new_tokens=8), 4000, policy, number=number)

    def informative(learner, frozen):
        speakers = [speaker(0, learner), speaker(1, frozen)]
        return found(second_differs, speakers=speakers, seating=lambda seat, turn: seat)

    assert informative(0, 1) == [True] * 3
    assert informative(0, -1) == [False] * 3


def test_an_example_with_one_episode_left_is_not_informative():
    async def fails_once(ask, example):
        reply = await ask.chat(0).say(example)
        reply.reward(team=ask._job.sample)
        if ask._job.sample:
            raise EpisodeError("no")
        return Outcome(1)

    assert found(fails_once) == [False] * 3


def test_advantages_over_time_have_no_refill():
    with pytest.raises(ValueError, match="refill is 1, but there are no groups with time_order"):
        make_rollout(graded, refill=1, time_order=True)
