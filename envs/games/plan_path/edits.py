"""Random edits of Plan-Path levels inside jit, with a check of solvability.

Axis letters: h, w height and width of the grid, C = h·w cells.
"""

import jax
import jax.numpy as jnp

from envs.games.bots import pick
from envs.games.plan_path.levels import UNREACHED, WALL

Level = dict[str, jax.Array]
"""Arrays of one level, {"distance": int16 [h, w], "start": int32 []}."""


def distances(walls: jax.Array, goal: jax.Array) -> jax.Array:
    """Return the number of steps to the goal from every cell: int16 [h, w].

    Equals `levels.distances`, which runs on the host.

    Args:
        walls: bool [h, w].
        goal: int []. Cell of the goal.
    """
    cells = jnp.arange(walls.size).reshape(walls.shape)
    first = jnp.where(cells == goal, 0, UNREACHED).astype(jnp.int16)

    def shorter(steps: jax.Array) -> jax.Array:
        rim = jnp.pad(steps, 1, constant_values=UNREACHED)
        around = jnp.stack([rim[:-2, 1:-1], rim[2:, 1:-1], rim[1:-1, :-2], rim[1:-1, 2:]]).min(0)
        return jnp.where(walls, steps, jnp.minimum(steps, around + 1))

    def changes(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(carry[0] != carry[1])

    steps, _ = jax.lax.while_loop(changes, lambda carry: (shorter(carry[0]), carry[0]), (shorter(first), first))
    return jnp.where(walls, jnp.int16(WALL), steps)


def edit(level: Level, key: jax.Array, max_steps: int) -> tuple[Level, jax.Array]:
    """Make one random edit: flip a wall, or move the start or the goal.

    Args:
        level: Level to edit.
        key: Source of randomness.
        max_steps: Largest accepted number of steps from start to goal.

    Returns:
        The edited level, and whether it can be solved: bool []. An unsolvable level has arrays like any other.
    """
    kind_key, cell_key = jax.random.split(key)
    distance = level["distance"]
    flat = distance.reshape(-1)
    cells, start, goal = jnp.arange(flat.size), level["start"], jnp.argmax(flat == 0)
    occupied = (cells == start) | (cells == goal)
    kind = jax.random.randint(kind_key, (), 0, 4)  # a wall is flipped twice as often as a figure is moved
    cell = pick(jnp.where(kind < 2, ~occupied, (flat != WALL) & ~occupied), cell_key)
    walls = (flat == WALL) ^ ((kind < 2) & (cells == cell))
    start, goal = jnp.where(kind == 2, cell, start), jnp.where(kind == 3, cell, goal)
    steps = distances(walls.reshape(distance.shape), goal)
    needed = steps.reshape(-1)[start]
    made = {"distance": steps.astype(distance.dtype), "start": start.astype(level["start"].dtype)}
    return made, (cell < flat.size) & (needed >= 1) & (needed <= max_steps)  # without a free cell, `pick` gives C
