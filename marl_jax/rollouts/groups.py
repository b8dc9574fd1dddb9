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

from marl_jax.rollouts.games import Finished, Games, Rollout, like, row_keys
from marl_jax.samples import Samples


@dataclasses.dataclass(frozen=True, eq=False)
class GroupRollout(Rollout):
    """The program; called as `Rollout` is, without opponents. Needs at least `game.max_turns` turns.

    candidates  K
    """

    candidates: int = 8

    def __call__(
        self, weights: dict, games: Games, key: jax.Array, past: None = None
    ) -> tuple[Samples, Finished, Games]:
        """Samples [R, B, …] of new episodes, what ended [R, B, …], and the games that were given, untouched.

        `episode` counts from 0 in each row, `group` is the same for episodes with the same start, and rows that wait
        for the end have weight 0.
        """
        fast = self.policy.ready(weights)
        rows = self.sections.rows
        start_key = jax.random.fold_in(key, self.turns)
        first = self._begin(start_key, jnp.zeros((rows,), jnp.int32))

        def step(playing, turn):
            act_keys, other_keys = jnp.moveaxis(
                jax.vmap(jax.random.split)(row_keys(jax.random.fold_in(key, turn), rows)), 1, 0
            )
            waits = jax.vmap(self.game.done)(playing.state)
            moved, samples, finished = self._move(fast, None, playing, act_keys, other_keys)
            ended = finished.ended & ~waits
            samples = samples.replace(
                weights=samples.weights * ~waits,
                rewards=samples.rewards * ~waits[:, None],
                ends=ended,
                group=jnp.arange(rows) // self.candidates * self.turns + playing.episode,
            )
            moved = dataclasses.replace(moved, episode=playing.episode + ended)
            fresh = self._begin(start_key, moved.episode)
            begins = ended & (turn + 1 + self.game.max_turns <= self.turns)
            playing = jax.tree.map(lambda new, old: jnp.where(like(begins, new), new, old), fresh, moved)
            return playing, (samples, dataclasses.replace(finished, ended=ended))

        _, (samples, finished) = jax.lax.scan(step, first, jnp.arange(self.turns))
        return samples, finished, games

    def _begin(self, key: jax.Array, episode: jax.Array) -> Games:
        """The starts of the given episodes [B]: one for each group and number."""
        keys = row_keys(key, self.sections.rows // self.candidates)
        keys = jax.vmap(jax.random.fold_in)(jnp.repeat(keys, self.candidates, axis=0), episode)
        return dataclasses.replace(jax.vmap(self._fresh)(keys), episode=episode)
