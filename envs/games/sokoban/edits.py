"""Random edits of Sokoban levels with one box inside jit, with a check of solvability.

Axis letters: h, w height and width of the board, C = h·w cells, row by row.
"""

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import pick
from envs.games.sokoban.levels import NO_WAY, STEPS, boxes_of, goals_of, player_of
from envs.games.sokoban.solver import BOX, BOX_ON_GOAL, FLOOR, GOAL, PLAYER, PLAYER_ON_GOAL, WALL

Level = dict[str, jax.Array]
"""Arrays of one level: `levels.SCHEMA`."""


def _adjacent(height: int, width: int) -> np.ndarray:
    """Return the cells next to every cell, in the order of `STEPS`: int [C, 4].

    Walls at the rim prevent wrapping around.
    """
    cells = np.arange(height * width)
    return np.clip(cells[:, None] + [down * width + right for down, right in STEPS], 0, len(cells) - 1)


def moves_left(cells: jax.Array) -> jax.Array:
    """Return the fewest moves from every position of box and player: int32 [C, C].

    Equals `levels.moves_left`, which runs on the host.

    Args:
        cells: uint8 [h, w]. Codes of the level.
    """
    adjacent, place = _adjacent(*cells.shape), np.arange(cells.size)
    pushed = adjacent[None] == place[:, None, None]  # [C, C, 4]: the player would step onto the box
    box = np.where(pushed, adjacent[:, None], place[:, None, None])
    player = np.broadcast_to(adjacent[None], box.shape)
    free, goals = (cells != WALL).reshape(-1), goals_of(cells).reshape(-1)
    possible = free[player] & free[box]

    def nearer(left: jax.Array) -> jax.Array:
        best = jnp.where(possible, left[box, player], NO_WAY).min(axis=2)
        return jnp.minimum(left, jnp.where(best < NO_WAY, best + 1, NO_WAY))

    return _fixed_point(nearer, jnp.where(goals[:, None] & free, 0, NO_WAY).astype(jnp.int32))


def dead_cells(cells: jax.Array) -> jax.Array:
    """Return the cells from which no goal can be reached: bool [h, w].

    Equals `levels.dead_cells`, which runs on the host.
    """
    adjacent, free = _adjacent(*cells.shape), (cells != WALL).reshape(-1)
    opposite = adjacent[:, [1, 0, 3, 2]]  # the player's cell for a push in the order of `STEPS`

    def more(live: jax.Array) -> jax.Array:
        return live | (free & jnp.any(live[adjacent] & free[opposite], axis=1))

    return (free & ~_fixed_point(more, goals_of(cells).reshape(-1))).reshape(cells.shape)


def _fixed_point(function, start: jax.Array) -> jax.Array:
    """Apply a function until nothing changes."""
    changes = lambda carry: jnp.any(carry[0] != carry[1])  # noqa: E731
    return jax.lax.while_loop(changes, lambda carry: (function(carry[0]), carry[0]), (function(start), start))[0]


def edit(level: Level, key: jax.Array, max_moves: int) -> tuple[Level, jax.Array]:
    """Make one random edit: flip a wall, or move a figure or the goal.

    Args:
        level: Level with one box to edit.
        key: Source of randomness.
        max_moves: Largest accepted number of moves of a solution.

    Returns:
        The edited level, and whether it can be solved: bool []. An unsolvable level has arrays like any other.
    """
    kind_key, cell_key = jax.random.split(key)
    height, width = level["cells"].shape
    codes, index = level["cells"].reshape(-1), jnp.arange(height * width)
    wall, goal, box, player = codes == WALL, goals_of(codes), boxes_of(codes), player_of(codes)
    inner = np.pad(np.ones((height - 2, width - 2), bool), 1).reshape(-1)
    kind = jax.random.randint(kind_key, (), 0, 5)  # a wall is flipped twice as often as a figure is moved
    free = ~wall & ~box
    allowed = jnp.stack([inner & ~goal & ~box & ~player, free & ~player, free & ~player & ~goal, free & ~goal])
    cell = pick(allowed[jnp.maximum(kind - 1, 0)], cell_key)
    here = index == cell
    wall ^= (kind <= 1) & here
    player = jnp.where(kind == 2, here, player)
    box = jnp.where(kind == 3, here, box)
    goal = jnp.where(kind == 4, here | (goal & (index != jnp.argmax(goal))), goal)
    codes = jnp.where(wall, WALL, jnp.where(goal, GOAL, FLOOR))
    codes = jnp.where(box, jnp.where(goal, BOX_ON_GOAL, BOX), codes)
    codes = jnp.where(player, jnp.where(goal, PLAYER_ON_GOAL, PLAYER), codes)
    cells = codes.reshape(height, width).astype(level["cells"].dtype)
    moves = moves_left(cells)[jnp.argmax(box), jnp.argmax(player)]
    made = {"cells": cells, "dead": dead_cells(cells), "moves": moves.astype(level["moves"].dtype)}
    # Without an allowed cell, `pick` returns C.
    return made, (cell < codes.size) & (moves >= 1) & (moves <= max_moves)
