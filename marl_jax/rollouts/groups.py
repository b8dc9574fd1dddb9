"""The rollout of GRPO: K whole episodes from one start; an episode's samples are judged by how it ended.

Axis letters: K episodes of a group; rows g·K … g·K + K − 1 are group g's.

The e-th episodes of a group's rows all begin with the same position, drawn for that group and that e. A row begins
another episode as long as there is time to play it to the end, however long it takes, so every episode is whole and
none is left out for having been long.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.games import Games, like, row_keys
from marl_jax.rollouts.refill import RefillRollout, Units
from marl_jax.samples import Samples


@dataclasses.dataclass(frozen=True, eq=False)
class GroupRollout(RefillRollout):
    """The rollout of GRPO, called as `GameRollout` is, without opponents.

    It needs at least `game.max_turns` turns.

    candidates  K
    """

    candidates: int = 8

    games_go_on = False
    lookahead = 0
    whole_episodes = True

    @property
    def units(self) -> Units:
        """The K rows of games that share their starts: all groups that they play, one after another."""
        seats = self.game.n_players if self.history_turns else 1  # with history a row is a seat, otherwise a turn
        return Units(self.rows // self.candidates, self.candidates * seats, groups=self.turns + 1)

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: None = None
    ) -> tuple[Samples, Finished, Games]:
        """Samples of new episodes, what ended [R, B, …], and the games that were given, untouched.

        `episode` counts from 0 in each row, `group` is the same for episodes with the same start, and turns that wait
        for the end have weight 0.
        """
        ready = self.team.prepare_for_sampling(params)
        start_key = jax.random.fold_in(key, self.turns)
        first = self._begin(start_key, jnp.zeros((self.rows,), jnp.int32))
        episodes = self.turns + 1  # no row can end more, and one that waits has a number of its own

        def step(carry, turn):
            playing, talk = carry
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            act_keys, other_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
            waits = jax.vmap(self.game.done)(playing.state)
            moved, talk, (record, places), finished = self._move(ready, None, playing, talk, act_keys, other_keys)
            ended = finished.ended & ~waits
            record = dataclasses.replace(
                record, counts=record.counts * ~waits, rewards=record.rewards * ~waits[:, None], ends=ended
            )
            group = jnp.arange(self.rows) // self.candidates * episodes + playing.episode
            moved = dataclasses.replace(moved, episode=playing.episode + ended)
            fresh = self._begin(start_key, moved.episode)
            begins = ended & (turn + 1 + self.game.max_turns <= self.turns)
            playing = jax.tree.map(lambda new, old: jnp.where(like(begins, new), new, old), fresh, moved)
            talk = self.context.restart(talk, begins)
            return (playing, talk), (record, places, group, dataclasses.replace(finished, ended=ended))

        start = (first, self.context.begin(self.rows))
        (_, talk), (played, places, group, finished) = jax.lax.scan(step, start, jnp.arange(self.turns))
        samples = self.context.samples(
            talk,
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
        """The starts of the given episodes [B]: one for each group and number."""
        keys = row_keys(key, self.rows // self.candidates)
        keys = jax.vmap(jax.random.fold_in)(jnp.repeat(keys, self.candidates, axis=0), episode)
        return dataclasses.replace(jax.vmap(self._fresh)(keys), episode=episode)
