"""The smallest puzzle played in groups: Plan-Path by planner and executor, a few thousand parameters."""

import functools

from configs import algorithms, planning
from envs.games import registry as games
from envs.games.registry import make_text
from experiments import plan_path
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


def get_config(form="at_grpo"):
    """A run of a few seconds: Plan-Path on 5x5 in a form of the experiment, with few levels and games."""
    config = plan_path.get_config(form)
    config.name = "tiny_plan"
    config.steps = 4
    config.mesh.data = 1
    config.env.params.update(dict(n_train=24, n_test=8))
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.rollout.num_envs = 8
    config.algo.grad_accum_steps = 1
    config.optim.warmup = 1
    config.eval.update(dict(every=0, games=16))
    config.checkpoint.update(dict(every=2, best_metric=""))
    if planning.imitates(form):
        config.rollout.update(dict(num_envs=16, unroll_length=4))
        config.algo.minibatches = 2
        config.optim.update(dict(schedule="constant", lr=1e-2))
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    return config
