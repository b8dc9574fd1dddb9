"""Sokoban: push every box onto a goal.

Axis letters: A = 4 actions, C cells of the board, row by row, K boxes.

The player pushes one box at a time and never pulls. Boxes are stored as a short list of cells, so that a step updates K
numbers and never rewrites the board. Blocked moves are legal (unless `mask_invalid`) and change only the turn.

Rewards: team for solving the level; agent for each move, and for boxes pushed onto goals and off them; process, a
penalty when the level becomes unsolvable in a way that is easy to detect (a box on a cell from which it cannot reach a
goal, or four walls and boxes in a square), and with `shaping_reward` the progress along the shortest solution.
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
from envs.games.sokoban import edits
from envs.games.sokoban import levels as levels_
from envs.games.sokoban.solver import BOX, BOX_ON_GOAL, FLOOR, GOAL, PLAYER, PLAYER_ON_GOAL, WALL

WALL_BIT, GOAL_BIT, DEAD_BIT = 1, 2, 4
NOWHERE = -1
"""Cell of a box that this level does not have; it counts as on a goal."""


class SokobanState(NamedTuple):
    """State of a level.

    Attributes:
        ground: uint8 [h, w]. WALL_BIT, GOAL_BIT and DEAD_BIT of every cell; constant.
        boxes: int32 [K]. Cells of the boxes.
        position: int32 []. Cell of the player.
        missing: int32 []. Number of boxes that are not on a goal.
        deadlocked: bool []. Whether a simple deadlock was detected: the level can no longer be solved.
        turn: int32 []. Number of moves made.
        level: int32 []. Index in the split, -1 for a level from elsewhere.
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
    """The game of Sokoban; see `Puzzle` for the pool.

    Attributes:
        size: Side of generated levels (`levels.generate`), 6 by default. With a pool, it follows from the pool.
        boxes: Number of boxes of generated levels.
        walls: Share of walls in generated levels.
        mask_invalid: Whether moves that change nothing are illegal.
        end_on_deadlock: Whether a detected deadlock ends the episode.
        step_reward: Agent reward of a move.
        invalid_reward: Agent reward of a blocked move.
        box_reward: Agent reward for pushing a box onto a goal; pushing it off costs the same.
        solved_reward: Team reward for solving the level.
        deadlock_reward: Process reward for a deadlock.
        shaping_reward: Total process reward along the shortest solution, in equal parts per move and subtracted by
            moves that lead away. In unsolvable positions the remaining distance counts as the budget. Requires levels
            with one box.
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
            raise ValueError(f"sokoban: size is {self.size}, but the pool has {height}x{width} levels")
        object.__setattr__(self, "size", max(height, width))
        longest = int(self.levels["moves"].max())
        if longest > self.max_turns:
            raise ValueError(f"sokoban: budget is {self.max_turns}, but a level needs {longest} moves")
        if self.shaping_reward and self.max_boxes > 1:
            raise ValueError(
                f"sokoban: shaping_reward requires levels with one box, but a level has {self.max_boxes} boxes"
            )

    def generate_pool(self) -> Pool:
        """Generate a pool from size, boxes, walls, seed, n_train and n_test."""
        size = 6 if self.size is None else self.size
        return levels_.generate(
            size, self.boxes, self.walls, self.seed, self.n_train, self.n_test, difficulty_levels=self.difficulty_levels
        )

    def load_pool(self, path: str | os.PathLike) -> Pool:
        """Load the pool from a file."""
        return levels_.load(path)

    def difficulty(self) -> np.ndarray:
        """Return boxes, then moves: float [N]."""
        return levels_.difficulty(self.levels.arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the board."""
        return self.levels["cells"].shape[1:]

    @property
    def max_turns(self) -> int:
        """Maximum number of moves: the budget, by default twice the inner cells."""
        height, width = self.shape
        return 2 * (height - 2) * (width - 2) if self.budget is None else self.budget

    @functools.cached_property
    def max_boxes(self) -> int:
        """K: maximum number of boxes in a level."""
        return int(levels_.boxes_of(self.levels["cells"]).sum((1, 2)).max())

    @functools.cached_property
    def _moves_left(self) -> np.ndarray:
        """Moves to a solution, at most the budget: int16 [N, C, C].

        The axes are level, cell of the box and cell of the player.
        """
        return np.minimum(levels_.moves_left(self.levels["cells"]), self.max_turns).astype(np.int16)

    @functools.cached_property
    def _shortest(self) -> np.ndarray:
        """Length of the shortest solution of every level: int16 [N]."""
        cells = self.levels["cells"].reshape(self.n_levels, -1)
        box, player = levels_.boxes_of(cells).argmax(1), levels_.player_of(cells).argmax(1)
        return self._moves_left[np.arange(self.n_levels), box, player]

    def _closer(self, before: SokobanState, after: SokobanState) -> jax.Array:
        """Return the share of the shortest solution between two positions: float32 [].

        It is 0 for a level from elsewhere.
        """
        table, level = jnp.asarray(self._moves_left), before.level
        left, left_after = (table[level, state.boxes[0], state.position] for state in (before, after))
        return jnp.where(level < 0, 0, left - left_after) / jnp.asarray(self._shortest, jnp.float32)[level]

    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> SokobanState:
        """Return the first state of a level {"cells": uint8 [h, w], "dead": bool [h, w]}."""
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

    def optimal_return(self, state: SokobanState) -> jax.Array:
        """Return the team and agent rewards of perfect play from a first state: float32 []."""
        self._check_one_box()
        moves = edits.moves_left(cells(state).reshape(self.shape))[state.boxes[0], state.position]
        solved = self.solved_reward + self.box_reward + self.step_reward * moves
        solvable = (moves > 0) & (moves <= self.max_turns)
        return jnp.where(solvable, solved, self.step_reward * self.max_turns).astype(jnp.float32)

    def edit_level(self, level: dict[str, Any], key: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        """Return a level with one random change, and whether it can be solved (bool [])."""
        self._check_one_box()
        return edits.edit(level, key, self.max_turns // 2)

    def _check_one_box(self) -> None:
        if self.max_boxes > 1:
            raise ValueError(f"sokoban: a level has {self.max_boxes} boxes, but only levels with one can be edited")

    def _step_of(self, action: jax.Array) -> jax.Array:
        """Return the offset of a move in the flat board: int32 []."""
        along = jnp.where(action < 2, self.shape[1], 1)
        return jnp.where(action % 2 == 0, -along, along)

    def _try(self, state: SokobanState, action: jax.Array) -> tuple[jax.Array, ...]:
        """Return the effect of a move.

        Returns:
            The next two cells, whether a box is pushed, and whether the move is blocked.
        """
        step = self._step_of(action)
        ground = state.ground.reshape(-1)
        target, beyond = state.position + step, jnp.clip(state.position + 2 * step, 0, ground.shape[0] - 1)
        pushed = (state.boxes == target).any()
        jammed = pushed & (((ground[beyond] & WALL_BIT) > 0) | (state.boxes == beyond).any())
        return target, beyond, pushed, jammed | ((ground[target] & WALL_BIT) > 0)

    def _frozen_square(self, state: SokobanState, boxes: jax.Array, box: jax.Array) -> jax.Array:
        """Return whether the cell `box` is part of a frozen 2x2 square: bool [].

        The square consists of walls and boxes, with a box that is not on a goal.
        """
        width = self.shape[1]
        down, right = np.array([-width, width]), np.array([-1, 1])
        # corner [2, 2]: the square of corner (i, j) is box, box + down[i], box + right[j] and the corner itself.
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
        """Return all four moves, or with `mask_invalid` those not blocked: bool [4]."""
        legal = jnp.ones(4, bool)
        if self.mask_invalid:
            legal = ~jax.vmap(lambda action: self._try(state, action)[3])(jnp.arange(4))
            legal = legal | ~legal.any()  # enclosed by boxes: only blocked moves are left
        return legal_or_end(legal, self.done(state))

    def step(self, state: SokobanState, action: jax.Array) -> tuple[SokobanState, Reward]:
        """Walk or push, unless the move is blocked."""
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
        """Return whether the level is solved, out of moves, or ended by a deadlock."""
        over = self.success(state) | (state.turn >= self.max_turns)
        return over | state.deadlocked if self.end_on_deadlock else over

    def success(self, state: SokobanState) -> jax.Array:
        """Return whether every box is on a goal."""
        return state.missing == 0

    def lost(self, state: SokobanState) -> jax.Array:
        """Return whether a deadlock was detected."""
        return state.deadlocked

    def cells(self, state: SokobanState) -> jax.Array:
        """Return the Boxoban codes, 0 wall to 6 player on a goal: int32 [C]."""
        return cells(state)

    def surroundings(self, state: SokobanState, action: jax.Array, radius: int) -> jax.Array:
        """Return the cells within `radius` of the player: bool [C]."""
        return near(self.shape, state.position, radius)


def cells(state: SokobanState) -> jax.Array:
    """Return the Boxoban code of each cell: int32 [C]."""
    ground = state.ground.reshape(-1)
    index = jnp.arange(ground.shape[0])
    wall, goal = (ground & WALL_BIT) > 0, (ground & GOAL_BIT) > 0
    box = (state.boxes[:, None] == index[None, :]).any(axis=0)
    codes = jnp.where(wall, WALL, jnp.where(goal, GOAL, FLOOR))
    codes = jnp.where(box, jnp.where(goal, BOX_ON_GOAL, BOX), codes)
    player = jnp.where(goal, PLAYER_ON_GOAL, PLAYER)
    return jnp.where(index == state.position, player, codes).astype(jnp.int32)
