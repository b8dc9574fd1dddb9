"""A bot that plans shortest paths to assigned shelves, goals and storage places."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.warehouse import layout
from envs.games.warehouse.rules import FORWARD, LEFT, NOTHING, RIGHT, TOGGLE, WAIT, Warehouse, WarehouseState

_FAR = 10_000
_YIELD, _PUSH = 30, 2
"""Rounds that a robot drives around one with priority, and around another, instead of waiting for it.

Loaded robots, which cannot drive below shelves, have priority, and among them those of the first seats. Without an
order, two robots that meet in a corridor would never pass.
"""
_SIDESTEP = 0.25
"""Probability of a random move in front of another robot, which resolves deadlocks."""


@dataclasses.dataclass(frozen=True)
class PlannerBot:
    """A bot that sees the full grid and takes the shortest path to its target.

    Robots without a shelf are assigned to requested shelves, the closest pair first; those left over wait below the
    closest other shelf. Loaded robots drive to the closest goal, or return a delivered shelf to the closest empty
    place.
    """

    game: Warehouse

    def act(self, state: WarehouseState, key: jax.Array) -> jax.Array:
        """Return the next action on the way: int32 []; 0 if the game is over."""
        seat, plan = self.game.player(state), self.game.layout
        cell, facing, loaded = state.robots[seat], state.facing[seat], state.loads[seat] != NOTHING
        numbers, others = jnp.arange(len(state.shelves)), jnp.arange(self.game.players) != seat
        carried = jnp.any(numbers == state.loads[:, None], axis=0)
        standing = self.game.shelf_at(state, ~carried) != NOTHING
        wanted = loaded & jnp.any(state.requests == state.loads[seat])
        shelf = assigned(self.game, state, carried)[seat]

        floor = jnp.asarray(plan.floor).reshape(-1)
        at_shelf = jnp.arange(floor.size) == jnp.where(shelf == NOTHING, cell, state.shelves[shelf])
        rank = jnp.where(state.loads != NOTHING, self.game.players, 0) - jnp.arange(self.game.players)
        delay = jnp.where(rank > rank[seat], _YIELD, _PUSH)
        occupied = jnp.where(others, state.robots, floor.size)
        robots = jnp.zeros(floor.size, jnp.int32).at[occupied].set(delay, mode="drop")
        place = jnp.where(wanted, floor == layout.GOAL, (floor == layout.PLACE) & ~standing & (robots == 0))
        distance = _distances(plan, jnp.where(loaded, place, at_shelf), loaded & standing, robots)

        there = jnp.asarray(plan.ahead)[facing, cell]
        turned = distance[(facing - 1) % 4, cell], distance[(facing + 1) % 4, cell]
        after = jnp.stack([_FAR, distance[facing, there], *turned])
        after = after.at[FORWARD].add(robots[there])
        blocked = (there == cell) | (loaded & standing[there])
        move = jnp.argmin(after.at[FORWARD].add(jnp.where(blocked, _FAR, 0)))
        fronts = jnp.asarray(plan.ahead)[state.facing, state.robots]
        contested = jnp.any(others & ((fronts == there) | (state.robots == there)))
        first, second = jax.random.split(key)
        side = jnp.asarray([WAIT, LEFT, RIGHT])[jax.random.randint(second, (), 0, 3)]
        move = jnp.where((move == FORWARD) & contested & (jax.random.uniform(first) < _SIDESTEP), side, move)

        useful = loaded | ((shelf != NOTHING) & jnp.any(state.requests == shelf))
        arrived = distance[facing, cell] == 0
        action = jnp.where(arrived, jnp.where(useful, TOGGLE, WAIT), move)
        return jnp.where(self.game.done(state), 0, action).astype(jnp.int32)


def assigned(game: Warehouse, state: WarehouseState, carried: jax.Array) -> jax.Array:
    """Return the shelf that each robot drives to, or NOTHING for loaded robots: int32 [P].

    Args:
        game: The game.
        state: The position.
        carried: bool [S]. Shelves that robots carry.
    """
    width, numbers = game.shape[1], jnp.arange(len(state.shelves))
    (top, left), (row, column) = (jnp.divmod(cells, width) for cells in (state.robots, state.shelves))
    cost = jnp.abs(top[:, None] - row) + jnp.abs(left[:, None] - column)
    cost += jnp.where(jnp.any(numbers == state.requests[:, None], axis=0), 0, _FAR // 10)
    cost = jnp.where(carried | (state.loads != NOTHING)[:, None], _FAR, cost)
    chosen = jnp.full(game.players, NOTHING)

    def assign(_, carry):
        cost, chosen = carry
        robot, shelf = jnp.divmod(jnp.argmin(cost), len(numbers))
        chosen = chosen.at[robot].set(jnp.where(cost[robot, shelf] < _FAR, shelf, chosen[robot]))
        return cost.at[robot, :].set(_FAR).at[:, shelf].set(_FAR), chosen

    return jax.lax.fori_loop(0, game.players, assign, (cost, chosen))[1]


def _distances(plan: layout.Layout, targets: jax.Array, walls: jax.Array, robots: jax.Array) -> jax.Array:
    """Return the rounds to the closest target by direction and cell: int32 [4, C].

    Args:
        plan: The floor plan.
        targets: bool [C].
        walls: bool [C]. Cells that cannot be entered.
        robots: int32 [C]. Delay in the cells of other robots.
    """
    ahead = jnp.asarray(plan.ahead)
    entry = jnp.where(walls, _FAR, 1 + robots)[ahead]
    start = jnp.where(targets, 0, _FAR)[None].repeat(4, axis=0)

    def sweep(carry):
        distance, _ = carry
        forward = jnp.take_along_axis(distance, ahead, axis=1) + entry
        turn = 1 + jnp.minimum(jnp.roll(distance, 1, axis=0), jnp.roll(distance, -1, axis=0))
        better = jnp.minimum(distance, jnp.minimum(forward, turn))
        return better, jnp.any(better < distance)

    return jax.lax.while_loop(lambda carry: carry[1], sweep, (start, jnp.bool_(True)))[0]
