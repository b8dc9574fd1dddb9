"""The smallest puzzle played in groups: Plan-Path by planner and executor, a few thousand parameters."""

import functools

from configs import algorithms
from envs.games import registry as games
from envs.games.registry import make_text
from marl_jax.algorithms import settings_from
from marl_jax.rollouts.groups import GroupRollout
from marl_jax.rollouts.tree import TreeRollout
from tests.marl_jax import tiny_play
from tests.marl_jax.tiny_play import TOKENIZER, rollout

K, ROWS, TURNS = 4, 6, 10
PARAMS = dict(size=5, n_train=24, n_test=8, budget=10)


@functools.cache
def game(roles="two"):
    """Plan-Path on a 5x5 grid, ten moves at most."""
    return games.make("plan_path", roles=roles, **PARAMS)


@functools.cache
def prompt(roles="two"):
    """Its brief text."""
    return make_text(game(roles), "brief").compile(TOKENIZER)


@functools.cache
def policy(roles="two", lora=None, long_names=False):
    """A policy without a critic; `lora` adapters, names of one letter or several."""
    text = prompt(roles)
    names = tiny_play.names_of(text, (b"g", b"go ")) if long_names else None
    return tiny_play.policy_of(text, tiny_play.answers(text, names), "none", lora)


def tree(roles="two", lora=None, long_names=False, rows=ROWS, turns=TURNS, kind=TreeRollout, **changes):
    """The program of AT-GRPO."""
    made = policy(roles, lora, long_names)
    return rollout(game(roles), made, rows, turns, prompt=prompt(roles), kind=kind, **{"candidates": K, **changes})


def episodes(roles="two", rows=2 * K, turns=45, **changes):
    """The program of GRPO."""
    return tree(roles, rows=rows, turns=turns, kind=GroupRollout, **changes)


def algo(name="at_grpo", **changes):
    """Settings of a group algorithm."""
    return settings_from(getattr(algorithms, name)(**dict(group_size=K, tis_clip=0.0, minibatches=1) | changes))
