"""Who sits opposite the learner: itself, historical opponents, bots.

Rows of a rollout are cut into sections by opponent. Historical opponents are snapshots of the parameters, met by
prioritised fictitious self-play: the more often one wins the more often it is met (Vinyals et al., 2019: weight
(1 − p)² for the learner's win rate p). Their pool is arrays of a fixed size, so that it lives on the device, enters the
rollout program and is saved with the rest.
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

MEMORY = 0.95  # of old results when new ones come in: opponents are judged by how the learner fares against them now
FLOOR = 0.05  # smallest weight, so that an opponent that is always beaten is still met now and then


@dataclasses.dataclass(frozen=True)
class Sections:
    """Rows by who sits opposite the learner; all sizes are static.

    own         rows in which the learner has all seats
    historical  rows with a historical opponent
    bots        (bot, rows) for each scripted opponent
    """

    own: int
    historical: int = 0
    bots: tuple[tuple[Bot, int], ...] = ()

    @property
    def rows(self) -> int:
        """All of them."""
        return self.own + self.historical + sum(n for _, n in self.bots)

    def slices(self) -> list[tuple[Bot | None, slice]]:
        """The rows of every opponent: the historical one (None) first, then the bots."""
        found, start = [], self.own
        for who, n in ((None, self.historical), *self.bots):
            if n:
                found.append((who, slice(start, start + n)))
            start += n
        return found


def make_sections(rows: int, self_play_frac: float, bots: Sequence[Bot], bot_frac: float) -> Sections:
    """`self_play_frac` of the rows to self-play, `bot_frac` to the bots in equal parts, the rest to historical ones."""
    each = round(rows * bot_frac / len(bots)) if bots else 0
    own = min(round(rows * self_play_frac), rows - each * len(bots))
    historical = rows - own - each * len(bots)
    if historical == 1 and own:
        own, historical = own + 1, 0  # a rounding error is no section
    return Sections(own, historical, tuple((bot, each) for bot in bots if each))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OpponentPool:
    """Up to M historical opponents; the oldest gives way to the newest.

    snapshots  acting parameters, each array [M, …]
    step       int32 [M], when each was taken; -1 is an empty place
    points     float32 [M], of the learner against each, fading
    games      float32 [M], fading
    """

    snapshots: dict
    step: jax.Array
    points: jax.Array
    games: jax.Array


@dataclasses.dataclass(frozen=True)
class Opponents:
    """Sections of the rows, and the pool of historical opponents.

    pool_size       M; 0 is no pool
    snapshot_every  steps between two snapshots
    prioritised     by win rate, or all alike
    """

    sections: Sections
    pool_size: int = 0
    snapshot_every: int = 1
    prioritized: bool = True

    def new_pool(self, team: Team, params: dict) -> OpponentPool | None:
        """A pool whose first member are the present parameters, at step 0."""
        if not self.pool_size:
            return None
        return new_pool(team.snapshot(params), self.pool_size, team.backbones[0].policy.dtype)

    def snapshot_due(self, step: int) -> bool:
        """Whether a snapshot is taken after this step."""
        return bool(self.pool_size) and step % self.snapshot_every == 0

    def add_snapshot(self, team: Team, pool: OpponentPool, params: dict, step) -> OpponentPool:
        """The pool with the present parameters."""
        return add(pool, team.snapshot(params), step)

    def meet(self, pool: OpponentPool, key: jax.Array) -> tuple[jax.Array, dict]:
        """The place of the next opponent, drawn with `chances`, and its snapshot."""
        place = jax.random.categorical(key, jnp.log(chances(pool, self.prioritized)))
        return place, jax.tree.map(lambda x: x[place], pool.snapshots)

    def record(self, pool: OpponentPool, place: jax.Array, finished: Finished) -> OpponentPool:
        """The pool after some games of the learner against the opponent at `place`."""
        if not self.sections.historical:
            return pool
        return record(pool, place, *results(finished, self.sections.slices()[0][1]))

    def metrics(self, finished: Finished) -> dict[str, jax.Array]:
        """The learner's share of the points against each opponent."""
        metrics, bots = {}, 0
        for bot, rows in self.sections.slices():
            name = "historical" if bot is None else f"bot_{bots}"
            bots += bot is not None
            points, games = results(finished, rows)
            metrics[f"versus/{name}"] = points / jnp.maximum(games, 1)
        return metrics


def new_pool(snapshot: dict, size: int, dtype) -> OpponentPool:
    """A pool whose first member is `snapshot`, at step 0; kept in `dtype`."""
    snapshots = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), dtype), snapshot)
    empty = OpponentPool(snapshots, jnp.full((size,), -1, jnp.int32), jnp.zeros((size,)), jnp.zeros((size,)))
    return add(empty, snapshot, 0)


def add(pool: OpponentPool, snapshot: dict, step) -> OpponentPool:
    """The pool with one more opponent."""
    place = jnp.argmin(pool.step)

    def put(old, new):
        return old.at[place].set(jnp.asarray(new, old.dtype))

    return OpponentPool(
        snapshots=jax.tree.map(put, pool.snapshots, snapshot),
        step=put(pool.step, step),
        points=put(pool.points, 0.0),
        games=put(pool.games, 0.0),
    )


def chances(pool: OpponentPool, prioritized: bool) -> jax.Array:
    """float32 [M]: how likely each opponent is to be met next; one that was never met counts as an even match."""
    win_rate = (pool.points + 0.5) / (pool.games + 1.0)
    weight = jnp.maximum(jnp.square(1.0 - win_rate), FLOOR) if prioritized else jnp.ones_like(win_rate)
    weight = jnp.where(pool.step >= 0, weight, 0.0)
    return weight / jnp.sum(weight)


def record(pool: OpponentPool, place: jax.Array, points: jax.Array, games: jax.Array) -> OpponentPool:
    """The pool after some games of the learner against the opponent at `place`."""
    fade = jnp.where(games > 0, MEMORY, 1.0)
    return dataclasses.replace(
        pool,
        points=pool.points.at[place].set(fade * pool.points[place] + points),
        games=pool.games.at[place].set(fade * pool.games[place] + games),
    )


def results(finished: Finished, rows: slice) -> tuple[jax.Array, jax.Array]:
    """(points of the learner, games) in some rows; a draw is half a point, and the learner wins by earning more.

    A game that continues from one rollout to the next counts for the opponent that ended it. Leaving such games out
    would leave out the long ones.
    """
    section = jax.tree.map(lambda x: x[:, rows], finished)
    agent = section.total.agent
    seats = np.arange(agent.shape[-1])
    mine = jnp.take_along_axis(agent, section.seat[..., None], axis=-1)[..., 0]
    others = jnp.max(jnp.where(seats == section.seat[..., None], -jnp.inf, agent), axis=-1)
    points = jnp.where(mine > others, 1.0, jnp.where(mine == others, 0.5, 0.0))
    return jnp.sum(points * section.ended), jnp.sum(section.ended)
