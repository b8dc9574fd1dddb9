"""What the next stone of each column does: facts of a position that everybody can work out from the board."""

import jax
import jax.numpy as jnp

from envs.games.connect_four.rules import COLUMNS, PLACES, ConnectFourState, drop, has_four, intersection, select, union

CLOSED, PLAIN, WINS, BLOCKS, GIVES, SPOILS = range(6)
"""In the order of what matters more: no stone can be dropped there; nothing of what follows; it makes four; the other
player would make four there; the other player then makes four on top of it; the player itself would make four on top
of it, where the other player now can go."""


def next_stones(state: ConnectFourState, seat: jax.Array) -> jax.Array:
    """For every column, what a stone of `seat` (int[]) does there: int32[7] of the numbers above."""
    second = jnp.asarray(seat) == 1
    own, other = select(second, state.second, state.first), select(second, state.first, state.second)
    taken = union(own, other)

    def fact(column: jax.Array) -> jax.Array:
        place = intersection(drop(taken, column), PLACES)
        above = intersection(drop(union(taken, place), column), PLACES)
        facts = [
            state.over | (place.left | place.right == 0),
            has_four(union(own, place)),
            has_four(union(other, place)),
            has_four(union(other, above)),
            has_four(union(own, above)),
        ]
        numbers = jnp.asarray([CLOSED, WINS, BLOCKS, GIVES, SPOILS], jnp.int32)
        return jnp.select(facts, numbers, PLAIN)  # pyright: ignore[reportArgumentType] (select unpacks arrays, too)

    return jax.vmap(fact)(jnp.arange(COLUMNS))
