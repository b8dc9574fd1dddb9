"""The rollout of AT-GRPO: K candidates per turn, all tried and scored, one continued.

Axis letters: K candidates. A row of samples is a prompt with its K candidates.

A prompt is prefilled once and sampled K times. The rules are pure, so each candidate is tried on a copy of the
position.
The K candidates are one group, identified by episode, agent and turn. The game then continues from one of them, and the
next agent observes its effect. As in `games.py`, everything runs in one XLA program.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from envs.games.bots import pick
from envs.games.game import Reward
from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.games import Games, like, row_keys
from marl_jax.rollouts.refill import RefillRollout, Units
from marl_jax.samples import Samples


@dataclasses.dataclass(frozen=True, eq=False)
class TreeRollout(RefillRollout):
    """The rollout of AT-GRPO, a `GameRollout` without opponents.

    Games continue from one rollout to the next, also between rollouts that refill a batch, so that replacement groups
    come from all phases of a game.

    Attributes:
        candidates: Number of candidates per turn, K.
        continuation: Candidate that the game continues with: "best", "random" or "first". Bots and frozen policies
            always continue with the first.
        team_term: Score of a candidate. "immediate" is the reward of its step. "lookahead" adds the rewards of the
            rest of the turn, in which the remaining agents act greedily.
    """

    candidates: int = 4
    continuation: str = "best"
    team_term: str = "immediate"

    @property
    def lookahead(self) -> int:
        """Zero, because groups need no values after the last turn."""
        return 0

    @property
    def units(self) -> Units:
        """Units of one group; with history, units of all groups of a game."""
        if self.history_turns:
            return Units(self.rows, self.game.n_players, groups=1)
        return Units(self.rows * self.turns, 1, groups=1, by_policy=True)

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: None = None
    ) -> tuple[Samples, Finished, Games]:
        """Play R turns and return samples, results of continued games [R, B, …] and games."""
        prepared = self.team.prepare_for_sampling(params)

        def step(carry, turn):
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            games, conversations, record, finished = self.branch(prepared, carry[0], carry[1], keys)
            return (games, conversations), (*record, finished)

        start = (games, self.context.begin(self.rows))
        (games, conversations), (played, places, finished) = jax.lax.scan(step, start, jnp.arange(self.turns))
        finished = dataclasses.replace(finished, dropped=self.context.dropped(played, places))
        return self.context.samples(conversations, played, places, self.candidates), finished, games

    def branch(self, prepared: dict, games: Games, conversations, keys: jax.Array):
        """Try the candidates of one turn in every row and continue with one of them.

        Returns:
            The games, the conversations, the recorded turn with its position in the rows, and the results of games that
            ended.
        """
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        seen, context = self._look(games), self.context
        learns = self._counts(seen.policy) > 0
        inputs = context.read(conversations, seen)
        decision, conversations = context.act(
            prepared, conversations, inputs, self._each_key(act_keys), legal=seen.legal, policy=seen.policy,
            candidates=self.candidates,
        )  # fmt: skip

        # From here until a candidate is chosen, every array has B·K rows.
        row = jnp.arange(self.rows)
        before, each = self._each((games, seen))
        action = self.team.playable(decision.action, each.legal, self._each_key(other_keys))
        action = self.seating.bot_actions(each.view, each.seat, self._each_key(other_keys), action)
        failed = (decision.action < 0) & (each.policy >= 0)
        state, reward, move = self._step(before.state, action, failed, each)
        ended = jax.vmap(self.game.done)(state)
        after = dataclasses.replace(before, state=state)
        paid = self._score(prepared, after, reward, each.seat, self._each_key(other_keys))
        record = self._record(
            games, seen, decision, seen.policy, paid, ended, counts=self._each(self._counts(seen.policy))
        )

        own_scores = jnp.take_along_axis(paid, each.seat[:, None], axis=1).reshape(-1, self.candidates)
        chosen = jax.vmap(self.choose)(own_scores, jax.vmap(jax.random.fold_in, (0, None))(other_keys, self.candidates))
        # Bots and frozen policies play as they do without candidates: the best of K moves would make them stronger.
        chosen = jnp.where(learns, chosen, 0)
        taken = row * self.candidates + chosen
        state, reward, ended, move, given = jax.tree.map(lambda x: x[taken], (state, reward, ended, move, decision))
        conversations, places = context.say(conversations, inputs, given, seen.policy)
        places = None if places is None else dataclasses.replace(places, kept=chosen)
        total = jax.tree.map(jnp.add, games.total, reward)
        finished = Finished(ended, total, games.turn + 1, games.seat)
        continued = dataclasses.replace(games, state=state, turn=games.turn + 1, total=total)
        conversations = context.restart(
            context.observe(conversations, games.state, move, continued.state, games.turn, games.symmetry), ended
        )
        return self._restart(continued, ended, reset_keys), conversations, (record, places), finished

    def choose(self, scores: jax.Array, key: jax.Array) -> jax.Array:
        """Choose the candidate to continue with from the scores [K] of one group.

        Ties are broken by the key. Returns int32 [].
        """
        if self.continuation == "first":
            return jnp.int32(0)
        if self.continuation == "random":
            return pick(jnp.ones_like(scores, bool), key)
        return pick(scores == jnp.max(scores), key)

    def _score(self, prepared: dict, after: Games, reward: Reward, seat: jax.Array, keys: jax.Array) -> jax.Array:
        """Score each candidate for every seat, float32 [B·K, P].

        Args:
            prepared: Weights prepared for sampling.
            after: Games after the candidates' steps. `total` does not include the rewards of these steps.
            reward: Rewards of the candidates' steps.
            seat: int32 [B·K]. Seat of the candidate.
            keys: Keys for bots that have a seat.
        """
        state = after.state
        if self.team_term == "lookahead":
            state, more = self._rest_of_turn(prepared, after, seat, keys)
            reward = jax.tree.map(jnp.add, reward, more)
        if self.dense:
            return self._weigh(reward)
        ended = jax.vmap(self.game.done)(state)
        return self._weigh(jax.tree.map(jnp.add, after.total, reward)) * ended[:, None]

    def _rest_of_turn(self, prepared: dict, games: Games, seat: jax.Array, keys: jax.Array) -> tuple[Any, Reward]:
        """Finish the turn with greedy actions of the remaining agents and with bots.

        Agents act in the order of seats. A turn is over when the next seat is not after the last one that acted, or
        when the
        game ends.

        Returns:
            The states after the turn and the sum of the rewards.
        """
        paid = jax.tree.map(jnp.zeros_like, games.total)
        for _ in range(self.game.n_players - 1):
            seen = self._look(games)
            active = (seen.seat > seat) & ~jax.vmap(self.game.done)(games.state)
            action = self.team.act(
                prepared, seen.prompts, seen.lengths, seen.legal, keys, seen.policy, temperature=0.0, media=seen.media
            ).action
            failed = (action < 0) & (seen.policy >= 0)
            action = jnp.where(failed, jnp.argmax(seen.legal, axis=1), action)
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 1)
            action = self.seating.bot_actions(seen.view, seen.seat, keys, action)
            state, reward, _ = self._step(games.state, action, failed, seen)
            keep = lambda new, old, active=active: jnp.where(like(active, new), new, old)  # noqa: E731
            games = dataclasses.replace(games, state=jax.tree.map(keep, state, games.state))
            paid = jax.tree.map(lambda old, new, keep=keep: old + keep(new, jnp.zeros_like(new)), paid, reward)
            seat = jnp.where(active, seen.seat, seat)
        return games.state, paid

    def _each(self, tree: Any) -> Any:
        """Repeat row b as rows b·K … b·K + K − 1."""
        return jax.tree.map(lambda x: jnp.repeat(x, self.candidates, axis=0), tree)

    def _each_key(self, keys: jax.Array) -> jax.Array:
        """Derive keys [B·K], one per candidate, from keys [B]."""
        fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
        return fold(keys, jnp.arange(self.candidates)).reshape(-1)
