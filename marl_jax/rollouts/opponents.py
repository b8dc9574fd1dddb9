"""Who sits opposite: bots in seats, and a pool of historical opponents met by prioritised fictitious self-play.

The pool is arrays of a fixed size, so that it lives on the device, enters the rollout program and is saved with the
rest. A historical opponent is met the more often the more it wins (Vinyals et al., 2019: weight (1 − p)² for win rate
p of the learner).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from envs.games.bots import Bot

BOT = "bot:"  # in front of a bot's name where the name of a policy could stand

MEMORY = 0.95  # of old results when new ones come in: what counts is how the learner fares against an opponent now
FLOOR = 0.05  # smallest weight, so that an opponent that is always beaten is still met now and then


def seat_actions(bots: Sequence[Bot | None], state, player: jax.Array, keys: jax.Array, action: jax.Array) -> jax.Array:
    """int32 [B]: `action`, or what the bot plays to whom the seat that moves belongs for good."""
    for seat, bot in enumerate(bots):
        if bot is not None:
            action = jnp.where(player == seat, jax.vmap(bot.act)(state, keys), action)
    return action


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pool:
    """Up to M historical opponents; the oldest gives way to the newest.

    weights  the players' weights, each array [M, …]
    step     int32 [M], when each was taken; -1 is an empty place
    points   float32 [M], of the learner against each, fading
    games    float32 [M], fading
    """

    weights: dict
    step: jax.Array
    points: jax.Array
    games: jax.Array


def new_pool(player: dict, size: int, dtype) -> Pool:
    """A pool whose first member is `player` as it is now, at step 0; kept in `dtype`."""
    weights = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), dtype), player)
    empty = Pool(weights, jnp.full((size,), -1, jnp.int32), jnp.zeros((size,)), jnp.zeros((size,)))
    return add(empty, player, 0)


def add(pool: Pool, player: dict, step) -> Pool:
    """The pool with one more historical opponent."""
    place = jnp.argmin(pool.step)
    put = lambda old, new: old.at[place].set(jnp.asarray(new, old.dtype))  # noqa: E731
    return Pool(
        weights=jax.tree.map(put, pool.weights, player),
        step=put(pool.step, step),
        points=put(pool.points, 0.0),
        games=put(pool.games, 0.0),
    )


def chances(pool: Pool, prioritised: bool) -> jax.Array:
    """float32 [M]: how likely each opponent is to be met next; one that was never met counts as an even match."""
    win_rate = (pool.points + 0.5) / (pool.games + 1.0)
    weight = jnp.maximum(jnp.square(1.0 - win_rate), FLOOR) if prioritised else jnp.ones_like(win_rate)
    weight = jnp.where(pool.step >= 0, weight, 0.0)
    return weight / jnp.sum(weight)


def meet(pool: Pool, key: jax.Array, prioritised: bool) -> tuple[jax.Array, dict]:
    """The place of the next historical opponent, drawn with `chances`, and its weights."""
    place = jax.random.categorical(key, jnp.log(chances(pool, prioritised)))
    return place, jax.tree.map(lambda x: x[place], pool.weights)


def record(pool: Pool, place: jax.Array, points: jax.Array, games: jax.Array) -> Pool:
    """The pool after some games of the learner against the historical opponent at `place`."""
    fade = jnp.where(games > 0, MEMORY, 1.0)
    return dataclasses.replace(
        pool,
        points=pool.points.at[place].set(fade * pool.points[place] + points),
        games=pool.games.at[place].set(fade * pool.games[place] + games),
    )
