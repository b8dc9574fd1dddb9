"""A curriculum of puzzles: levels get harder as they are solved, and easier again when they are not.

The levels of a pool are put in order of difficulty (`Puzzle.difficulty`: distance, boxes, empty cells). At grade g of n
episodes start from the easiest g/n of them, so that what was learnt stays in practice, and at the last grade from all.
Where a learner stands is a few numbers among the rollout's games: the program draws levels by them and moves them on,
and a checkpoint has them like everything that survives from one rollout to the next. Evaluation knows nothing of it: it
always plays the whole held-out part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from envs.games.game import Game
from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.games import GameRollout, GameRolloutState
from marl_jax.samples import Samples


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ladder:
    """Where a learner stands; every row has the same numbers, so that they lie on a mesh as the games do.

    grade   int32 [B]    from 1 to n
    age     int32 [B]    turns since it changed
    solved  float32 [B]  games solved since the last decision whether to go up or down
    ended   float32 [B]  games that ended since then
    """

    grade: jax.Array
    age: jax.Array
    solved: jax.Array
    ended: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CurriculumState:
    """The rollout's own state, and the ladder by which the next games are drawn."""

    inner: GameRolloutState
    ladder: Ladder


@dataclasses.dataclass(frozen=True)
class LadderRule:
    """When to go up and down; the fields are those of `config.curriculum`, and

    wait    turns after a change before games count: as many as a game may take, where games go on from rollout to
            rollout. Until then those of the grade before are ending, and of the new ones the short, solved ones.

    difficulty_levels  n
    start   the first grade
    up      the share of solved games from which it goes up
    down    the share below which it goes down
    window  games to end before it is decided
    """

    difficulty_levels: int
    start: int
    up: float
    down: float
    window: int
    wait: int = 0

    def begin(self, rows: int) -> Ladder:
        """At the first grade."""
        nothing = jnp.zeros((rows,))
        return Ladder(jnp.full((rows,), self.start, jnp.int32), jnp.zeros((rows,), jnp.int32), nothing, nothing)

    def climb(self, ladder: Ladder, finished: Finished) -> Ladder:
        """Where the learner stands after some games; once it is decided, counting starts again.

        A solved puzzle is one that paid the team. With AT-GRPO a game continues from the best of some candidates, so
        more of them are solved than the policy would solve alone.
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
class Curriculum:
    """A rollout on the levels of the present grade; called as the rollout itself."""

    rollout: GameRollout
    rule: LadderRule

    jitted = True

    def init(self, key: jax.Array, params: dict) -> CurriculumState:
        """Fresh games of the first grade."""
        ladder = self.rule.begin(self.rollout.rows)
        return CurriculumState(self._at(ladder).init(key, params), ladder)

    def __call__(
        self, params: dict, state: CurriculumState, key: jax.Array
    ) -> tuple[Samples, CurriculumState, dict[str, jax.Array]]:
        """Play a rollout on the levels of the present grade, and choose the next grade by its results."""
        samples, inner, finished, metrics = self._at(state.ladder).measured(params, state.inner, key)
        ladder = self.rule.climb(state.ladder, finished)
        metrics = {**metrics, "difficulty": ladder.grade[0] / self.rule.difficulty_levels}
        return samples, CurriculumState(inner, ladder), metrics

    def shardings(self, state: CurriculumState, rows: Callable, like_params: Callable) -> CurriculumState:
        """As the rollout's; every row has the ladder's numbers."""
        return CurriculumState(self.rollout.shardings(state.inner, rows, like_params), rows(state.ladder))

    def after_update(self, state: CurriculumState, params: dict, step) -> CurriculumState:
        """The rollout's."""
        return dataclasses.replace(state, inner=self.rollout.after_update(state.inner, params, step))

    def changes_after(self, step: int) -> bool:
        """The rollout's."""
        return self.rollout.changes_after(step)

    def checkpointed(self, step: int) -> None:
        """The rollout's."""
        self.rollout.checkpointed(step)

    def close(self) -> None:
        """The rollout's."""
        self.rollout.close()

    def _at(self, ladder: Ladder) -> GameRollout:
        game = self.rollout.game
        count = jnp.maximum(ladder.grade[0] * game.n_levels // self.rule.difficulty_levels, 1)
        return dataclasses.replace(self.rollout, game=Easiest(game, count))


@dataclasses.dataclass(frozen=True, eq=False)
class Easiest:
    """A puzzle, but that its episodes start from the `count` easiest levels (int32 [], may be traced)."""

    puzzle: Game
    count: jax.Array

    def reset(self, key: jax.Array) -> Any:
        """The first state of one of them."""
        return self.puzzle.reset_among(key, self.count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.puzzle, name)
