"""The smallest things that play: shared by the tests of rollout, update and evaluation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from configs import algorithms
from envs.games import registry as games
from envs.games.parser import make_parser
from envs.games.registry import make_text
from marl_jax.agents.answers import Constrained, FreeText
from marl_jax.agents.policy import LoraSpec, Policy
from marl_jax.agents.seating import Seating
from marl_jax.agents.team import Backbone, Team
from marl_jax.algorithms import settings_from
from marl_jax.rollouts.games import GameRollout
from marl_jax.sampling.choice import make_choices
from models import registry
from models.model import build
from models.tokenizers import ByteTokenizer

SHAPE = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
TOKENIZER = ByteTokenizer()


@functools.cache
def prompt(style="brief", name="tic_tac_toe"):
    """A game's prompt."""
    return make_text(games.make(name), style).compile(TOKENIZER)


def answers(text, names=None, free=0, lengths=False):
    """Names of legal actions, or up to `free` tokens of any text; `lengths` for names in conversations."""
    if free:
        parse = make_parser(text.text.names, TOKENIZER.token_bytes(skip_special=True))
        return FreeText(parse, text.action_ids, text.action_lengths, TOKENIZER.stop_ids, free)
    names = names or names_of(text)
    known = np.array([len(name) for name in names], np.int32) if lengths else None
    return Constrained(make_choices(names, TOKENIZER.eos_id), known)


def names_of(text, before=(b"", b"")):
    """Token ids of the names of all actions, after the first or second of these words in turn."""
    rows = zip(text.action_ids, text.action_lengths, strict=True)
    return [[*before[i % 2], *row[:n].tolist()] for i, (row, n) in enumerate(rows)]


def policy_of(text, answers, critic="head", lora=None, shape=SHAPE, **settings):
    """A policy of a few thousand parameters for a compiled prompt, in float32; `lora` adapters."""
    return Policy(
        model=build(dataclasses.replace(registry.get("tiny").config, **shape)),
        answers=answers,
        rules=text.prefix,
        lora=LoraSpec(lora, 2, 4.0, ("q", "v", "down")) if lora else None,
        critic=critic,
        dtype=jnp.float32,
        **settings,
    )


@functools.cache
def policy(critic="head", lora=None, style="brief", long_names=False, free=0):
    """A policy for tic-tac-toe."""
    text = prompt(style)
    names = None
    if long_names:
        names = [[*(b"cell " if i % 2 else b"c"), *str(i + 1).encode()] for i in range(9)]
    return policy_of(text, answers(text, names, free), critic, lora)


def team(policy, prompt):
    """A policy as a team of one backbone, called main; with adapters policy_0, policy_1, …"""
    names = tuple(f"policy_{i}" for i in range(policy.lora.n)) if policy.lora else ("main",)
    backbone = Backbone(
        "main", names, (True,) * len(names), None, None, policy.model, TOKENIZER, prompt, policy, mesh=None
    )
    return Team((backbone,), names)


def seating(*policies):
    """Seats with these policies at all turns."""
    return Seating(tuple((policy,) for policy in policies))


@functools.cache
def _prompt_of(game):
    return make_text(game, "brief").compile(TOKENIZER)


def rollout(game, policy, rows, turns, seats=None, learns=None, prompt=None, kind=GameRollout, **settings):
    """The program that plays a game with one policy, or with an adapter for each seat."""
    seats = seats or (tuple(range(policy.lora.n)) if policy.lora else (0,) * game.n_players)
    learns = learns or (True,) * (policy.lora.n if policy.lora else 1)
    text = prompt or _prompt_of(game)
    return kind(game, team(policy, text), rows, turns, seating(*seats), learns, **settings)


def weights(policy, seed=0, reference=False):
    """(trained, frozen), a little away from the start, so that adapters and critics do something."""
    return jax.tree.map(jnp.array, _weights(policy, seed, reference))


@functools.cache
def _weights(policy, seed, reference):
    """Kept on the host, since whoever gets them may donate them to a program."""
    key = jax.random.key(seed)
    trained, frozen = policy.init(policy.model.init(key), key, reference)
    leaves, tree = jax.tree.flatten(trained)
    noise = [jax.random.normal(k, x.shape) for k, x in zip(jax.random.split(key, len(leaves)), leaves, strict=True)]
    leaves, noise, frozen = jax.device_get((leaves, noise, frozen))  # a sum of new shapes would be compiled
    leaves = [x + np.float32(0.2) * change for x, change in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(tree, leaves), frozen


def ppo(**changes):
    """PPO's settings."""
    return settings_from(algorithms.ppo(**dict(tis_clip=0.0, minibatches=2, epochs=1) | changes))


def assert_truncated(samples, policy):
    """Free completions are truncated if they reach the limit without a stop token; names of actions never are."""
    if isinstance(policy.answers, Constrained):
        assert not np.any(samples.truncated)
        return
    stopped = samples.to_completions(jnp.isin(samples.targets, jnp.asarray(policy.answers.stop_ids)) * 1) > 0
    np.testing.assert_array_equal(samples.truncated, (samples.completion_lengths == policy.width) & ~stopped)
    assert 0 < np.sum(samples.truncated) < np.sum(samples.completion_lengths > 0)
