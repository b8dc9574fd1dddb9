"""Opponents of the learner: itself, historical opponents and bots.

The rows of a rollout are divided into sections by opponent. Historical opponents are snapshots of the parameters,
chosen by prioritized fictitious self-play: the more often an opponent wins, the more often it is played (Vinyals et
al., 2019: weight (1 − p)² for the learner's win rate p). In a population, the policies of other runs take their place.
The pool has a fixed size, so that it stays on the device, is an input of the rollout program and is saved in
checkpoints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Bot
from marl_jax.agents.team import Team
from marl_jax.rollouts.conversations.turns import Finished

MEMORY = 0.95  # decay of old results when new ones are recorded, because the learner changes
FLOOR = 0.05  # minimum weight, so that opponents that always lose are still played sometimes


@dataclasses.dataclass(frozen=True)
class Sections:
    """Sections of the rows by opponent, with static sizes.

    Attributes:
        own: Number of rows in which the learner has all seats.
        historical: Number of rows with a historical opponent.
        bots: Each bot with its number of rows.
    """

    own: int
    historical: int = 0
    bots: tuple[tuple[Bot, int], ...] = ()

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return self.own + self.historical + sum(n for _, n in self.bots)

    def slices(self) -> list[tuple[Bot | None, slice]]:
        """Return the rows of every opponent: the historical one (None), then the bots."""
        sections, start = [], self.own
        for who, n in ((None, self.historical), *self.bots):
            if n:
                sections.append((who, slice(start, start + n)))
            start += n
        return sections


def make_sections(rows: int, self_play_frac: float, bots: Sequence[Bot], bot_frac: float) -> Sections:
    """Divide the rows into sections.

    Args:
        rows: Number of rows.
        self_play_frac: Share of the rows for self-play.
        bots: Scripted opponents.
        bot_frac: Share of the rows for the bots, in equal parts. The rest is for historical opponents.
    """
    each = round(rows * bot_frac / len(bots)) if bots else 0
    own = min(round(rows * self_play_frac), rows - each * len(bots))
    historical = rows - own - each * len(bots)
    if historical == 1 and own:
        own, historical = own + 1, 0  # a single row is a rounding error
    return Sections(own, historical, tuple((bot, each) for bot in bots if each))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OpponentPool:
    """Up to M historical opponents; a new one replaces the oldest.

    Attributes:
        snapshots: Weights of the opponents, arrays [M, …].
        step: int32 [M]. Step at which each snapshot was taken; -1 for an empty slot.
        points: float32 [M]. Points of the learner against each opponent, with decay.
        games: float32 [M]. Number of games against each opponent, with decay.
        share: float32 [M]. Factor of the probability of each opponent.
    """

    snapshots: dict
    step: jax.Array
    points: jax.Array
    games: jax.Array
    share: jax.Array


@dataclasses.dataclass(frozen=True)
class Opponents:
    """The sections of the rows and the rules of the pool of historical opponents.

    Attributes:
        sections: Sections of the rows.
        pool_size: Size of the pool, M; 0 for no pool.
        snapshot_every: Number of steps between two snapshots.
        prioritized: Whether opponents are chosen by win rate; otherwise by their shares only.
        fixed: Whether the pool has the policies of other runs, and takes no snapshots.
        sides: Side of each seat (`Game.sides`). The learner has the seats of one side, the opponent all others.
    """

    sections: Sections
    pool_size: int = 0
    snapshot_every: int = 1
    prioritized: bool = True
    fixed: bool = False
    sides: tuple[int, ...] = (0, 1)

    def new_pool(self, team: Team, params: dict) -> OpponentPool | None:
        """Return a pool that contains the current parameters, at step 0."""
        if not self.pool_size:
            return None
        return new_pool(team.snapshot(params), self.pool_size, team.backbones[0].policy.dtype)

    def snapshot_due(self, step: int) -> bool:
        """Return whether a snapshot is taken after this step."""
        return bool(self.pool_size) and not self.fixed and step % self.snapshot_every == 0

    def add_snapshot(self, team: Team, pool: OpponentPool, params: dict, step) -> OpponentPool:
        """Add the current parameters to the pool."""
        return add(pool, team.snapshot(params), step)

    def meet(self, pool: OpponentPool, key: jax.Array) -> tuple[jax.Array, dict]:
        """Draw the next opponent and return its slot and its snapshot."""
        place = jax.random.categorical(key, jnp.log(chances(pool, self.prioritized)))
        return place, jax.tree.map(lambda x: x[place], pool.snapshots)

    def record(self, pool: OpponentPool, place: jax.Array, finished: Finished) -> OpponentPool:
        """Record the results of games against the opponent in the slot `place`."""
        if not self.sections.historical:
            return pool
        return record(pool, place, *results(finished, self.sections.slices()[0][1], self.sides))

    def metrics(self, finished: Finished) -> dict[str, jax.Array]:
        """Compute the learner's share of the points against each opponent."""
        metrics, bots = {}, 0
        for bot, rows in self.sections.slices():
            name = "historical" if bot is None else f"bot_{bots}"
            bots += bot is not None
            points, games = results(finished, rows, self.sides)
            metrics[f"versus/{name}"] = points / jnp.maximum(games, 1)
        return metrics


