"""Policies of other runs as opponents (`opponents.members`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.devices import placement
from marl_jax.errors import RunError
from marl_jax.rollouts.opponents import with_members
from marl_jax.schema import saved, stages
from marl_jax.setup import GameSetup, TaskSetup
from marl_jax.setup.parts import Setup
from marl_jax.setup.weights import restore_weights
from registries import load_plugins


def setup_like(folder: Path, config: ConfigDict) -> GameSetup | TaskSetup:
    """Build the parts of another run on the devices of this one.

    Args:
        folder: Folder of the other run.
        config: Config of the present run.
    """
    try:
        other = stages.started(saved.read(folder), folder).unlock()
        load_plugins(other.plugins)
        other.mesh, other.distributed = config.mesh, config.distributed
        other.rollout.num_envs, other.eval.games = config.rollout.num_envs, config.eval.games
        other.algo.update({field: 1 for field in ("minibatches", "grad_accum_steps") if field in other.algo})
        return setups.make(other, workdir=folder)
    except (AttributeError, KeyError, ValueError) as error:
        raise RunError(
            f"{folder / 'config.json'} is not the config of a run that this version can play: {error}"
        ) from error


def with_opponents(setup: Setup, state: Any) -> Any:
    """Return a rollout state whose pool has the policies of `opponents.members`, if there are any."""
    o = setup.config.opponents
    if not isinstance(setup, GameSetup) or not o.members:
        return state
    shares = o.shares or (1.0,) * len(o.members)
    snapshots = [_snapshot(setup, name, state.pool.snapshots) for name in o.members]
    pool = with_members(state.pool, list(zip(snapshots, map(float, shares), strict=True)))
    pool = jax.tree.map(jax.device_put, pool, placement.shardings_of(state.pool))
    return dataclasses.replace(state, pool=pool)


def _snapshot(setup: GameSetup, name: str, pool: dict) -> dict:
    """Load the trained parameters of a run for a pool of opponents."""
    folder, _, step = name.partition("@")
    path = Path(folder).expanduser()
    other = setup_like(path, setup.config)
    if not isinstance(other, GameSetup) or other.game != setup.game:
        raise RunError(f"opponents.members has {name!r}, which is not a run of {setup.config.env.name} like this one")
    snapshot = other.team.snapshot(restore_weights(other, path, step or "newest")[1])
    shapes, wanted = jax.tree.map(lambda x: x.shape, snapshot), jax.tree.map(lambda x: x.shape[1:], pool)
    if shapes != wanted:
        raise RunError(f"opponents.members has {name!r}, whose models have other parameters than those of this run")
    return snapshot
