"""The rollout of AT-GRPO: at every turn K answers to one prompt, all tried, all scored, one continued.

Axis letters: K candidates; a row of samples is a prompt with its K candidates.

A prompt is read once and answered K times. The rules are pure, so each answer is tried on its own copy of the position;
the K answers are one group, whose key is the episode, the agent and the turn. The game then continues from one of them,
and the next agent reads what that one did. All of it is one XLA program, as in `games.py`, whose games, prompts and
records these are.
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
    """The rollout of AT-GRPO, called as `GameRollout` is, without opponents.

    The games continue from one rollout to the next, also between those that refill a batch, so that groups from all
    parts of a game take the place of others.

    candidates    K
    continuation  the candidate a game continues with: "best", "random", "first"; of bots and frozen policies the first
    team_term     what a candidate is scored by: "immediate", what its own step pays; "lookahead", also what the rest of
                  the turn pays when the agents that still have to move in it give their most likely answers
    """

    candidates: int = 4
    continuation: str = "best"
    team_term: str = "immediate"

    lookahead = 0

    @property
    def units(self) -> Units:
        """One group; with history all groups of a game, whose rows are the conversations of its seats."""
        if self.history_turns:
            return Units(self.rows, self.game.n_players, groups=1)
        return Units(self.rows * self.turns, 1, groups=1, by_policy=True)

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: None = None
    ) -> tuple[Samples, Finished, Games]:
        """Samples of R·B rows, what ended on the way that was taken [R, B, …], and the games after R turns."""
        ready = self.team.prepare_for_sampling(params)

        def step(carry, turn):
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            games, talk, record, finished = self.branch(ready, *carry, keys)
            return (games, talk), (*record, finished)

        start = (games, self.context.begin(self.rows))
        (games, talk), (played, places, finished) = jax.lax.scan(step, start, jnp.arange(self.turns))
        finished = dataclasses.replace(finished, dropped=self.context.dropped(played, places))
        return self.context.samples(talk, played, places, self.candidates), finished, games

    def branch(self, ready: dict, games: Games, talk, keys: jax.Array):
        """One turn of every row: the games after one of the candidates, conversations, what was played, what ended."""
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        seen, context = self._look(games), self.context
        learns = self._counts(seen.policy) > 0
        asked = context.read(talk, seen)
        decision, talk = context.act(
            ready, talk, asked, self._each_key(act_keys), legal=seen.legal, policy=seen.policy,
            candidates=self.candidates,
        )  # fmt: skip

        # From here to the choice every array has B·K rows.
        row = jnp.arange(self.rows)
        before, each = self._each((games, seen))
        action = self.team.playable(decision.action, each.legal, self._each_key(other_keys))
        action = self.seating.bot_actions(each.view, each.seat, self._each_key(other_keys), action)
        failed = (decision.action < 0) & (each.policy >= 0)
        state, reward, move = self._step(before.state, action, failed, each)
        ended = jax.vmap(self.game.done)(state)
        after = dataclasses.replace(before, state=state)
        paid = self._score(ready, after, reward, each.seat, self._each_key(other_keys))
        record = self._record(
            games, seen, decision, seen.policy, paid, ended, counts=self._each(self._counts(seen.policy))
        )

        mine = jnp.take_along_axis(paid, each.seat[:, None], axis=1).reshape(-1, self.candidates)
        chosen = jax.vmap(self.choose)(mine, jax.vmap(jax.random.fold_in, (0, None))(other_keys, self.candidates))
        # A bot or a frozen policy plays as it would outside of a tree: the best of K of its moves is another player's.
        chosen = jnp.where(learns, chosen, 0)
        taken = row * self.candidates + chosen
        state, reward, ended, move, given = jax.tree.map(lambda x: x[taken], (state, reward, ended, move, decision))
        talk, places = context.say(talk, asked, given, seen.policy)
        places = None if places is None else dataclasses.replace(places, kept=chosen)
        total = jax.tree.map(jnp.add, games.total, reward)
        finished = Finished(ended, total, games.turn + 1, games.seat)
        gone_on = dataclasses.replace(games, state=state, turn=games.turn + 1, total=total)
        talk = context.restart(
            context.observe(talk, games.state, move, gone_on.state, games.turn, games.symmetry), ended
        )
        return self._restart(gone_on, ended, reset_keys), talk, (record, places), finished

    def choose(self, scores: jax.Array, key: jax.Array) -> jax.Array:
        """The candidate to go on with, by the scores [K] of one group: int32 []; ties are broken by the key."""
        if self.continuation == "first":
            return jnp.int32(0)
        if self.continuation == "random":
            return pick(jnp.ones_like(scores, bool), key)
        return pick(scores == jnp.max(scores), key)

    def _score(self, ready: dict, after: Games, reward: Reward, seat: jax.Array, keys: jax.Array) -> jax.Array:
        """float32 [B·K, P]: what each candidate brought to every seat, levels weighed and added.

        after   the games behind the candidates; `total` is still what was paid before
        reward  of the candidates' own steps
        keys    for bots that have a seat
        """
        state = after.state
        if self.team_term == "lookahead":
            state, more = self._rest_of_turn(ready, after, seat, keys)
            reward = jax.tree.map(jnp.add, reward, more)
        if self.dense:
            return self._weigh(reward)
        ended = jax.vmap(self.game.done)(state)
        return self._weigh(jax.tree.map(jnp.add, after.total, reward)) * ended[:, None]

    def _rest_of_turn(self, ready: dict, games: Games, seat: jax.Array, keys: jax.Array) -> tuple[Any, Reward]:
        """The turn finished by the most likely answers of the others (and by bots), who move in the order of seats.

        A turn is over when the next seat is not a later one than the last that moved, or the game is.
        """
        paid = jax.tree.map(jnp.zeros_like, games.total)
        for _ in range(self.game.n_players - 1):
            seen = self._look(games)
            goes_on = (seen.seat > seat) & ~jax.vmap(self.game.done)(games.state)
            action = self.team.act(
                ready, seen.prompts, seen.lengths, seen.legal, keys, seen.policy, temperature=0.0
            ).action
            failed = (action < 0) & (seen.policy >= 0)
            action = jnp.where(failed, jnp.argmax(seen.legal, axis=1), action)
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 1)
            action = self.seating.bot_actions(seen.view, seen.seat, keys, action)
            state, reward, _ = self._step(games.state, action, failed, seen)
            keep = lambda new, old, goes_on=goes_on: jnp.where(like(goes_on, new), new, old)  # noqa: E731
            games = dataclasses.replace(games, state=jax.tree.map(keep, state, games.state))
            paid = jax.tree.map(lambda old, new, keep=keep: old + keep(new, jnp.zeros_like(new)), paid, reward)
            seat = jnp.where(goes_on, seen.seat, seat)
        return games.state, paid

    def _each(self, tree: Any) -> Any:
        """Row b as rows b·K … b·K + K − 1."""
        return jax.tree.map(lambda x: jnp.repeat(x, self.candidates, axis=0), tree)

    def _each_key(self, keys: jax.Array) -> jax.Array:
        """Keys [B] -> [B·K], one for every candidate."""
        fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
        return fold(keys, jnp.arange(self.candidates)).reshape(-1)
