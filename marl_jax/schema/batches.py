"""Whether the batches of a run divide: into minibatches, their parts and the parts of a mesh.

The learner's unit is a row of `Samples`: an answer with its prompt, all candidates of one prompt, or with `history` the
conversations of one seat. Rows are never split, and a task makes as many as its episodes need, which are padded.
"""

from __future__ import annotations

import math

from ml_collections import ConfigDict

from envs.games import registry as games
from marl_jax.algorithms import settings_from
from marl_jax.errors import ConfigError, nearest


def rows_per_game(config: ConfigDict) -> tuple[str, int]:
    """How many rows one of the games of a rollout makes: what they are called, and their number."""
    if config.env.context == "history":
        return "seats", games.make(config.env.name, **config.env.params.to_dict()).n_players
    return "turns", config.rollout.unroll_length


def rows(config: ConfigDict) -> int | None:
    """Rows of one rollout; None for a task."""
    return None if config.task.name else config.rollout.num_envs * rows_per_game(config)[1]


def parts(config: ConfigDict) -> int:
    """In how many parts the rows of a rollout are read, one after the other."""
    algo = settings_from(config.algo)
    return algo.minibatches * algo.grad_accum_steps


def games_step(config: ConfigDict) -> int:
    """A number of games whose rows split into the parts, and which makes whole groups; so do all multiples of it."""
    step = parts(config) // math.gcd(parts(config), rows_per_game(config)[1])
    return math.lcm(step, settings_from(config.algo).group_size)


def check_batches(config: ConfigDict, num_shards: int, sampling_shards: int | None = None) -> None:
    """Refuses batches that the parts do not divide, with the nearest sizes that do.

    num_shards     parts of a batch that is learnt from
    sampling_shards  parts of a batch of games, where that is another number; the first divides it
    """
    if config.task.name:
        return
    problems = []
    play_shards = sampling_shards or num_shards
    if config.rollout.num_envs % play_shards:
        near = " or ".join(map(str, nearest(config.rollout.num_envs, play_shards)))
        axes = "mesh.data x mesh.fsdp" if play_shards == num_shards else f"mesh.sampling {config.mesh.sampling!r}"
        problems.append(
            f"config.rollout.num_envs is {config.rollout.num_envs}, not a multiple of the {play_shards} "
            "parts of the batch "
            f"({axes}); nearest: {near}"
        )
    if config.eval.games % play_shards:
        near = " or ".join(map(str, nearest(config.eval.games, play_shards)))
        problems.append(f"config.eval.games is {config.eval.games}, not a multiple of {play_shards}; nearest: {near}")
    total, all_parts = rows(config), parts(config) * num_shards
    if not problems and total % all_parts:
        step = math.lcm(play_shards, all_parts // math.gcd(all_parts, total // config.rollout.num_envs))
        near = " or ".join(map(str, nearest(config.rollout.num_envs, step)))
        problems.append(
            f"config.rollout.num_envs is {config.rollout.num_envs}: {total} rows do not split into algo.minibatches x "
            f"algo.grad_accum_steps = {parts(config)} x {num_shards} parts of the mesh; nearest: {near}"
        )
    if problems:
        raise ConfigError(problems)
