"""Replay of informative levels: PLR, robust PLR and ACCEL, inside the rollout program.

A buffer holds the arrays of levels with the results of recent games on them. New games start on a level of the buffer,
chosen by score and by the time since its last visit (prioritized level replay, Jiang et al., 2021), or on a candidate:
a new level whose score is not known yet. A candidate with results enters the buffer if its score exceeds the lowest.

Robust PLR (Jiang et al., 2021) does not train on candidates: their games only give a score. ACCEL (Parker-Holder et
al., 2022) makes candidates by editing levels that were replayed. Published scores estimate the regret from values. Here
two scores are exact up to sampling: the return of perfect play (`Puzzle.optimal_return`) minus the mean return, and
p(1 - p) for the success rate p, which is high where the answers of a group differ (Rutherford et al., 2024).

Axis letters: N levels (the buffer, then the candidates), B games, T turns.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

SCORES = ("regret", "learnability")
EMPTY = -1
"""Number of a slot without a level."""
MEMORY = 0.9  # decay of old results when a level has new ones, because the policy changes


class EditableGame(Protocol):
    """A game whose episodes start from arrays of levels."""

    @property
    def n_levels(self) -> int:
        """Number of levels."""
        ...

    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> Any:
        """Return the first state of a level."""
        ...

    def optimal_return(self, state: Any) -> jax.Array:
        """Return the rewards of perfect play from a first state."""
        ...

    def edit_level(self, level: dict[str, Any], key: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        """Return a changed level, and whether it can be solved."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LevelBuffer:
    """Levels with the results of recent games, with decay.

    Attributes:
        levels: Arrays of the levels, each [N, …].
        number: int32 [N]. Unique number of each level, EMPTY for a free slot.
        optimal: float32 [N]. Return of perfect play; 0 if the score does not need it.
        games: float32 [N]. Number of games.
        solved: float32 [N]. Number of solved games.
        returns: float32 [N]. Sum of the returns of games.
        visit: int32 [N]. Time of the last result.
        time: int32 []. Number of rollouts so far.
        made: int32 []. Number of levels so far.
    """

    levels: dict[str, jax.Array]
    number: jax.Array
    optimal: jax.Array
    games: jax.Array
    solved: jax.Array
    returns: jax.Array
    visit: jax.Array
    time: jax.Array
    made: jax.Array