def new_pool(snapshot: dict, size: int, dtype) -> OpponentPool:
    """Return a pool in `dtype` that contains `snapshot`, at step 0."""
    snapshots = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), dtype), snapshot)
    zeros = jnp.zeros((size,))
    return add(OpponentPool(snapshots, jnp.full((size,), -1, jnp.int32), zeros, zeros, zeros), snapshot, 0)


def with_members(pool: OpponentPool, members: Sequence[tuple[dict, float]]) -> OpponentPool:
    """Return a pool of the same size that contains the policies of other runs only.

    Args:
        pool: A pool.
        members: Snapshot and share of every policy, at most M.
    """
    zeros = jnp.zeros_like(pool.points)
    pool = OpponentPool(pool.snapshots, jnp.full_like(pool.step, -1), zeros, zeros, zeros)
    for number, (snapshot, share) in enumerate(members):
        pool = add(pool, snapshot, number)
        pool = dataclasses.replace(pool, share=pool.share.at[number].set(share))
    return pool


def add(pool: OpponentPool, snapshot: dict, step) -> OpponentPool:
    """Add an opponent to the pool."""
    place = jnp.argmin(pool.step)

    def put(old, new):
        return old.at[place].set(jnp.asarray(new, old.dtype))

    return OpponentPool(
        snapshots=jax.tree.map(put, pool.snapshots, snapshot),
        step=put(pool.step, step),
        points=put(pool.points, 0.0),
        games=put(pool.games, 0.0),
        share=put(pool.share, 1.0),
    )


def chances(pool: OpponentPool, prioritized: bool) -> jax.Array:
    """Return the probability of choosing each opponent, float32 [M].

    It is proportional to the share of the opponent and, if prioritized, to its strength. An opponent without games
    counts as an even match.
    """
    win_rate = (pool.points + 0.5) / (pool.games + 1.0)
    weight = jnp.maximum(jnp.square(1.0 - win_rate), FLOOR) if prioritized else jnp.ones_like(win_rate)
    weight = jnp.where(pool.step >= 0, weight * pool.share, 0.0)
    return weight / jnp.sum(weight)


def record(pool: OpponentPool, place: jax.Array, points: jax.Array, games: jax.Array) -> OpponentPool:
    """Record the points of the learner in games against the opponent in slot `place`."""
    fade = jnp.where(games > 0, MEMORY, 1.0)
    return dataclasses.replace(
        pool,
        points=pool.points.at[place].set(fade * pool.points[place] + points),
        games=pool.games.at[place].set(fade * pool.games[place] + games),
    )


def results(finished: Finished, rows: slice, sides: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Return the points of the learner and the number of games in some rows.

    The learner wins by earning more than every opponent, and a draw is half a point. A game that continues from one
    rollout to the next counts for the opponent at its end. Leaving such games out would leave out the long ones.
    """
    section = jax.tree.map(lambda x: x[:, rows], finished)
    agent = section.total.agent
    own_side = jnp.asarray(sides)[section.seat]
    own = jnp.take_along_axis(agent, section.seat[..., None], axis=-1)[..., 0]
    others = jnp.max(jnp.where(np.asarray(sides) == own_side[..., None], -jnp.inf, agent), axis=-1)
    points = jnp.where(own > others, 1.0, jnp.where(own == others, 0.5, 0.0))
    return jnp.sum(points * section.ended), jnp.sum(section.ended)
