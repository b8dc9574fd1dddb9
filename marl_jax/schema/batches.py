"""Divisibility of batches by minibatches, microbatches and mesh shards.

The learner divides rows of `Samples`. A row is a completion with its prompt, all candidates for one prompt, or, with
`env.context` "history", the conversations of one seat. Rows are never split, nor are the rows of a round that an
algorithm learns together (`joint`). The number of rows of a task depends on
its episodes, so task batches are padded instead.
"""

from __future__ import annotations

import math

from ml_collections import ConfigDict

from envs.games import registry as games
from marl_jax.algorithms import settings_from
from marl_jax.errors import ConfigError, nearest


def rows_per_game(config: ConfigDict) -> tuple[str, int]:
    """Return the kind and number of rows that one parallel game produces.

    Kinds are "seats", "rounds" and "turns".
    """
    if config.env.context == "history":
        return "seats", _game(config).n_players
    if settings_from(config.algo).joint and (game := _game(config)).simultaneous:
        return "rounds", config.rollout.unroll_length // game.n_players
    return "turns", config.rollout.unroll_length


def _game(config: ConfigDict) -> games.Game:
    return games.make(config.env.name, **config.env.params.to_dict())


def rows(config: ConfigDict) -> int | None:
    """Return the number of rows of a rollout, or None for a task."""
    return None if config.task.name else config.rollout.num_envs * rows_per_game(config)[1]


def parts(config: ConfigDict) -> int:
    """Return the number of microbatches that the rows of a rollout are divided into."""
    algo = settings_from(config.algo)
    return algo.minibatches * algo.grad_accum_steps


def games_step(config: ConfigDict) -> int:
    """Return the smallest number of games that fills microbatches and groups evenly."""
    step = parts(config) // math.gcd(parts(config), rows_per_game(config)[1])
    return math.lcm(step, settings_from(config.algo).group_size)


def check_batches(config: ConfigDict, num_shards: int, sampling_shards: int | None = None) -> None:
    """Check that batches divide evenly, and suggest the nearest sizes that do.

    Args:
        config: Config of the run.
        num_shards: Number of shards of a training batch.
        sampling_shards: Number of shards of a batch of games, a multiple of `num_shards`. Defaults to `num_shards`.

    Raises:
        ConfigError: If a batch does not divide.
    """
    if config.task.name:
        return
    problems = []
    play_shards = sampling_shards or num_shards
    if config.rollout.num_envs % play_shards:
        near = " or ".join(map(str, nearest(config.rollout.num_envs, play_shards)))
        axes = "mesh.data x mesh.fsdp" if play_shards == num_shards else f"mesh.sampling {config.mesh.sampling!r}"
        problems.append(
            f"config.rollout.num_envs is {config.rollout.num_envs}, but must be a multiple of the {play_shards} batch "
            f"shards ({axes}), such as {near}"
        )
    if config.eval.games % play_shards:
        near = " or ".join(map(str, nearest(config.eval.games, play_shards)))
        problems.append(
            f"config.eval.games is {config.eval.games}, but must be a multiple of the {play_shards} batch shards, such "
            f"as {near}"
        )
    total, all_parts = rows(config), parts(config) * num_shards
    if not problems and total is not None and total % all_parts:
        step = math.lcm(play_shards, all_parts // math.gcd(all_parts, total // config.rollout.num_envs))
        near = " or ".join(map(str, nearest(config.rollout.num_envs, step)))
        problems.append(
            f"config.rollout.num_envs is {config.rollout.num_envs}, but its {total} rows do not divide into "
            f"algo.minibatches x algo.grad_accum_steps = {parts(config)} microbatches x {num_shards} shards; try {near}"
        )
    if problems:
        raise ConfigError(problems)
