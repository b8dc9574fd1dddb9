"""Demonstrations: what a bot plays, as samples that a policy can learn to imitate.

The games, prompts and records are those of a rollout, so a policy that learns from them starts where its own rollouts
will begin; only the answers are the bot's. Levels of puzzles come from the train part of the pool, as all of training.

A bot that plays well never shows how to get out of trouble. So some moves are played at random, while the sample still
has what the bot would have done. With planner and executor only the executor strays: a proposal is what the bot holds
best, and the executor learns to follow it.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import pick
from envs.games.game import Bot
from marl_jax.agents.answering import Decision
from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.games import GameRollout, Games, Seen, row_keys
from marl_jax.samples import Samples


class DemonstrationAnswers(NamedTuple):
    """Of a policy to R positions in each of the B games of a bot.

    right    bool [R, B], whether it is what the bot would play
    counts   bool [R, B], whether there was something to imitate
    own      int32 [R, B], the action that it names, -1 if none
    bot      int32 [R, B], the action of the bot
    prompts  int32 [R, B, T], as if they stood alone
    """

    right: jax.Array
    counts: jax.Array
    own: jax.Array
    bot: jax.Array
    prompts: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Demonstrations(GameRollout):
    """The program; called as `GameRollout` is, and no parameters are asked.

    bot             who is imitated, in all seats
    noise           the share of moves that are played at random instead
    action_weights  how much each action of the bot counts in the loss; (): all the same
    """

    bot: Bot | None = None
    noise: float = 0.0
    action_weights: tuple[float, ...] = ()

    lookahead = 0

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: None = None
    ) -> tuple[Samples, Finished, Games]:
        """Samples whose answers are the bot's, what ended [R, B, …], and the games after R turns."""

        def step(carry, turn):
            games, talk, record, finished = self._show_turn(*carry, row_keys(jax.random.fold_in(key, turn), self.rows))
            return (games, talk), (*record, finished)

        start = (games, self.context.begin(self.rows, sampling=False))
        (games, talk), (played, places, finished) = jax.lax.scan(step, start, jnp.arange(self.turns))
        finished = dataclasses.replace(finished, dropped=self.context.dropped(played, places))
        return self.context.samples(talk, played, places), finished, games

    def heldout_eval(self, params: dict, key: jax.Array, draws: int) -> DemonstrationAnswers:
        """How a policy answers in the bot's games, fresh ones, most likely answers only.

        A bot may have several ways: right is what it plays in one of so many draws.
        """
        ready, context = self.team.prepare_for_sampling(params), self.context

        def step(carry, turn):
            games, talk = carry
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            seen = self._look(games)
            decision, talk = context.act(
                ready, talk, context.read(talk, seen), keys, legal=seen.legal, policy=seen.policy, temperature=0.0
            )
            said = decision.action
            right = jnp.take_along_axis(self._right(seen, keys, draws), jnp.maximum(said, 0)[:, None], axis=1)[:, 0]
            games, talk, (played, _), _ = self._show_turn(games, talk, keys)
            bot = played.decision.action
            return (games, talk), DemonstrationAnswers(right & (said >= 0), played.counts > 0, said, bot, seen.prompts)

        start = (self.fresh_games(key), context.begin(self.rows))
        return jax.lax.scan(step, start, jnp.arange(self.turns))[1]

    def _right(self, seen: Seen, keys: jax.Array, draws: int) -> jax.Array:
        keys = jax.vmap(lambda k: jax.random.split(k, draws))(keys)
        actions = jax.vmap(jax.vmap(self.bot.act, (None, 0)))(seen.view, keys)
        return jnp.any(actions[..., None] == jnp.arange(self.game.n_actions), axis=1)

    def _show_turn(self, games: Games, talk, keys: jax.Array):
        """One move of the bot in every row, as `_turn`."""
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        seen = self._look(games)
        best = jax.vmap(self.bot.act)(seen.view, act_keys)
        # Where a bot is at its wits' end it may name a move that is not legal: nothing to learn from.
        known = jnp.take_along_axis(seen.legal, best[:, None], axis=1)[:, 0]
        best = jnp.where(known, best, jnp.argmax(seen.legal, axis=1))
        answers, completion_lengths = self._written(best, seen.policy)
        nothing = jnp.zeros(answers.shape, jnp.float32)
        decision = Decision(best, answers, completion_lengths, nothing, nothing[:, 0])

        stray_keys, pick_keys = jnp.moveaxis(jax.vmap(jax.random.split)(other_keys), 1, 0)
        stray = (jax.vmap(jax.random.uniform)(stray_keys) < self.noise) & jax.vmap(self.game.moves)(seen.seat)
        action = jnp.where(stray, jax.vmap(pick)(seen.legal, pick_keys), best)
        action = self.seating.bot_actions(seen.view, seen.seat, other_keys, action)
        talk, places = self.context.say(talk, self.context.read(talk, seen), decision, seen.policy)
        state, reward, move = self._step(games.state, action, jnp.zeros_like(stray), seen)
        ended = jax.vmap(self.game.done)(state) | jax.vmap(self.game.lost)(state)
        total = jax.tree.map(jnp.add, games.total, reward)
        counts = self._counts(seen.policy) * known
        if self.action_weights:
            counts *= jnp.asarray(self.action_weights, jnp.float32)[best]
        record = self._record(games, seen, decision, seen.policy, self._weigh(reward), ended, counts=counts)
        finished = Finished(ended, total, games.turn + 1, games.seat)
        after = dataclasses.replace(games, state=state, turn=games.turn + 1, total=total)
        talk = self.context.restart(
            self.context.observe(talk, games.state, move, after.state, games.turn, games.symmetry), ended
        )
        return self._restart(after, ended, reset_keys), talk, (record, places), finished

    def _written(self, action: jax.Array, policy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions [B] as their policies' models write them: int32 [B, W], 0 behind the end, and lengths [B]."""
        tables = [backbone.policy.answers.written() for backbone in self.team.backbones]
        ids = np.stack([np.pad(ids, ((0, 0), (0, self.team.width - ids.shape[1]))) for ids, _ in tables])
        lengths = np.stack([lengths for _, lengths in tables])
        backbone = self.team.backbone_of(policy)
        return jnp.asarray(ids)[backbone, action], jnp.asarray(lengths)[backbone, action]
