"""The rollout of GRPO: K full episodes from each start, scored by their outcome.

Axis letters: K episodes of a group; rows g·K … g·K + K − 1 belong to group g.

The e-th episodes of all rows of a group start from the same position, drawn for that group and that e. A row starts
another episode only if there is time to finish it, however long it takes. So every episode is complete, and long
episodes are not left out.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.games import Games, like, row_keys
from marl_jax.rollouts.refill import RefillRollout, Units
from marl_jax.samples import Samples


@dataclasses.dataclass(frozen=True, eq=False)
class GroupRollout(RefillRollout):
    """The rollout of GRPO, a `GameRollout` without opponents.

    It needs at least `game.max_turns` turns.

    Attributes:
        candidates: Number of episodes of a group, K.
    """

    candidates: int = 8

    games_go_on: ClassVar[bool] = False
    whole_episodes: ClassVar[bool] = True

    @property
    def lookahead(self) -> int:
        """Zero, because groups need no values after the last turn."""
        return 0

    @property
    def units(self) -> Units:
        """Units of K rows that share their starts, with all groups that these rows play."""
        seats = self.game.n_players if self.history_turns else 1  # a row is a seat with history, otherwise a turn
        return Units(self.rows // self.candidates, self.candidates * seats, groups=self.turns + 1)

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: None = None
    ) -> tuple[Samples, Finished, Games]:
        """Play new episodes and return samples, results [R, B, …] and `games` unchanged.

        `episode` counts from 0 in each row. `group` is the same for episodes with the same start. Turns that wait for
        the end
        of the rollout have weight 0.
        """
        prepared = self.team.prepare_for_sampling(params)
        start_key = jax.random.fold_in(key, self.turns)
        first = self._begin(start_key, jnp.zeros((self.rows,), jnp.int32))
        episodes = self.turns + 1  # upper bound per row, plus one number for rows that wait

        def step(carry, turn):
            playing, conversations = carry
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            act_keys, other_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
            waits = jax.vmap(self.game.done)(playing.state)
            moved, conversations, (record, places), finished = self._move(
                prepared, None, playing, conversations, act_keys, other_keys
            )
            ended = finished.ended & ~waits
            record = dataclasses.replace(
                record, counts=record.counts * ~waits, rewards=record.rewards * ~waits[:, None], ends=ended
            )
            group = jnp.arange(self.rows) // self.candidates * episodes + playing.episode
            moved = dataclasses.replace(moved, episode=playing.episode + ended)
            fresh = self._begin(start_key, moved.episode)
            begins = ended & (turn + 1 + self.game.max_turns <= self.turns)
            playing = jax.tree.map(lambda new, old: jnp.where(like(begins, new), new, old), fresh, moved)
            conversations = self.context.restart(conversations, begins)
            return (playing, conversations), (record, places, group, dataclasses.replace(finished, ended=ended))

        start = (first, self.context.begin(self.rows))
        (_, conversations), (played, places, group, finished) = jax.lax.scan(step, start, jnp.arange(self.turns))
        samples = self.context.samples(
            conversations,
            played,
            places,
            group=group,
            member=jnp.broadcast_to(jnp.arange(self.rows) % self.candidates, group.shape),
            n_groups=self.rows // self.candidates * episodes,
            group_size=self.candidates,
        )
        finished = dataclasses.replace(finished, dropped=self.context.dropped(played, places))
        return samples, finished, games

    def _begin(self, key: jax.Array, episode: jax.Array) -> Games:
        """Start the given episodes [B]: one start position per group and episode number."""
        keys = row_keys(key, self.rows // self.candidates)
        keys = jax.vmap(jax.random.fold_in)(jnp.repeat(keys, self.candidates, axis=0), episode)
        return dataclasses.replace(jax.vmap(self._fresh)(keys), episode=episode)
