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
from marl_jax.agents.answering import Decision
from marl_jax.rollouts.games import GameRollout, Games, row_keys
from marl_jax.rollouts.turns import Finished, Turn, to_samples
from marl_jax.samples import Samples


@dataclasses.dataclass(frozen=True, eq=False)
class Demonstrations(GameRollout):
    """The program; called as `GameRollout` is, and no parameters are asked.

    bot    who is imitated, in all seats
    noise  the share of moves that are played at random instead
    """

    bot: Bot | None = None
    noise: float = 0.0

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: None = None
    ) -> tuple[Samples, Finished, Games]:
        """Samples whose answers are the bot's, what ended [R, B, …], and the games after R turns."""

        def step(games, turn):
            return self._show_turn(games, row_keys(jax.random.fold_in(key, turn), self.rows))

        games, (turns, finished) = jax.lax.scan(step, games, jnp.arange(self.turns))
        return to_samples(turns), finished, games

    def examine(self, key: jax.Array, draws: int) -> tuple[Turn, jax.Array]:
        """Turns [R, B, …] of fresh games, and what counts as right in each position, bool [R, B, A].

        A bot may have several ways: right is what it plays in one of so many draws.
        """

        def step(games, turn):
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            right = self._right(games, keys, draws)
            games, (record, _) = self._show_turn(games, keys)
            return games, (record, right)

        return jax.lax.scan(step, self.fresh_games(key), jnp.arange(self.turns))[1]

    def _right(self, games: Games, keys: jax.Array, draws: int) -> jax.Array:
        view = self._look(games).view
        keys = jax.vmap(lambda k: jax.random.split(k, draws))(keys)
        actions = jax.vmap(jax.vmap(self.bot.act, (None, 0)))(view, keys)
        return jnp.any(actions[..., None] == jnp.arange(self.game.n_actions), axis=1)

    def _show_turn(self, games: Games, keys: jax.Array) -> tuple[Games, tuple[Turn, Finished]]:
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        seen = self._look(games)
        best = jax.vmap(self.bot.act)(seen.view, act_keys)
        # Where a bot is at its wits' end it may name a move that is not legal: nothing to learn from.
        known = jnp.take_along_axis(seen.legal, best[:, None], axis=1)[:, 0]
        best = jnp.where(known, best, jnp.argmax(seen.legal, axis=1))
        answers, answer_lengths = self._written(best, seen.policy)
        nothing = jnp.zeros(answers.shape, jnp.float32)
        decision = Decision(best, answers, answer_lengths, nothing, nothing[:, 0])

        stray_keys, pick_keys = jnp.moveaxis(jax.vmap(jax.random.split)(other_keys), 1, 0)
        stray = (jax.vmap(jax.random.uniform)(stray_keys) < self.noise) & jax.vmap(self.game.moves)(seen.seat)
        action = jnp.where(stray, jax.vmap(pick)(seen.legal, pick_keys), best)
        action = self.seating.bot_actions(seen.view, seen.seat, other_keys, action)
        state, reward = self._step(games.state, action, jnp.zeros_like(stray), seen)
        ended = jax.vmap(self.game.done)(state) | jax.vmap(self.game.lost)(state)
        total = jax.tree.map(jnp.add, games.total, reward)
        counts = self._counts(seen.policy) * known
        record = self._record(games, seen, decision, seen.policy, self._weigh(reward), ended, counts=counts)
        finished = Finished(ended, total, games.turn + 1, games.seat)
        after = dataclasses.replace(games, state=state, turn=games.turn + 1, total=total)
        return self._restart(after, ended, reset_keys), (record, finished)

    def _written(self, action: jax.Array, policy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions [B] as their policies' models write them: int32 [B, W], 0 behind the end, and lengths [B]."""
        tables = [backbone.policy.answers.written() for backbone in self.team.backbones]
        ids = np.stack([np.pad(ids, ((0, 0), (0, self.team.width - ids.shape[1]))) for ids, _ in tables])
        lengths = np.stack([lengths for _, lengths in tables])
        backbone = self.team.backbone_of(policy)
        return jnp.asarray(ids)[backbone, action], jnp.asarray(lengths)[backbone, action]
