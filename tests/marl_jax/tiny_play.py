"""The smallest things that play: shared by the tests of rollout, update and evaluation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from configs import algorithms
from envs.games import registry as games
from envs.games import text as texts
from envs.games.parser import make_parser
from marl_jax.agents.policy import Free, LoraSpec, Policy
from marl_jax.sampling.choice import make_choices
from models import registry
from models.model import build
from models.tokenizers import ByteTokenizer

SHAPE = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
TOKENIZER = ByteTokenizer()


@functools.cache
def prompt(style="brief", name="tic_tac_toe"):
    """A game's prompt."""
    return texts.make(games.make(name), style).compile(TOKENIZER)


@functools.cache
def policy(critic="head", lora=None, style="brief", long_names=False, free=0):
    """A policy of a few thousand parameters for tic-tac-toe, in float32."""
    model = build(dataclasses.replace(registry.get("tiny").config, **SHAPE))
    text = prompt(style)
    names = [row[:n].tolist() for row, n in zip(text.action_ids, text.action_lengths, strict=True)]
    if long_names:
        names = [[*b"cell ", *name] if i % 2 else [*b"c", *name] for i, name in enumerate(names)]
    parser = make_parser(text.text.names, TOKENIZER.token_bytes(skip_special=True))
    return Policy(
        model=model,
        choices=make_choices(names, TOKENIZER.eos_id),
        prefix=text.prefix,
        lora=LoraSpec(lora, 2, 4.0, ("q", "v", "down")) if lora else None,
        critic=critic,
        free=Free(text.action_ids, text.action_lengths, TOKENIZER.stop_ids, free, parser) if free else None,
        dtype=jnp.float32,
    )


def weights(policy, seed=0, reference=False):
    """(trained, frozen), a little away from the start, so that adapters and critics do something."""
    key = jax.random.key(seed)
    trained, frozen = policy.init(policy.model.init(key), key, reference)
    leaves, tree = jax.tree.flatten(trained)
    keys = jax.random.split(key, len(leaves))
    leaves = [x + 0.2 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, leaves), frozen


def ppo(**changes):
    """PPO's settings."""
    algo = algorithms.ppo()
    algo.update(dict(tis_clip=0.0, minibatches=2, epochs=1) | changes)
    return algo
