"""Sokoban: the player pushes boxes, one at a time and never pulls, until every box stands on a goal.

Axis letters: A 4 actions, C cells of the board, row by row, K boxes.

Boxes are kept as a short list of cells, so a step touches K numbers and never rewrites the board. Moves that bump are
allowed (unless `mask_invalid`) and change nothing but the turn.
Rewards: team, solved; agent, the price of each move and boxes going onto goals and off them; process, a penalty when
the level becomes unsolvable in a way that is easy to see (a box on a cell from which it can reach no goal, or four
walls and boxes in a square), and with `shaping_reward` how much closer a move came to the shortest solution.
"""

import dataclasses
import functools
import os
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Reward, legal_or_end
from envs.games.pools import Pool
from envs.games.puzzle import Puzzle, near
from envs.games.sokoban import levels as levels_
from envs.games.sokoban.solver import BOX, BOX_ON_GOAL, FLOOR, GOAL, PLAYER, PLAYER_ON_GOAL, WALL

WALL_BIT, GOAL_BIT, DEAD_BIT = 1, 2, 4
NOWHERE = -1
"""The cell of a box that this level does not have; it counts as done."""


class SokobanState(NamedTuple):
    """One level being played.

    ground: uint8[h,w]   WALL_BIT, GOAL_BIT and DEAD_BIT of every cell; never changes
    boxes: int32[K]      cells of the boxes
    position: int32[]    cell of the player
    missing: int32[]     boxes that are not on a goal
    deadlocked: bool[]   a simple deadlock was seen: the level can no longer be solved
    turn: int32[]        moves made
    level: int32[]       index in the pool part, -1 for a level from elsewhere
    """

    ground: jax.Array
    boxes: jax.Array
    position: jax.Array
    missing: jax.Array
    deadlocked: jax.Array
    turn: jax.Array
    level: jax.Array


