"""Demonstrations: moves of a bot as samples that a policy learns to imitate.

Games, prompts and records are those of a rollout, so that a policy sees the same prompts as later in its own rollouts.
Only the completions come from the bot. Puzzles use the levels of the train split, like all training.

A bot that plays well never shows how to recover from mistakes. So some moves are played at random, while the sample
still contains the move of the bot. With a planner and an executor only the executor makes random moves: a proposal is
always the bot's best move, and the executor learns to follow it.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import pick
from envs.games.entry import RecordedMoves
from envs.games.game import Bot
from marl_jax.agents.answering import Decision
from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.games import GameRollout, Games, Seen, like, row_keys
from marl_jax.samples import Samples


class DemonstrationAnswers(NamedTuple):
    """Actions of a policy in R positions of B games of a bot.

    Attributes:
        right: bool [R, B]. Whether the bot would play the action.
        counts: bool [R, B]. Whether there was a move to imitate.
        own: int32 [R, B]. Action of the policy, -1 if the completion names none.
        bot: int32 [R, B]. Action of the bot.
        prompts: int32 [R, B, T]. Self-contained prompts of the positions, followed by the codes of their pictures.
    """

    right: jax.Array
    counts: jax.Array
    own: jax.Array
    bot: jax.Array
    prompts: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Demonstrations(GameRollout):
    """A rollout in which a bot plays; no policy is sampled.

    Attributes:
        bot: Bot to imitate, in all seats.
        noise: Share of moves that are played at random instead.
        action_weights: Weight of each action of the bot in the loss; () weighs all equally.
        recorded: Recorded moves, shown in the first `recorded_rows` rows instead of games of the bot. Every turn shows
            other positions, drawn at random.
        recorded_rows: Number of rows with recorded moves.
        gain_weight: Additional weight of a recorded move per unit of its gain.
        min_gain: Lowest gain of a recorded move that is shown; with less, the bot moves in its position.
    """

    bot: Bot | None = None
    noise: float = 0.0
    action_weights: tuple[float, ...] = ()
    recorded: RecordedMoves | None = None
    recorded_rows: int = 0
    gain_weight: float = 0.0
    min_gain: float = 0.0

    @property
    def lookahead(self) -> int:
        """Zero, because demonstrations need no values."""
        return 0

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: None = None
    ) -> tuple[Samples, Finished, Games]:
        """Play R turns with the bot and return samples, results [R, B, …] and games."""

        def step(carry, turn):
            games, conversations = carry
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            games, conversations, record, finished = self._show_turn(games, conversations, keys)
            return (games, conversations), (*record, finished)

        start = (games, self.context.begin(self.rows, sampling=False))
        (games, conversations), (played, places, finished) = jax.lax.scan(step, start, jnp.arange(self.turns))
        finished = dataclasses.replace(finished, dropped=self.context.dropped(played, places))
        return self.context.samples(conversations, played, places), finished, games

    def heldout_eval(self, params: dict, key: jax.Array, draws: int) -> DemonstrationAnswers:
        """Compare greedy actions of a policy with those of the bot in new games.

        A bot may play several moves in one position. An action is right if the bot plays it in one of `draws` draws.
        """
        prepared, context = self.team.prepare_for_sampling(params), self.context

        def step(carry, turn):
            games, conversations = carry
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            seen = self._look(games)
            decision, conversations = context.act(
                prepared,
                conversations,
                context.read(conversations, seen),
                keys,
                legal=seen.legal,
                policy=seen.policy,
                temperature=0.0,
            )
            said = decision.action
            right = jnp.take_along_axis(self._right(seen, keys, draws), jnp.maximum(said, 0)[:, None], axis=1)[:, 0]
            games, conversations, (played, _), _ = self._show_turn(games, conversations, keys)
            bot, prompts = played.decision.action, seen.prompts
            if seen.media is not None:
                prompts = jnp.concatenate([prompts, seen.media.astype(prompts.dtype)], axis=1)
            return (games, conversations), DemonstrationAnswers(
                right & (said >= 0), played.counts > 0, said, bot, prompts
            )

        start = (self.fresh_games(key), context.begin(self.rows))
        return jax.lax.scan(step, start, jnp.arange(self.turns))[1]

    def _right(self, seen: Seen, keys: jax.Array, draws: int) -> jax.Array:
        assert self.bot is not None
        keys = jax.vmap(lambda k: jax.random.split(k, draws))(keys)
        actions = jax.vmap(jax.vmap(self.bot.act, (None, 0)))(seen.view, keys)
        return jnp.any(actions[..., None] == jnp.arange(self.game.n_actions), axis=1)

    def _show_turn(self, games: Games, conversations, keys: jax.Array):
        """Make one move of the bot in every row; see `GameRollout._turn`."""
        assert self.bot is not None
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        games, recalled, move, gain = self._recall(games, act_keys)
        seen = self._look(games)
        improved = recalled & (gain >= self.min_gain)
        weight = jnp.where(improved, 1 + self.gain_weight * gain, 1.0)
        best = jnp.where(improved, self._as_seen(move, seen), jax.vmap(self.bot.act)(seen.view, act_keys))
        # A bot without a good move may return an illegal one, which is not learned from.
        known = jnp.take_along_axis(seen.legal, best[:, None], axis=1)[:, 0]
        best = jnp.where(known, best, jnp.argmax(seen.legal, axis=1))
        answers, completion_lengths = self._written(best, seen.policy)
        nothing = jnp.zeros(answers.shape, jnp.float32)
        decision = Decision(best, answers, completion_lengths, nothing, nothing[:, 0], jnp.zeros(best.shape, bool))

        stray_keys, pick_keys = jnp.moveaxis(jax.vmap(jax.random.split)(other_keys), 1, 0)
        stray = (jax.vmap(jax.random.uniform)(stray_keys) < self.noise) & jax.vmap(self.game.moves)(seen.seat)
        stray &= ~recalled
        action = jnp.where(stray, jax.vmap(pick)(seen.legal, pick_keys), best)
        action = self.seating.bot_actions(seen.view, seen.seat, other_keys, action)
        conversations, places = self.context.say(
            conversations, self.context.read(conversations, seen), decision, seen.policy
        )
        state, reward, played = self._step(games.state, action, jnp.zeros_like(stray), seen)
        ended = (jax.vmap(self.game.done)(state) | jax.vmap(self.game.lost)(state)) & ~recalled
        total = jax.tree.map(jnp.add, games.total, reward)
        counts = self._counts(seen.policy) * known * weight
        if self.action_weights:
            counts *= jnp.asarray(self.action_weights, jnp.float32)[best]
        record = self._record(games, seen, decision, seen.policy, self._weigh(reward), ended, counts=counts)
        finished = Finished(ended, total, games.turn + 1, games.seat)
        after = dataclasses.replace(games, state=state, turn=games.turn + 1, total=total)
        conversations = self.context.restart(
            self.context.observe(conversations, games.state, played, after.state, games.turn, games.symmetry), ended
        )
        return self._restart(after, ended, reset_keys), conversations, (record, places), finished

    def _recall(self, games: Games, keys: jax.Array) -> tuple[Games, jax.Array, jax.Array, jax.Array]:
        """Put recorded positions into the first rows.

        Returns:
            The games, and for each row whether its position is a recorded one (bool [B]), the recorded move (int32 [B])
            and its gain (float32 [B]).
        """
        nothing = jnp.zeros((self.rows,), jnp.int32)
        if self.recorded is None:
            return games, nothing > 0, nothing, jnp.zeros((self.rows,))
        moves, recalled = self.recorded, jnp.arange(self.rows) < self.recorded_rows
        which = jax.vmap(lambda key: jax.random.randint(key, (), 0, len(moves.actions)))(keys)

        def shown(now: jax.Array, saved: jax.Array) -> jax.Array:
            if now.shape[1:] != saved.shape[1:]:  # a part that no player sees
                return now
            return jnp.where(like(recalled, now), jnp.asarray(saved)[which].astype(now.dtype), now)

        state = jax.tree.map(shown, games.state, moves.states)
        action = jnp.asarray(moves.actions)[which].astype(jnp.int32)
        return dataclasses.replace(games, state=state), recalled, action, jnp.asarray(moves.gains)[which]

    def _as_seen(self, action: jax.Array, seen: Seen) -> jax.Array:
        """Return actions of the game as the acting seats see them."""
        return action if self.symmetry is None else jax.vmap(self.symmetry.map_action)(action, seen.through)

    def _written(self, action: jax.Array, policy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Encode actions [B] as completions of their policies.

        Returns:
            Tokens int32 [B, W], padded with 0, and lengths int32 [B].
        """
        tables = [backbone.policy.answers.written() for backbone in self.team.backbones]
        ids = np.stack([np.pad(ids, ((0, 0), (0, self.team.width - ids.shape[1]))) for ids, _ in tables])
        lengths = np.stack([lengths for _, lengths in tables])
        backbone = self.team.backbone_of(policy)
        return jnp.asarray(ids)[backbone, action], jnp.asarray(lengths)[backbone, action]
