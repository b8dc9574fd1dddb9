"""Rollouts whose games start on replayed levels or on candidates (`config.level_replay`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.rollouts.base import WrappedRollout
from marl_jax.rollouts.games import GameRollout, GameRolloutState
from marl_jax.rollouts.level_replay import EditableGame, LevelBuffer, LevelReplay
from marl_jax.samples import Samples


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayedState:
    """State of the wrapped rollout and the buffer of levels."""

    inner: GameRolloutState
    buffer: LevelBuffer


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayedLevels(WrappedRollout):
    """A rollout on the levels of a buffer.

    Attributes:
        rollout: The wrapped rollout.
        rule: The rules of the buffer.
        pool: Arrays of the levels that candidates are drawn from, each [L, …].
    """

    rollout: GameRollout
    rule: LevelReplay
    pool: Mapping[str, np.ndarray]

    jitted: ClassVar[bool] = True

    def init(self, key: jax.Array, params: dict) -> ReplayedState:
        """Start games on candidates."""
        game_key, level_key = jax.random.split(key)
        buffer = self.rule.begin(self.puzzle, self._pool, level_key)
        return ReplayedState(self._on(buffer).init(game_key, params), buffer)

    def __call__(
        self, params: dict, state: ReplayedState, key: jax.Array
    ) -> tuple[Samples, ReplayedState, dict[str, jax.Array]]:
        """Play a rollout, record its results and exchange candidates."""
        play_key, swap_key = jax.random.split(key)
        samples, inner, finished, metrics = self._on(state.buffer).measured(params, state.inner, play_key)
        assert finished.level is not None
        if self.rule.robust:
            samples = self._without_candidates(samples, state.buffer, finished.level)
        total = finished.total
        returns, solved = total.team + total.agent[..., 0], total.team > 0
        buffer = self.rule.record(state.buffer, finished.level, finished.ended, solved, returns)
        buffer = self.rule.exchange(buffer, self.puzzle, self._pool, swap_key)
        held = buffer.number[: self.rule.capacity] >= 0
        share = jnp.where(held, buffer.solved[: self.rule.capacity] / jnp.maximum(buffer.games[: len(held)], 1e-6), 0)
        replayed = jnp.mean(~self.rule.is_candidate(state.buffer, finished.level))
        metrics |= {
            "levels/held": jnp.sum(held),
            "levels/replayed": replayed,
            "levels/success": jnp.sum(share) / jnp.maximum(jnp.sum(held), 1),
        }
        return samples, ReplayedState(inner, buffer), metrics

    def _without_candidates(self, samples: Samples, buffer: LevelBuffer, level: jax.Array) -> Samples:
        """Exclude completions in games on candidates from the loss."""
        known = ~self.rule.is_candidate(buffer, level)
        weights = jnp.pad(known.astype(jnp.float32), ((0, samples.lookahead), (0, 0)))
        return samples.replace(loss_weights=samples.loss_weights * samples.from_time(weights))

    def shardings(self, state: ReplayedState, rows: Callable, like_params: Callable) -> ReplayedState:
        """Return the shardings of a state; the buffer is replicated."""
        return ReplayedState(self.rollout.shardings(state.inner, rows, like_params), like_params(state.buffer))

    @property
    def puzzle(self) -> EditableGame:
        """The puzzle of the wrapped rollout."""
        game: Any = self.rollout.game
        return game

    @property
    def _pool(self) -> dict[str, jax.Array]:
        return {name: jnp.asarray(rows) for name, rows in self.pool.items()}

    def _on(self, buffer: LevelBuffer) -> GameRollout:
        game: Any = OnBuffer(self.puzzle, self.rule, buffer)
        return dataclasses.replace(self.rollout, game=game)


@dataclasses.dataclass(frozen=True, eq=False)
class OnBuffer:
    """A puzzle whose episodes start on levels of a buffer.

    `state.level` is the number of the level.
    """

    puzzle: EditableGame
    rule: LevelReplay
    buffer: LevelBuffer

    def reset(self, key: jax.Array) -> Any:
        """Return the first state of a level that the rules choose."""
        slot = jax.random.categorical(key, jnp.log(self.rule.chances(self.buffer)))
        level = {name: rows[slot] for name, rows in self.buffer.levels.items()}
        return self.puzzle.reset_from_level(level, self.buffer.number[slot])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.puzzle, name)
