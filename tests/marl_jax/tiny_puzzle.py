"""The smallest puzzle played in groups: Plan-Path by planner and executor, a few thousand parameters."""

import dataclasses
import functools

import jax.numpy as jnp

from configs import algorithms
from envs.games import registry as games
from envs.games.registry import make_text
from marl_jax.agents.answers import Constrained
from marl_jax.agents.policy import LoraSpec, Policy
from marl_jax.algorithms import settings_from
from marl_jax.rollouts.groups import GroupRollout
from marl_jax.rollouts.tree import TreeRollout
from marl_jax.sampling.choice import make_choices
from models import registry
from models.model import build
from tests.marl_jax.tiny_play import SHAPE, TOKENIZER, rollout

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
    names = [row[:n].tolist() for row, n in zip(text.action_ids, text.action_lengths, strict=True)]
    if long_names:
        names = [[*b"go ", *name] if i % 2 else [*b"g", *name] for i, name in enumerate(names)]
    return Policy(
        model=build(dataclasses.replace(registry.get("tiny").config, **SHAPE)),
        answers=Constrained(make_choices(names, TOKENIZER.eos_id)),
        rules=text.prefix,
        lora=LoraSpec(lora, 2, 4.0, ("q", "v", "down")) if lora else None,
        critic="none",
        dtype=jnp.float32,
    )


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
