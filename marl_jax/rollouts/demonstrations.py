"""Demonstrations: what a bot plays, as samples that a policy can learn to imitate.

The games, prompts and records are those of a rollout, so a policy that learns from them starts where its own rollouts
will begin; only the answers are the bot's. Levels of puzzles come from the train part of the pool, as all of training.

A bot that plays well never shows how to get out of trouble. So some moves are played at random, while the sample still
has what the bot would have done. With planner and executor only the executor strays: a proposal is what the bot holds
best, and the executor learns to follow it.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import Bot, pick
from marl_jax.agents.policy import Decision
from marl_jax.agents.team import Backbone
from marl_jax.rollouts.games import Finished, Games, Rollout, row_keys
from marl_jax.rollouts.opponents import seat_actions
from marl_jax.samples import Samples


@dataclasses.dataclass(frozen=True, eq=False)
class Demonstrations(Rollout):
    """The program: `start` makes the games, `show` plays `turns` turns of all of them.

    bot    who is imitated, in all seats
    noise  the share of moves that are played at random instead
    """

    bot: Bot | None = None
    noise: float = 0.0

    def show(self, games: Games, key: jax.Array) -> tuple[Samples, Finished, Games]:
        """Samples [R, B, …] whose answers are the bot's, what ended, and the games after R turns."""

        def step(games, turn):
            keys = row_keys(jax.random.fold_in(key, turn), self.sections.rows)
            return self._show_turn(games, keys)

        games, (samples, finished) = jax.lax.scan(step, games, jnp.arange(self.turns))
        return samples, finished, games

    def examine(self, key: jax.Array, draws: int) -> tuple[Samples, jax.Array]:
        """Samples [R, B, …] of fresh games, and what counts as right in each position, bool [R, B, A].

        A bot may have several ways: right is what it plays in one of so many draws.
        """

        def step(games, turn):
            keys = row_keys(jax.random.fold_in(key, turn), self.sections.rows)
            right = self._right(games, keys, draws)
            games, (samples, _) = self._show_turn(games, keys)
            return games, (samples, right)

        return jax.lax.scan(step, self.start(key), jnp.arange(self.turns))[1]

    def _right(self, games: Games, keys: jax.Array, draws: int) -> jax.Array:
        view = self._look(games)[2]
        keys = jax.vmap(lambda k: jax.random.split(k, draws))(keys)
        actions = jax.vmap(jax.vmap(self.bot.act, (None, 0)))(view, keys)
        return jnp.any(actions[..., None] == jnp.arange(self.game.n_actions), axis=1)

    def _show_turn(self, games: Games, keys: jax.Array) -> tuple[Games, tuple[Samples, Finished]]:
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        player, through, view, prompts, lengths, legal = self._look(games)
        who = jnp.asarray(self.seat_policy, jnp.int32)[player]
        best = jax.vmap(self.bot.act)(view, act_keys)
        # Where a bot is at its wits' end it may name a move that is not legal: nothing to learn from.
        known = jnp.take_along_axis(legal, best[:, None], axis=1)[:, 0]
        best = jnp.where(known, best, jnp.argmax(legal, axis=1))
        answers, answer_lengths = self._written(best, player)
        nothing = jnp.zeros(answers.shape, jnp.float32)
        decision = Decision(best, answers, answer_lengths, nothing, nothing[:, 0])

        stray_keys, pick_keys = jnp.moveaxis(jax.vmap(jax.random.split)(other_keys), 1, 0)
        stray = (jax.vmap(jax.random.uniform)(stray_keys) < self.noise) & jax.vmap(self.game.moves)(player)
        action = jnp.where(stray, jax.vmap(pick)(legal, pick_keys), best)
        action = seat_actions(self.seat_bots, view, player, other_keys, action)
        state, reward = self._step(games.state, action, jnp.zeros_like(stray), player, through)
        ended = jax.vmap(self.game.done)(state) | jax.vmap(self.game.lost)(state)
        total = jax.tree.map(jnp.add, games.total, reward)
        samples = self._samples(games, prompts, lengths, legal, decision, player, who, self._weigh(reward), ended, None)
        samples = samples.replace(weights=samples.weights * known)
        finished = Finished(ended, total, games.turn + 1, games.seat)
        after = dataclasses.replace(games, state=state, turn=games.turn + 1, total=total)
        return self._restart(after, ended, reset_keys), (samples, finished)

    def _written(self, action: jax.Array, player: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions [B] as their players' models write them: tokens int32 [B, W], 0 behind the end, and lengths [B]."""
        tables = [names_to_write(backbone) for backbone in self.policy.backbones]
        ids = np.stack([np.pad(ids, ((0, 0), (0, self.policy.width - ids.shape[1]))) for ids, _ in tables])
        lengths = np.stack([lengths for _, lengths in tables])
        backbone = jnp.asarray([self.policy.backbone_of(policy) for policy in self.seat_policy])[player]
        return jnp.asarray(ids)[backbone, action], jnp.asarray(lengths)[backbone, action]


def names_to_write(backbone: Backbone) -> tuple[np.ndarray, np.ndarray]:
    """The answers that name each action, as a model would sample them: int32 [A, W], 0 behind the end, and [A].

    Free answers end with a stop where there is room for it.
    """
    free = backbone.policy.free
    if free is None:
        choices = jax.device_get(backbone.policy.choices)
        return np.maximum(choices.ids, 0).astype(np.int32), choices.lengths.astype(np.int32)
    longest = int(free.lengths.max())
    ids = np.zeros((len(free.ids), free.max_new), np.int32)
    ids[:, :longest] = np.maximum(free.ids[:, :longest], 0)
    stops = np.flatnonzero(free.lengths < free.max_new)
    ids[stops, free.lengths[stops]] = free.stop_ids[0]
    return ids, np.minimum(free.lengths + 1, free.max_new).astype(np.int32)
