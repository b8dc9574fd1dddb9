"""Refill of games: a batch is made of the units that refill by hand gives, whole and each used once."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import algorithms, published
from marl_jax import setup as setups
from marl_jax.rollouts.groups import GroupRollout
from marl_jax.rollouts.refill import match
from marl_jax.rollouts.tree import TreeRollout
from marl_jax.schema import validate
from tests.conftest import examples
from tests.marl_jax import tiny_puzzle, tiny_task
from tests.marl_jax.algorithms.test_at_grpo import GAME, program
from tests.marl_jax.rollouts.tiny_refill import Refilled, check

pytestmark = pytest.mark.usefixtures("quick_compilation")

BUDGET = 3
KINDS = {
    "episodes": dict(kind=GroupRollout, rows=8, turns=GAME.max_turns + 4, candidates=2, reward_weights=(1.0, 0.0, 0.0)),
    "candidates": dict(kind=TreeRollout, rows=4, turns=6, candidates=2, reward_weights=(1.0, 1.0, 0.0)),
}


def made(case, **changes):
    """A rollout without a model."""
    found = dict(KINDS[case])
    sizes = {name: found.pop(name) for name in ("rows", "turns") if name in found}
    return dataclasses.replace(program(**found), **sizes, **changes)


@functools.cache
def measured(case, refill=0):
    """The program, compiled once."""
    return jax.jit(made(case, refill=refill).measured)


@functools.cache
def start(case):
    return jax.jit(made(case).init)(jax.random.key(0), {})


def rollouts_of(case, key):
    """What the rollouts of one step are without refill: [(samples, state, finished, metrics)]."""
    keys = [key, *(jax.random.fold_in(key, 1 + number) for number in range(1, 1 + BUDGET))]
    state, found = start(case), []
    for own in keys:
        found.append(jax.device_get(measured(case)({}, state, own)))
        state = found[-1][1]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["episodes", "candidates"])
def test_a_batch_is_refilled_from_further_rollouts_with_other_keys(case):
    rollout, counts = made(case, refill=BUDGET), []
    for seed in range(4):
        key = jax.random.key(seed)
        rollouts = rollouts_of(case, key)
        samples, state, finished, metrics = jax.device_get(measured(case, BUDGET)({}, start(case), key))
        counts.append(check(rollout, samples, metrics, [found[0] for found in rollouts]))
        played = counts[-1][0]
        jax.tree.map(np.testing.assert_array_equal, state, rollouts[played - 1][1])
        jax.tree.map(np.testing.assert_array_equal, finished, rollouts[0][2])
        for name, value in rollouts[0][3].items():
            expected = sum(found[3]["tokens"] for found in rollouts[:played]) if name == "tokens" else value
            np.testing.assert_array_equal(metrics[name], expected, err_msg=name)
    assert max(played for played, _ in counts) > 1 and sum(replaced for _, replaced in counts) > 0


@functools.cache
def recorded(case):
    return Refilled(made(case, refill=BUDGET), [found[0] for found in rollouts_of(case, jax.random.key(0))])


@pytest.mark.parametrize("case", ["episodes", "candidates"])
@settings(deadline=None, max_examples=examples(12))
@given(seed=st.integers(0, 1 << 16), share=st.sampled_from([0.05, 0.2, 0.6, 0.95]))
def test_whatever_the_rewards_no_informative_unit_is_lost_and_none_is_used_twice(case, seed, share):
    recorded(case).check(seed, share)


@pytest.mark.parametrize("case", ["episodes", "candidates"])
def test_equal_rewards_end_with_the_budget_and_different_ones_at_once(case):
    assert recorded(case).check(0, share=0.0) == (1 + BUDGET, 0)
    many = [recorded(case).check(seed, share=1.0) for seed in range(5)]
    assert min(played for played, _ in many) < 1 + BUDGET and max(replaced for _, replaced in many) > 0


def test_units_are_replaced_by_those_of_their_kind():
    needs = np.array([True, False, True, True, True])
    offers = np.array([False, True, True, True, False])
    source, taken = match(needs, offers, np.array([1, 0, 0, 1, 1]), np.array([1, 1, 0, 1, 0]), 2)
    assert taken.tolist() == [True, False, True, True, False]
    assert np.asarray(source)[np.asarray(taken)].tolist() == [1, 2, 3]


@pytest.mark.parametrize("algo", ["grpo", "at_grpo"])
def test_a_config_sets_the_budget_of_games_and_tasks(algo):
    for config in (tiny_puzzle.get_config(algo), tiny_task.get_config(algo)):
        assert config.algo.refill == 0
        config.algo.refill = 2
        validate.check(config)
        setup = setups.make(config)
        assert setup.rollout.refill == 2
        setup.close()
    assert published.dapo().refill == 9 and "refill" not in algorithms.ppo()
