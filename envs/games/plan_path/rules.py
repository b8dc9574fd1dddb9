"""Plan-Path: walk to the goal through a grid with walls in few moves.

Axis letters: A = 4 actions, C cells of the grid, row by row.

A move into a wall or off the grid is legal (unless `mask_invalid`), costs more and leaves the walker in place.

Rewards: team for reaching the goal, with a bonus for a shortest path; agent for each move; process for the progress
towards the goal by true distance, scaled so that a solved episode collects `shaping_reward`.
"""

import dataclasses
import os
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Reward, legal_or_end
from envs.games.plan_path import edits
from envs.games.plan_path import levels as levels_
from envs.games.pools import Pool
from envs.games.puzzle import Puzzle, near

FLOOR, WALL, GOAL, WALKER, WALKER_ON_GOAL = range(5)


class PlanPathState(NamedTuple):
    """State of a walk.

    Attributes:
        distance: int16 [h, w]. Steps to the goal, 0 at the goal, -1 in a wall (`levels.WALL`); constant.
        goal: int32 []. Cell of the goal.
        start: int32 []. Cell of the start.
        position: int32 []. Cell of the walker.
        shortest: int32 []. Steps from start to goal.
        turn: int32 []. Number of moves made.
        level: int32 []. Index in the split, -1 for a level from elsewhere.
    """

    distance: jax.Array
    goal: jax.Array
    start: jax.Array
    position: jax.Array
    shortest: jax.Array
    turn: jax.Array
    level: jax.Array


