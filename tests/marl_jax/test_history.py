"""Conversations that go on: what is read, what is learned from, and that sampler and learner agree on it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import registry as games
from envs.games.bots import make_bot
from marl_jax.rollouts.games import State
from marl_jax.rollouts.groups import GroupRollout
from marl_jax.rollouts.opponents import Opponents, Sections
from marl_jax.rollouts.threads import History
from marl_jax.rollouts.tree import TreeRollout
from tests.marl_jax import tiny_history as tiny
from tests.marl_jax.tiny_play import TOKENIZER

TIC_TAC_TOE = tiny.game("tic_tac_toe")


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """These programs run for milliseconds."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def sections():
    """Self-play, a historical opponent, a bot."""
    return Sections(2, historical=3, bots=((make_bot(TIC_TAC_TOE, "minimax"), 2),))


CASES = {
    "opponents": lambda: tiny.rollout(
        "tic_tac_toe", 7, 9, history_turns=3, symmetry=games.symmetry(TIC_TAC_TOE),
        opponents=Opponents(sections(), pool_size=2),
    ),
    "hanabi": lambda: tiny.rollout("hanabi", 3, 40),
    "forty turns, adapters": lambda: tiny.rollout("plan_path", 2, 40, lora=2),
    "names behind a prefix, adapters": lambda: tiny.rollout(
        "tic_tac_toe", 3, 9, style="full", lora=2, long_names=True, history_turns=4
    ),
    "free text": lambda: tiny.rollout("tic_tac_toe", 4, 8, free=4),
    "tree": lambda: tiny.rollout("short_path", 2, 12, TreeRollout, candidates=3, critic="none"),
    "tree of names, adapters": lambda: tiny.rollout(
        "short_path", 2, 12, TreeRollout, candidates=3, long_names=True, lora=2, critic="none"
    ),
    "groups": lambda: tiny.rollout("short_path", 4, 32, GroupRollout, candidates=2, critic="none"),
}  # fmt: skip


@functools.cache
def played(case):
    """One rollout and what the reference says of it."""
    roll = CASES[case]()
    snapshot = None if roll.opponents is None else roll.team.snapshot(tiny.params_of(roll, seed=5))
    found = tiny.run(roll, snapshot=snapshot)
    return found, tiny.tell(found)


@pytest.mark.parametrize("case", CASES)
def test_sampler_and_learner_agree_on_what_was_read(case):
    """`tell` has compared every token that an answer sees with the game's own texts."""
    found, told = played(case)
    assert (told.recorded & ~told.fresh).sum() >= 10 and told.fresh.sum() >= 4
    check(found, told)


def check(found, told):
    """Log-probabilities, values and weights."""
    samples, roll = found.samples, found.roll
    own = told.recorded & (~told.opposite | told.bot)
    mask, first = (np.asarray(x) * np.asarray(samples.to_tokens(own)) for x in (samples.mask(), samples.first()))
    np.testing.assert_allclose(found.scores.logps * mask, samples.logps * mask, atol=1e-5)
    np.testing.assert_allclose(found.scores.values * first, samples.values * first, atol=1e-5)
    assert np.std(samples.logps[mask > 0]) > 1e-3
    counts = told.recorded & ~told.opposite & ~told.bot & ~told.waits
    if samples.answer_at is not None:
        turns = np.arange(len(found.moves))[:, None] < roll.turns
        counts &= np.asarray(samples.from_time(jnp.broadcast_to(turns, samples.answer_at.shape)))
    np.testing.assert_array_equal(samples.loss_weights, counts)