@dataclasses.dataclass(frozen=True)
class Sokoban(Puzzle):
    """The game; pool fields are in `Puzzle`.

    size, boxes, walls: of generated levels (`levels.generate`); with a pool, size is the pool's
    mask_invalid: make moves that change nothing illegal
    end_on_deadlock: end the episode, unsolved, when a deadlock is seen
    shaping_reward: what the whole way of the shortest solution pays, in equal parts a move and taken back by moves
        that lead away; moves after which there is no way count as if the budget were left. For levels of one box
    """

    name: ClassVar[str] = "sokoban"
    symbols: ClassVar[tuple[str, ...]] = levels_.SYMBOLS
    process_rewards: ClassVar[tuple[str, ...]] = ("deadlock_reward", "shaping_reward")
    success_reward: ClassVar[str] = "solved_reward"
    n_actions: ClassVar[int] = 4
    action_names: ClassVar[tuple[str, ...]] = ("up", "down", "left", "right")

    size: int | None = None
    boxes: int = 1
    walls: float = 0.1
    mask_invalid: bool = False
    end_on_deadlock: bool = False
    step_reward: float = -0.01
    invalid_reward: float = -0.01
    box_reward: float = 1.0
    solved_reward: float = 10.0
    deadlock_reward: float = -1.0
    shaping_reward: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        height, width = self.shape
        if self.size not in (None, height) or self.size not in (None, width):
            raise ValueError(f"sokoban: the pool has {height}x{width} levels, expected size {self.size}")
        object.__setattr__(self, "size", max(height, width))
        longest = int(self.levels["moves"].max())
        if longest > self.max_turns:
            raise ValueError(f"sokoban: budget {self.max_turns} is too short for a level that needs {longest} moves")
        if self.shaping_reward and self.max_boxes > 1:
            raise ValueError(f"sokoban: shaping_reward is for levels of one box, found {self.max_boxes} boxes")

    def generate_pool(self) -> Pool:
        """A pool from size, boxes, walls, seed, n_train and n_test."""
        size = 6 if self.size is None else self.size
        return levels_.generate(
            size, self.boxes, self.walls, self.seed, self.n_train, self.n_test, difficulty_levels=self.difficulty_levels
        )

    def load_pool(self, path: str | os.PathLike) -> Pool:
        """The pool in a file."""
        return levels_.load(path)

    def difficulty(self) -> np.ndarray:
        """Boxes, then moves: float[N]."""
        return levels_.difficulty(self.levels.arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the board."""
        return self.levels["cells"].shape[1:]

    @property
    def max_turns(self) -> int:
        """The budget, twice the inner cells unless given."""
        height, width = self.shape
        return 2 * (height - 2) * (width - 2) if self.budget is None else self.budget

    @functools.cached_property
    def max_boxes(self) -> int:
        """K: boxes of the level that has most."""
        return int(levels_.boxes_of(self.levels["cells"]).sum((1, 2)).max())

    @functools.cached_property
    def _moves_left(self) -> np.ndarray:
        """Moves to the goal, at most the budget, by level, cell of the box and cell of the player: int16[N,C,C]."""
        return np.minimum(levels_.moves_left(self.levels["cells"]), self.max_turns).astype(np.int16)

    @functools.cached_property
    def _shortest(self) -> np.ndarray:
        """Moves of the shortest solution of every level: int16[N]."""
        cells = self.levels["cells"].reshape(self.n_levels, -1)
        box, player = levels_.boxes_of(cells).argmax(1), levels_.player_of(cells).argmax(1)
        return self._moves_left[np.arange(self.n_levels), box, player]

    def _closer(self, before: SokobanState, after: SokobanState) -> jax.Array:
        """The part of the shortest solution that lies between two positions; 0 in a level from elsewhere: float32[]."""
        table, level = jnp.asarray(self._moves_left), before.level
        left, left_after = (table[level, state.boxes[0], state.position] for state in (before, after))
        return jnp.where(level < 0, 0, left - left_after) / jnp.asarray(self._shortest, jnp.float32)[level]

    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> SokobanState:
        """The first state of a level {"cells": uint8[h,w], "dead": bool[h,w]}."""
        cells = jnp.asarray(level["cells"], jnp.uint8)
        dead = jnp.asarray(level["dead"], bool)
        goal = levels_.goals_of(cells)
        box = levels_.boxes_of(cells)
        return SokobanState(
            ground=((cells == WALL) * WALL_BIT + goal * GOAL_BIT + dead * DEAD_BIT).astype(jnp.uint8),
            boxes=jnp.nonzero(box.reshape(-1), size=self.max_boxes, fill_value=NOWHERE)[0].astype(jnp.int32),
            position=jnp.argmax(levels_.player_of(cells)).astype(jnp.int32),
            missing=(box & ~goal).sum().astype(jnp.int32),
            deadlocked=(box & dead).any(),
            turn=jnp.int32(0),
            level=jnp.asarray(index, jnp.int32),
        )

    def _step_of(self, action: jax.Array) -> jax.Array:
        """How far a move goes in the flat board: int32[]."""
        along = jnp.where(action < 2, self.shape[1], 1)
        return jnp.where(action % 2 == 0, -along, along)

    def _try(self, state: SokobanState, action: jax.Array) -> tuple[jax.Array, ...]:
        """target and beyond (the next two cells), whether a box is pushed, and whether the move changes nothing."""
        step = self._step_of(action)
        ground = state.ground.reshape(-1)
        target, beyond = state.position + step, jnp.clip(state.position + 2 * step, 0, ground.shape[0] - 1)
        pushed = (state.boxes == target).any()
        jammed = pushed & (((ground[beyond] & WALL_BIT) > 0) | (state.boxes == beyond).any())
        return target, beyond, pushed, jammed | ((ground[target] & WALL_BIT) > 0)

    def _frozen_square(self, state: SokobanState, boxes: jax.Array, box: jax.Array) -> jax.Array:
        """Whether a 2x2 square around the cell `box` is all walls and boxes, with a box off its goal: bool[]."""
        width = self.shape[1]
        down, right = np.array([-width, width]), np.array([-1, 1])
        # corner [2,2]; the square of corner (i, j) is box, box + down[i], box + right[j] and the corner itself
        corner = down[:, None] + right[None, :]
        around = jnp.asarray(np.concatenate([[0], down, right, corner.reshape(-1)]), jnp.int32) + box
        cell = jnp.clip(around, 0, state.ground.size - 1)
        ground = state.ground.reshape(-1)[cell]
        is_box = (boxes[None, :] == cell[:, None]).any(axis=1)
        solid = is_box | ((ground & WALL_BIT) > 0)
        off = is_box & ((ground & GOAL_BIT) == 0)

        def squares(x: jax.Array, join) -> jax.Array:
            return join(join(x[0], join(x[1:3][:, None], x[3:5][None, :])), x[5:].reshape(2, 2))

        return (squares(solid, jnp.logical_and) & squares(off, jnp.logical_or)).any()

    def legal(self, state: SokobanState) -> jax.Array:
        """All four moves, or with `mask_invalid` those that change something: bool[4]."""
        legal = jnp.ones(4, bool)
        if self.mask_invalid:
            legal = ~jax.vmap(lambda action: self._try(state, action)[3])(jnp.arange(4))
            legal = legal | ~legal.any()  # walled in by boxes: bumping is all that is left
        return legal_or_end(legal, self.done(state))

    def step(self, state: SokobanState, action: jax.Array) -> tuple[SokobanState, Reward]:
        """Walk, push or bump."""
        running = ~self.done(state)
        target, beyond, pushed, blocked = self._try(state, action)
        moved = running & ~blocked
        pushed = moved & pushed
        boxes = jnp.where(pushed & (state.boxes == target), beyond, state.boxes)
        ground = state.ground.reshape(-1)
        landed, left = ground[beyond], ground[target]
        gained = pushed * (((landed & GOAL_BIT) > 0).astype(jnp.int32) - ((left & GOAL_BIT) > 0))
        missing = state.missing - gained
        jam = ((landed & DEAD_BIT) > 0) | self._frozen_square(state, boxes, beyond)
        deadlocked = state.deadlocked | (pushed & jam)
        solved = running & (missing == 0)

        agent = running * jnp.where(blocked, self.invalid_reward, self.step_reward) + self.box_reward * gained
        after = state._replace(
            boxes=boxes,
            position=jnp.where(moved, target, state.position),
            missing=missing,
            deadlocked=deadlocked,
            turn=state.turn + running,
        )
        process = self.deadlock_reward * (deadlocked & ~state.deadlocked)
        if self.shaping_reward:
            process += self.shaping_reward * self._closer(state, after)
        reward = Reward(
            team=jnp.float32(self.solved_reward * solved),
            agent=jnp.float32(agent)[None],
            process=jnp.float32(process)[None],
        )
        return after, reward

    def done(self, state: SokobanState) -> jax.Array:
        """Solved, out of moves, or deadlocked where that ends the episode."""
        over = self.success(state) | (state.turn >= self.max_turns)
        return over | state.deadlocked if self.end_on_deadlock else over

    def success(self, state: SokobanState) -> jax.Array:
        """Every box on a goal."""
        return state.missing == 0

    def lost(self, state: SokobanState) -> jax.Array:
        """A deadlock was seen."""
        return state.deadlocked

    def cells(self, state: SokobanState) -> jax.Array:
        """The codes of Boxoban, 0 wall to 6 player on a goal: int32[C]."""
        return cells(state)

    def surroundings(self, state: SokobanState, action: jax.Array, radius: int) -> jax.Array:
        """Cells at most `radius` away from the player: bool[C]."""
        return near(self.shape, state.position, radius)


def cells(state: SokobanState) -> jax.Array:
    """What stands in each cell, the codes of Boxoban: int32[C]."""
    ground = state.ground.reshape(-1)
    index = jnp.arange(ground.shape[0])
    wall, goal = (ground & WALL_BIT) > 0, (ground & GOAL_BIT) > 0
    box = (state.boxes[:, None] == index[None, :]).any(axis=0)
    codes = jnp.where(wall, WALL, jnp.where(goal, GOAL, FLOOR))
    codes = jnp.where(box, jnp.where(goal, BOX_ON_GOAL, BOX), codes)
    player = jnp.where(goal, PLAYER_ON_GOAL, PLAYER)
    return jnp.where(index == state.position, player, codes).astype(jnp.int32)