@dataclasses.dataclass(frozen=True)
class PlanPath(Puzzle):
    """The game of Plan-Path; see `Puzzle` for the pool.

    Attributes:
        size: Side of generated levels, from 5 to 16, 8 by default. With a pool, it follows from the pool.
        walls: Share of walls in generated levels.
        divided: Whether generated levels have the goal in the upper half and the start in the lower one.
        mask_invalid: Whether moves into walls are illegal.
        step_reward: Agent reward of a move.
        invalid_reward: Agent reward of a move into a wall.
        shaping_reward: Total process reward along a path to the goal.
        goal_reward: Team reward for reaching the goal.
        shortest_reward: Additional team reward for a shortest path.
    """

    name: ClassVar[str] = "plan_path"
    symbols: ClassVar[tuple[str, ...]] = (".", "#", "G", "A", "*")
    process_rewards: ClassVar[tuple[str, ...]] = ("shaping_reward",)
    success_reward: ClassVar[str] = "goal_reward"
    n_actions: ClassVar[int] = 4
    action_names: ClassVar[tuple[str, ...]] = ("up", "down", "left", "right")

    size: int | None = None
    walls: float = 0.22
    divided: bool = False
    mask_invalid: bool = False
    step_reward: float = -0.01
    invalid_reward: float = -0.1
    shaping_reward: float = 0.5
    goal_reward: float = 1.0
    shortest_reward: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        height, width = self.shape
        if height != width or self.size not in (None, height):
            raise ValueError(f"plan_path: size is {self.size}, but the pool has {height}x{width} grids")
        object.__setattr__(self, "size", height)
        distance = self.levels["distance"].reshape(self.n_levels, -1)
        longest = int(distance[range(self.n_levels), self.levels["start"]].max())
        if longest > self.max_turns:
            raise ValueError(f"plan_path: budget is {self.max_turns}, but a level needs {longest} moves")

    def generate_pool(self) -> Pool:
        """Generate a pool from size, walls, seed, n_train and n_test."""
        size = 8 if self.size is None else self.size
        return levels_.generate(
            size,
            self.walls,
            self.seed,
            self.n_train,
            self.n_test,
            difficulty_levels=self.difficulty_levels,
            divided=self.divided,
        )

    def load_pool(self, path: str | os.PathLike) -> Pool:
        """Load the pool from a file."""
        return levels_.load(path)

    def difficulty(self) -> np.ndarray:
        """Return mainly the steps from start to goal: float [N]."""
        return levels_.difficulty(self.levels.arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the grid."""
        return self.levels["distance"].shape[1:]

    @property
    def max_turns(self) -> int:
        """Maximum number of moves: the budget, by default four times the side."""
        return 4 * self.shape[0] if self.budget is None else self.budget

    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> PlanPathState:
        """Return the first state of a level {"distance": int16 [h, w], "start": int32 []}."""
        distance = jnp.asarray(level["distance"], jnp.int16)
        start = jnp.asarray(level["start"], jnp.int32)
        return PlanPathState(
            distance=distance,
            goal=jnp.argmax(distance == 0).astype(jnp.int32),
            start=start,
            position=start,
            shortest=distance.reshape(-1)[start].astype(jnp.int32),
            turn=jnp.int32(0),
            level=jnp.asarray(index, jnp.int32),
        )

    def optimal_return(self, state: PlanPathState) -> jax.Array:
        """Return the team and agent rewards of perfect play from a first state: float32 []."""
        solved = self.goal_reward + self.shortest_reward + self.step_reward * state.shortest
        solvable = (state.shortest > 0) & (state.shortest <= self.max_turns)
        return jnp.where(solvable, solved, self.step_reward * self.max_turns).astype(jnp.float32)

    def edit_level(self, level: dict[str, Any], key: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        """Return a level with one random change, and whether it can be solved (bool [])."""
        return edits.edit(level, key, self.max_turns // 2)

    def _target(self, state: PlanPathState, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the cell that `action` leads to, and whether it is blocked."""
        height, width = self.shape
        forth = 2 * (action % 2) - 1
        down, right = jnp.where(action < 2, forth, 0), jnp.where(action < 2, 0, forth)
        row, column = state.position // width + down, state.position % width + right
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        target = jnp.where(inside, row * width + column, state.position)
        return target, ~inside | (state.distance.reshape(-1)[target] == levels_.WALL)

    def legal(self, state: PlanPathState) -> jax.Array:
        """Return all four moves, or with `mask_invalid` those not blocked: bool [4]."""
        legal = jnp.ones(4, bool)
        if self.mask_invalid:
            legal = ~jax.vmap(lambda action: self._target(state, action)[1])(jnp.arange(4))
        return legal_or_end(legal, self.done(state))

    def step(self, state: PlanPathState, action: jax.Array) -> tuple[PlanPathState, Reward]:
        """Walk one cell, unless the move is blocked."""
        running = ~self.done(state)
        target, blocked = self._target(state, action)
        position = jnp.where(running & ~blocked, target, state.position)
        turn = state.turn + running
        arrived = running & (position == state.goal)
        distance = state.distance.reshape(-1)
        closer = (distance[state.position] - distance[position]).astype(jnp.float32)
        team = arrived * (self.goal_reward + self.shortest_reward * (turn == state.shortest))
        agent = running * jnp.where(blocked, self.invalid_reward, self.step_reward)
        process = running * self.shaping_reward * closer / state.shortest
        reward = Reward(team=jnp.float32(team), agent=jnp.float32(agent)[None], process=jnp.float32(process)[None])
        return state._replace(position=position, turn=turn), reward

    def done(self, state: PlanPathState) -> jax.Array:
        """Return whether the walker is at the goal or out of moves."""
        return self.success(state) | (state.turn >= self.max_turns)

    def success(self, state: PlanPathState) -> jax.Array:
        """Return whether the walker is at the goal."""
        return state.position == state.goal

    def cells(self, state: PlanPathState) -> jax.Array:
        """Return the codes FLOOR to WALKER_ON_GOAL: int32 [C]."""
        return cells(state)

    def surroundings(self, state: PlanPathState, action: jax.Array, radius: int) -> jax.Array:
        """Return the cells within `radius` of the walker: bool [C]."""
        return near(self.shape, state.position, radius)


def cells(state: PlanPathState) -> jax.Array:
    """Return the code of each cell, FLOOR to WALKER_ON_GOAL: int32 [C]."""
    distance = state.distance.reshape(-1)
    here, goal = jnp.arange(distance.shape[0]) == state.position, distance == 0
    codes = jnp.where(distance == levels_.WALL, WALL, jnp.where(goal, GOAL, FLOOR))
    return jnp.where(here, jnp.where(goal, WALKER_ON_GOAL, WALKER), codes).astype(jnp.int32)
