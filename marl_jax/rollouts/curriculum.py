"""A curriculum of puzzles that adapts the difficulty to the success of the learner.

The levels of a pool are sorted by difficulty (`Puzzle.difficulty`: distance, boxes, empty cells). At grade g of n,
episodes start from the easiest g/n of the levels, so that easy ones remain in training; the last grade uses all levels.
The state of the curriculum is a few numbers next to the games of the rollout. The program draws levels by them and
updates them, and checkpoints contain them. Evaluation does not use the curriculum: it always plays the full held-out
split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

import jax
import jax.numpy as jnp

from marl_jax.rollouts.base import WrappedRollout
from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.games import GameRollout, GameRolloutState
from marl_jax.samples import Samples


class LeveledGame(Protocol):
    """A game whose episodes start from the levels of a pool, sorted by difficulty."""

    @property
    def n_levels(self) -> int:
        """Number of levels."""
        ...

    def reset_among(self, key: jax.Array, count: jax.Array | int) -> Any:
        """Return the first state of one of the `count` easiest levels."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ladder:
    """State of the curriculum.

    Every row has the same numbers, so that they are sharded like the games.

    Attributes:
        grade: int32 [B]. Current grade, from 1 to n.
        age: int32 [B]. Number of turns since the grade changed.
        solved: float32 [B]. Number of games solved since the last decision.
        ended: float32 [B]. Number of games that ended since the last decision.
    """

    grade: jax.Array
    age: jax.Array
    solved: jax.Array
    ended: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CurriculumState:
    """State of the wrapped rollout and of the curriculum."""

    inner: GameRolloutState
    ladder: Ladder


@dataclasses.dataclass(frozen=True)
class LadderRule:
    """The rule by which the grade goes up and down, with the fields of `config.curriculum`.

    Attributes:
        difficulty_levels: Number of grades, n.
        start: First grade.
        up: Share of solved games from which the grade goes up.
        down: Share of solved games below which the grade goes down.
        window: Number of games that must end before each decision.
        wait: Number of turns after a change during which games do not count. If games continue from rollout to rollout,
            it is the maximum length of a game: until then, games of the previous grade are still ending, and the new
            games that end are the short, solved ones.
    """

    difficulty_levels: int
    start: int
    up: float
    down: float
    window: int
    wait: int = 0

    def begin(self, rows: int) -> Ladder:
        """Return the state at the first grade."""
        nothing = jnp.zeros((rows,))
        return Ladder(jnp.full((rows,), self.start, jnp.int32), jnp.zeros((rows,), jnp.int32), nothing, nothing)

    def climb(self, ladder: Ladder, finished: Finished) -> Ladder:
        """Return the state after some games; counting starts again after each decision.

        A puzzle is solved if it rewards the team. With AT-GRPO a game continues from the best of several candidates, so
        more
        games are solved than the policy would solve alone.
        """
        turns = finished.ended.shape[0]
        counts = finished.ended & (ladder.age[0] + jnp.arange(turns) >= self.wait)[:, None]
        solved = ladder.solved + jnp.sum(counts & (finished.total.team > 0))
        ended = ladder.ended + jnp.sum(counts)
        share = solved / jnp.maximum(ended, 1)
        step = (share >= self.up).astype(jnp.int32) - (share < self.down).astype(jnp.int32)
        decided = ended >= self.window
        grade = jnp.clip(ladder.grade + jnp.where(decided, step, 0), 1, self.difficulty_levels)
        return Ladder(
            grade=grade,
            age=jnp.where(grade == ladder.grade, ladder.age + turns, 0),
            solved=jnp.where(decided, 0.0, solved),
            ended=jnp.where(decided, 0.0, ended),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Curriculum(WrappedRollout):
    """A rollout on the levels of the current grade."""

    rollout: GameRollout
    rule: LadderRule

    jitted: ClassVar[bool] = True

    def init(self, key: jax.Array, params: dict) -> CurriculumState:
        """Start games of the first grade."""
        ladder = self.rule.begin(self.rollout.rows)
        return CurriculumState(self._at(ladder).init(key, params), ladder)

    def __call__(
        self, params: dict, state: CurriculumState, key: jax.Array
    ) -> tuple[Samples, CurriculumState, dict[str, jax.Array]]:
        """Play a rollout at the current grade and choose the next grade by its results."""
        samples, inner, finished, metrics = self._at(state.ladder).measured(params, state.inner, key)
        ladder = self.rule.climb(state.ladder, finished)
        metrics = {**metrics, "difficulty": ladder.grade[0] / self.rule.difficulty_levels}
        return samples, CurriculumState(inner, ladder), metrics

    def shardings(self, state: CurriculumState, rows: Callable, like_params: Callable) -> CurriculumState:
        """Return the shardings of a state; the curriculum is sharded by row."""
        return CurriculumState(self.rollout.shardings(state.inner, rows, like_params), rows(state.ladder))

    def _at(self, ladder: Ladder) -> GameRollout:
        game = cast(LeveledGame, self.rollout.game)
        count = jnp.maximum(ladder.grade[0] * game.n_levels // self.rule.difficulty_levels, 1)
        return dataclasses.replace(self.rollout, game=Easiest(game, count))


@dataclasses.dataclass(frozen=True, eq=False)
class Easiest:
    """A puzzle whose episodes start from the `count` easiest levels (int32 [], may be traced)."""

    puzzle: LeveledGame
    count: jax.Array

    def reset(self, key: jax.Array) -> Any:
        """Return the first state of one of these levels."""
        return self.puzzle.reset_among(key, self.count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.puzzle, name)