@dataclasses.dataclass(frozen=True)
class LevelReplay:
    """The rules of the buffer.

    Attributes:
        capacity: Number of levels of the buffer.
        candidates: Number of new levels at a time.
        replay_frac: Share of the games that start on a level of the buffer.
        score: One of `SCORES`.
        rank_exponent: Exponent of the rank by score, 1/β in the papers; larger values concentrate on the best.
        staleness: Share of the replay by the time since the last visit.
        robust: Whether games on candidates are excluded from the loss.
        edits: Number of edits that make a candidate from a replayed level; 0 draws candidates from the pool.
    """

    capacity: int
    candidates: int
    replay_frac: float = 0.5
    score: str = "learnability"
    rank_exponent: float = 3.0
    staleness: float = 0.05
    robust: bool = False
    edits: int = 0

    def begin(self, game: EditableGame, pool: dict[str, jax.Array], key: jax.Array) -> LevelBuffer:
        """Return an empty buffer with candidates from the pool, arrays [L, …]."""
        n = self.capacity + self.candidates
        zeros, none = jnp.zeros((n,)), jnp.full((n,), EMPTY, jnp.int32)
        levels = {name: jnp.zeros((n, *rows.shape[1:]), rows.dtype) for name, rows in pool.items()}
        zero = jnp.int32(0)
        empty = LevelBuffer(levels, none, zeros, zeros, zeros, zeros, none, zero, zero)
        return self._renew(empty, self._from_pool(pool, key), jnp.ones((self.candidates,), bool), game)

    # ------------------------------------------------------------------------------------------------- choosing levels

    def scores(self, buffer: LevelBuffer) -> jax.Array:
        """Return the score of every level, float32 [N]: -inf without a result."""
        games = jnp.maximum(buffer.games, 1e-6)
        if self.score == "regret":
            value = jnp.maximum(buffer.optimal - buffer.returns / games, 0.0)
        else:
            share = (buffer.solved + 1) / (buffer.games + 2)  # a level with few games may be anything
            value = share * (1 - share)
        return jnp.where((buffer.number != EMPTY) & (buffer.games > 0), value, -jnp.inf)

    def chances(self, buffer: LevelBuffer) -> jax.Array:
        """Return the probability that a new game starts on each level: float32 [N]."""
        held = jnp.arange(len(buffer.number)) < self.capacity
        usable = held & (buffer.games > 0)
        scores = jnp.where(usable, self.scores(buffer), -jnp.inf)
        rank = 1 + jnp.sum(scores[None, :] > scores[:, None], axis=1)  # equal scores share a rank
        by_score = jnp.where(usable, rank.astype(jnp.float32) ** -self.rank_exponent, 0.0)
        by_age = jnp.where(usable, (buffer.time - buffer.visit).astype(jnp.float32), 0.0)
        replay = (1 - self.staleness) * _shares(by_score, usable) + self.staleness * _shares(by_age, usable)
        frac = jnp.where(jnp.any(usable), self.replay_frac, 0.0)
        return frac * replay + (1 - frac) * ~held / self.candidates

    def is_candidate(self, buffer: LevelBuffer, number: jax.Array) -> jax.Array:
        """Return whether levels, by number [...], are candidates: bool [...]."""
        return jnp.any(number[..., None] == buffer.number[self.capacity :], axis=-1)

    # ---------------------------------------------------------------------------------------------------- new results

    def record(
        self, buffer: LevelBuffer, number: jax.Array, ended: jax.Array, solved: jax.Array, returns: jax.Array
    ) -> LevelBuffer:
        """Add the results of games, and advance the time.

        Args:
            buffer: The buffer.
            number: int32 [T, B]. Level of each game, by number. Levels that have left the buffer are ignored.
            ended: bool [T, B]. Whether a game ended.
            solved: bool [T, B].
            returns: float32 [T, B].
        """
        own = (buffer.number[:, None] == number.reshape(1, -1)) & ended.reshape(1, -1)  # [N, T·B]
        count = own.sum(1).astype(jnp.float32)
        fade = jnp.where(count > 0, MEMORY, 1.0)
        time = buffer.time + 1
        return dataclasses.replace(
            buffer,
            games=fade * buffer.games + count,
            solved=fade * buffer.solved + own @ solved.reshape(-1).astype(jnp.float32),
            returns=fade * buffer.returns + own @ jnp.where(ended, returns, 0.0).reshape(-1),
            visit=jnp.where(count > 0, time, buffer.visit),
            time=time,
        )

    def exchange(
        self, buffer: LevelBuffer, game: EditableGame, pool: dict[str, jax.Array], key: jax.Array
    ) -> LevelBuffer:
        """Move candidates with results into the buffer, and replace them with new ones.

        A candidate replaces the level with the lowest score if it has a higher one; free slots are filled first. Copies
        of other levels do not enter, so that one level cannot fill the buffer.
        """
        known = buffer.games[self.capacity :] > 0
        scores = jnp.where(self._is_copy(buffer), -jnp.inf, self.scores(buffer))
        best = jnp.argsort(-scores[self.capacity :])  # candidates without a result come last
        worst = jnp.argsort(scores[: self.capacity])
        pairs = min(self.capacity, self.candidates)
        source, target = self.capacity + best[:pairs], worst[:pairs]
        enters = (scores[source] > scores[target]) & known[best[:pairs]]
        target = jnp.where(enters, target, len(buffer.number))
        rows = jax.tree.map(
            lambda x: x.at[target].set(x[source], mode="drop") if x.ndim else x,
            buffer,
        )
        edit_key, pool_key = jax.random.split(key)
        fresh, valid = self._from_pool(pool, pool_key), jnp.ones((self.candidates,), bool)
        if self.edits:
            edited, valid = self._edited(rows, game, edit_key)
            fresh = jax.tree.map(lambda a, b: jnp.where(_like(valid, a), a, b), edited, fresh)
        return self._renew(rows, fresh, known, game)

    def _is_copy(self, buffer: LevelBuffer) -> jax.Array:
        """Return whether each level equals one in an earlier slot: bool [N]."""
        n = len(buffer.number)
        same = jnp.ones((n, n), bool)
        for rows in buffer.levels.values():
            flat = rows.reshape(n, -1)
            same &= jnp.all(flat[:, None] == flat[None], axis=-1)
        earlier = jnp.tril(jnp.ones((n, n), bool), -1) & (buffer.number != EMPTY)[None]
        return jnp.any(same & earlier, axis=1)

    def _from_pool(self, pool: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
        size = len(next(iter(pool.values())))
        chosen = jax.random.randint(key, (self.candidates,), 0, size)
        return {name: jnp.asarray(rows)[chosen] for name, rows in pool.items()}

    def _edited(
        self, buffer: LevelBuffer, game: EditableGame, key: jax.Array
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """Edit levels of the buffer and return them, and whether each can be solved."""
        choose_key, edit_key = jax.random.split(key)
        chances = self.chances(buffer)[: self.capacity]
        parents = jax.random.categorical(choose_key, jnp.log(chances), shape=(self.candidates,))
        levels = {name: rows[parents] for name, rows in buffer.levels.items()}
        good = jnp.any(chances > 0) & (buffer.number[parents] != EMPTY)
        for k in range(self.edits):
            keys = jax.random.split(jax.random.fold_in(edit_key, k), self.candidates)
            changed, solvable = jax.vmap(game.edit_level)(levels, keys)
            # An edit that makes a level unsolvable is left out; the others of the same level remain.
            levels = jax.tree.map(lambda new, old, ok=solvable: jnp.where(_like(ok, new), new, old), changed, levels)
        return levels, jnp.broadcast_to(good, (self.candidates,))

    def _renew(
        self, buffer: LevelBuffer, fresh: dict[str, jax.Array], which: jax.Array, game: EditableGame
    ) -> LevelBuffer:
        """Put new levels into the slots of candidates, where `which` (bool [candidates])."""
        slots = jnp.where(which, self.capacity + jnp.arange(self.candidates), len(buffer.number))
        numbers = buffer.made + jnp.arange(self.candidates)
        optimal = jnp.zeros((self.candidates,))
        if self.score == "regret":
            optimal = jax.vmap(lambda level: game.optimal_return(game.reset_from_level(level)))(fresh)

        def put(rows, new):
            return rows.at[slots].set(new, mode="drop")

        return dataclasses.replace(
            buffer,
            levels={name: put(rows, fresh[name].astype(rows.dtype)) for name, rows in buffer.levels.items()},
            number=put(buffer.number, numbers),
            optimal=put(buffer.optimal, optimal),
            games=put(buffer.games, 0.0),
            solved=put(buffer.solved, 0.0),
            returns=put(buffer.returns, 0.0),
            visit=put(buffer.visit, buffer.time),
            made=buffer.made + self.candidates,
        )


def _shares(weights: jax.Array, usable: jax.Array) -> jax.Array:
    """Divide weights [N] by their sum; if all are 0, usable levels have equal shares."""
    weights = jnp.where(jnp.sum(weights) > 0, weights, usable.astype(jnp.float32))
    return weights / jnp.maximum(jnp.sum(weights), 1e-9)


def _like(mask: jax.Array, rows: jax.Array) -> jax.Array:
    """Reshape a mask [n] so that it broadcasts to rows [n, …]."""
    return mask.reshape(-1, *[1] * (rows.ndim - 1))
