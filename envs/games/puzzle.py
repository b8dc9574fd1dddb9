"""Base class of the one-player puzzles, which draw levels from a pool.

Axis letters: C cells of the board, row by row.
"""

import abc
import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_context

from envs.games.game import Game, State, check_choice, check_range
from envs.games.pools import PARTS, Levels, Pool

LEVEL_PARAMS = frozenset({"pool", "part", "seed", "n_train", "n_test", "budget", "difficulty_levels"})
"""Parameters of every puzzle that choose its levels or limit their length."""


@dataclasses.dataclass(frozen=True)
class Puzzle(Game):
    """A one-player game that starts from a level of a pool.

    Attributes:
        pool: A pool or the path of a pool file; by default one is generated from the parameters.
        part: Split to play, "train" or "test".
        seed: Random seed of a generated pool.
        n_train: Number of train levels of a generated pool.
        n_test: Number of test levels of a generated pool.
        budget: Maximum number of turns; each game has a default.
        difficulty_levels: Number of difficulty levels of a generated pool. With more than one, the train split also has
            easier levels, in equal shares and in this many steps up to the game's parameters, for a curriculum. The
            test split has the hardest levels only.
    """

    symbols: ClassVar[tuple[str, ...]]
    """One character for every code in `cells`."""

    process_rewards: ClassVar[tuple[str, ...]]
    """Names of the parameters that give process rewards."""

    success_reward: ClassVar[str]
    """Name of the parameter with the team reward for solving the puzzle."""

    pool: Pool | str | os.PathLike | None = None
    part: str = "train"
    seed: int = 0
    n_train: int = 512
    n_test: int = 512
    budget: int | None = None
    difficulty_levels: int = 1

    n_players: ClassVar[int] = 1
    solvable: ClassVar[bool] = True
    has_levels: ClassVar[bool] = True

    def __post_init__(self):
        check_choice(self.name, "part", self.part, PARTS)
        check_range(self.name, "difficulty_levels", self.difficulty_levels, 1, 16)
        pool = self.pool
        if pool is None:
            pool = self.generate_pool()
        elif not isinstance(pool, Pool):
            pool = self.load_pool(pool)
        if pool.game != self.name:
            raise ValueError(f"{self.name}: pool has levels of {pool.game!r}, but must have levels of {self.name!r}")
        object.__setattr__(self, "pool", pool)
        pool.part(self.part)
        if self.budget is not None:
            check_range(self.name, "budget", self.budget, 1, 10_000)

    @classmethod
    def reward_levels_with(cls, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the reward levels, without `process` if no parameter rewards it.

        A planner that proposes moves gets process rewards for them unless `planner_weight` is 0.
        """
        rewards = [params.get(name, getattr(cls, name)) for name in cls.process_rewards]
        if params.get("roles") == "two" and params.get("proposes", True):
            rewards.append(params.get("planner_weight", 1))
        return cls.reward_levels if any(rewards) else tuple(level for level in cls.reward_levels if level != "process")

    @abc.abstractmethod
    def generate_pool(self) -> Pool:
        """Generate the pool described by the parameters, deterministically."""

    @abc.abstractmethod
    def load_pool(self, path: str | os.PathLike) -> Pool:
        """Load the pool from a file."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Height and width of the board."""

    @abc.abstractmethod
    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> State:
        """Return the first state of a level.

        Args:
            level: Arrays of the level.
            index: Stored as `state.level`.
        """

    @abc.abstractmethod
    def success(self, state: State) -> jax.Array:
        """Return whether the puzzle is solved: bool []."""

    @abc.abstractmethod
    def cells(self, state: State) -> jax.Array:
        """Return the content of each cell as an index into `symbols`: int32 [C]."""

    @abc.abstractmethod
    def surroundings(self, state: State, action: jax.Array, radius: int) -> jax.Array:
        """Return the cells that the executor of `action` can see: bool [C].

        Args:
            state: Current state.
            action: int []. The proposed action, or -1 if there is none.
            radius: Distance that the executor can see.
        """

    @abc.abstractmethod
    def difficulty(self) -> np.ndarray:
        """Return the difficulty of each level of the split, for sorting: float [N]."""

    def optimal_return(self, state: State) -> jax.Array:
        """Return the team and agent rewards of perfect play from a first state: float32 []."""
        raise NotImplementedError(f"{self.name} does not compute the return of perfect play")

    def edit_level(self, level: dict[str, Any], key: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        """Return a level with one random change, and whether it can be solved (bool [])."""
        raise NotImplementedError(f"{self.name} levels cannot be edited")

    @property
    def levels(self) -> Levels:
        """The split of the pool from which episodes are drawn."""
        assert isinstance(self.pool, Pool)  # `__post_init__` loads or generates it
        return self.pool.part(self.part)

    @property
    def n_levels(self) -> int:
        """Number of levels from which episodes are drawn."""
        return len(self.levels)

    def reset(self, key: jax.Array) -> State:
        """Return the first state of a uniformly sampled level."""
        return self.reset_level(jax.random.randint(key, (), 0, self.n_levels))

    def reset_among(self, key: jax.Array, count: jax.Array | int) -> State:
        """Return the first state of a level sampled from the `count` easiest (int [])."""
        return self.reset_level(jnp.asarray(self._easiest_first)[jax.random.randint(key, (), 0, count)])

    def reset_level(self, index: jax.Array | int) -> State:
        """Return the first state of level `index` (int []) of the split."""
        return jax.tree.map(lambda rows: jnp.asarray(rows)[index], self._first_states)

    @functools.cached_property
    def _first_states(self) -> State:
        """First state of every level: NumPy arrays [N, ...].

        They are computed once, so that a reset is a lookup.
        """
        # Not `ensure_compile_time_eval`: it also folds constants while `make` is lowered, which fails if programs are
        # kept in a compilation cache.
        with eval_context():
            make = jax.jit(jax.vmap(self.reset_from_level))
            return jax.device_get(make(self.levels.arrays, np.arange(self.n_levels)))

    @functools.cached_property
    def _easiest_first(self) -> np.ndarray:
        """Levels sorted by difficulty, with ties in pool order: int32 [N]."""
        return np.argsort(self.difficulty(), kind="stable").astype(np.int32)

    def held_out(self) -> "Puzzle":
        """Return the game on the test split of its pool."""
        return dataclasses.replace(self, part="test")

    def player(self, state: State) -> jax.Array:
        """Return seat 0: int32 []."""
        return jnp.int32(0)


def upper_rows(height: int) -> int:
    """Return the number of rows in the upper half, with the middle row."""
    return (height + 1) // 2


def near(shape: tuple[int, int], position: jax.Array, radius: int) -> jax.Array:
    """Return the cells within `radius` rows and columns of `position`: bool [C]."""
    height, width = shape
    rows = jnp.abs(jnp.arange(height) - position // width) <= radius
    columns = jnp.abs(jnp.arange(width) - position % width) <= radius
    return (rows[:, None] & columns[None, :]).reshape(-1)
