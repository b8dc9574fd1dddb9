"""Which robots move when all of them move together.

The rules are those of RWARE: robots cannot swap places, a circle of three or more robots turns as one, and a queue
moves up if the cell in front of it is free. Of several queues into the same free cell the longest moves, and among
equally long ones that of the first seat.
"""

import jax
import jax.numpy as jnp


def movers(cells: jax.Array, targets: jax.Array) -> jax.Array:
    """Return which robots reach the cell that they want: bool [P].

    Args:
        cells: int32 [P]. Cells of the robots, all different.
        targets: int32 [P]. Cells that they want, their own to stay.

    Returns:
        True for robots that move to another cell.
    """
    players = cells.shape[0]
    seats = jnp.arange(players)
    occupied = targets[:, None] == cells
    free = ~jnp.any(occupied, axis=1)
    following = jnp.where(free, players, jnp.argmax(occupied, axis=1))  # the robot in the way, P for none
    chain = jnp.append(following, players)

    reached = seats
    circle = short = jnp.zeros(players, bool)
    for length in range(1, players + 1):
        reached = chain[reached]
        if length <= 2:
            short |= reached == seats  # robots that stay, or want to swap
        else:
            circle |= reached == seats
    leaves = reached == players  # the queue ends at a free cell

    behind = jnp.ones(players, jnp.int32)  # length of the longest queue that ends with each robot
    for _ in range(players - 1):
        behind = 1 + jnp.max(jnp.where(following[:, None] == seats, behind[:, None], 0), axis=0)
    rivals = (targets[:, None] == targets) & (seats[:, None] != seats)
    better = (behind > behind[:, None]) | ((behind == behind[:, None]) & (seats < seats[:, None]))
    first = ~jnp.any(rivals & better, axis=1)

    moving = leaves & first
    for _ in range(players - 1):
        moving = leaves & first & jnp.append(moving, True)[following]
    return moving | (circle & ~short)
