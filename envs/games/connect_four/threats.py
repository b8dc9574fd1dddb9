"""The effect of the next stone in each column, a fact derived from the board."""

import jax
import jax.numpy as jnp

from envs.games.connect_four.rules import COLUMNS, PLACES, ConnectFourState, drop, has_four, intersection, select, union

CLOSED, PLAIN, WINS, BLOCKS, GIVES, SPOILS = range(6)
"""Effects of a stone: the column is full; none of the following; it makes four; it keeps the other player from making
four there; it lets the other player make four on top of it; it lets the other player take the place on top of it,
where the player would have made four. If several apply, the first of CLOSED, WINS, BLOCKS, GIVES, SPOILS counts."""


def next_stones(state: ConnectFourState, seat: jax.Array) -> jax.Array:
    """Return the effect of a stone of `seat` (int []) in every column: int32 [7]."""
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
