"""What the one-player puzzles share: levels from a pool, success, and the hooks that text, drawings and roles use.

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

from envs.games.game import Game, State, check_choice, check_range
from envs.games.pools import PARTS, Levels, Pool

LEVEL_PARAMS = frozenset({"pool", "part", "seed", "n_train", "n_test", "budget", "difficulty_levels"})
"""The parameters of every puzzle that choose its levels, or how long one may take."""


@dataclasses.dataclass(frozen=True)
class Puzzle(Game):
    """A one-player game that starts from a level of a pool.

    pool: a Pool, or the path of a pool file; left out, one is generated from the game's own parameters
    part: "train" or "test"
    seed, n_train, n_test: of a generated pool
    budget: turns before the episode ends without success; left out, the game chooses
    difficulty_levels: of a generated pool; with more than one, the train part also has easier levels, in this many
        steps up to the game's own parameters, each with an equal share (a curriculum climbs them); the test part has
        the hardest only
    """

    symbols: ClassVar[tuple[str, ...]]
    """One character for every code that `cells` can hold."""

    process_rewards: ClassVar[tuple[str, ...]]
    """The parameters that say what is paid at the process level."""

    success_reward: ClassVar[str]
    """The parameter that says what solving the puzzle pays the team."""

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
            raise ValueError(f"{self.name}: pool holds levels for {pool.game!r}, expected {self.name!r}")
        object.__setattr__(self, "pool", pool)
        pool.part(self.part)
        if self.budget is not None:
            check_range(self.name, "budget", self.budget, 1, 10_000)

    @classmethod
    def reward_levels_with(cls, params: Mapping[str, Any]) -> tuple[str, ...]:
        """The process level only where a parameter pays there, or a planner is paid for its proposals."""
        paying = [params.get(name, getattr(cls, name)) for name in cls.process_rewards]
        if params.get("roles") == "two":
            paying.append(params.get("planner_weight", 1))
        return cls.reward_levels if any(paying) else tuple(level for level in cls.reward_levels if level != "process")

    @abc.abstractmethod
    def generate_pool(self) -> Pool:
        """The pool that the parameters describe; the same parameters give the same pool."""

    @abc.abstractmethod
    def load_pool(self, path: str | os.PathLike) -> Pool:
        """The pool in a file."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Height and width of the board."""

    @abc.abstractmethod
    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> State:
        """The first state of a level given by its arrays; `index` is remembered as `state.level`."""

    @abc.abstractmethod
    def success(self, state: State) -> jax.Array:
        """Whether the puzzle is solved: bool[]."""

    @abc.abstractmethod
    def cells(self, state: State) -> jax.Array:
        """What stands in each cell, as an index into `symbols`: int32[C]."""

    @abc.abstractmethod
    def surroundings(self, state: State, action: jax.Array, radius: int) -> jax.Array:
        """The cells someone on the spot can see, who has been told `action` (-1: nothing): bool[C]."""

    @abc.abstractmethod
    def difficulty(self) -> np.ndarray:
        """How hard each level of the part is, to sort levels by: float[N]."""

    @property
    def levels(self) -> Levels:
        """The part of the pool that episodes are drawn from."""
        assert isinstance(self.pool, Pool)  # `__post_init__` loads or generates it
        return self.pool.part(self.part)

    @property
    def n_levels(self) -> int:
        """How many levels episodes are drawn from."""
        return len(self.levels)

    def reset(self, key: jax.Array) -> State:
        """The first state of a uniformly drawn level."""
        return self.reset_level(jax.random.randint(key, (), 0, self.n_levels))

    def reset_among(self, key: jax.Array, count: jax.Array | int) -> State:
        """The first state of a level drawn uniformly from the `count` easiest (int[], may be traced)."""
        return self.reset_level(jnp.asarray(self._easiest_first)[jax.random.randint(key, (), 0, count)])

    def reset_level(self, index: jax.Array | int) -> State:
        """The first state of level `index` (int[], may be traced) of the part; evaluations walk them in order."""
        return jax.tree.map(lambda rows: jnp.asarray(rows)[index], self._first_states)

    @functools.cached_property
    def _first_states(self) -> State:
        """The first state of every level, made once, so that a reset is a lookup: leaves numpy [N, ...]."""
        with jax.ensure_compile_time_eval():
            make = jax.jit(jax.vmap(self.reset_from_level))
            return jax.device_get(make(self.levels.arrays, np.arange(self.n_levels)))

    @functools.cached_property
    def _easiest_first(self) -> np.ndarray:
        """The levels' numbers by difficulty, equal ones in the order of the pool: int32[N]."""
        return np.argsort(self.difficulty(), kind="stable").astype(np.int32)

    def held_out(self) -> "Puzzle":
        """The game on the test part of its pool."""
        return dataclasses.replace(self, part="test")

    def player(self, state: State) -> jax.Array:
        """Always seat 0: int32[]."""
        return jnp.int32(0)


def near(shape: tuple[int, int], position: jax.Array, radius: int) -> jax.Array:
    """Cells at most `radius` rows and columns away from `position`: bool[C]."""
    height, width = shape
    rows = jnp.abs(jnp.arange(height) - position // width) <= radius
    columns = jnp.abs(jnp.arange(width) - position % width) <= radius
    return (rows[:, None] & columns[None, :]).reshape(-1)
