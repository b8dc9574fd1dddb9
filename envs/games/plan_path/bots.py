"""A bot that follows the distance map of the level."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.bots import pick
from envs.games.plan_path.levels import UNREACHED
from envs.games.plan_path.rules import PlanPathState


@dataclasses.dataclass(frozen=True)
class PlanPathSolver:
    """A bot that samples uniformly among the moves on a shortest path."""

    def act(self, state: PlanPathState, key: jax.Array) -> jax.Array:
        """Return a move one step closer to the goal: int32 []; 0 at the goal."""
        width = state.distance.shape[1]
        row, column = state.position // width + 1, state.position % width + 1
        rim = jnp.pad(state.distance, 1, constant_values=UNREACHED)
        around = jnp.stack([rim[row - 1, column], rim[row + 1, column], rim[row, column - 1], rim[row, column + 1]])
        return pick((around >= 0) & (around < rim[row, column]), key)
