"""Rollouts of games: many at once, prompts, answers and rules together in one XLA program.

A row plays game after game: a game that ends is replaced by a fresh one, so no row ever idles. A rollout is a fixed
number of turns of every row; the games go on in the next one. Nothing leaves the device in between. All rows begin at
once, and where games take several rollouts and are equally long, every batch would hold one part of the game: so some
of the first games are given up after each rollout, and from then on a batch holds all parts.

Rows are cut into sections, fixed when the program is built (`opponents.py`): in the first all seats belong to the
learner, in the next a historical opponent sits opposite, then each bot in its own section. The learner answers in all
rows with one forward pass; the historical opponent needs a second one, for its own section only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from envs.games.game import Game, Reward
from marl_jax.agents import critics
from marl_jax.agents.seating import Seating
from marl_jax.agents.team import Team
from marl_jax.rollouts.conversations.contexts import HistoryContext, TurnContext
from marl_jax.rollouts.conversations.threads import History
from marl_jax.rollouts.conversations.turns import Finished, Turn, answer_metrics, game_metrics
from marl_jax.rollouts.opponents import OpponentPool, Opponents
from marl_jax.samples import Samples, row_length
from models.sharding import constrain

USUAL_LENGTH = 0.75
"""Of the longest game."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Games:
    """B games in progress.

    state     the game's own pytree
    episode   int32 [B]     how many games the row has finished
    turn      int32 [B]     moves made in this game
    seat      int32 [B]     the learner's seat in rows with an opponent
    symmetry  int32 [B, P]  the symmetry of the game through which each seat sees it (0: as it is)
    total     Reward [B, …] paid so far in this game
    """

    state: Any
    episode: jax.Array
    turn: jax.Array
    seat: jax.Array
    symmetry: jax.Array
    total: Reward


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GameRolloutState:
    """What survives from one rollout to the next: the games, and the historical opponents if there are any."""

    games: Games
    pool: OpponentPool | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class GameRollout:
    """The program: `init` makes the state, calling it plays `turns` turns of all games.

    rows                  B
    seating               which policy answers for which seat
    learns                for each policy, whether its samples count
    symmetry              an object with `n_symmetries`, `apply` and `map_action` (Other-Play), or None
    reward_weights        of the reward's levels: team, agent, process
    dense                 False pays everything at the end of the game
    parse_failure_reward  process reward of an answer that names no legal action; a random one is played in its place
    opponents             who sits opposite the learner; None: the learner itself, everywhere
    history_turns         answers after which a seat's conversation begins again; 0: every prompt stands alone
    history_tokens        tokens of a row of conversations; 0: see `transcripts.room`
    turn_tokens           tokens of a row of one prompt, where every prompt stands alone; 0: the longest fits
    """

    game: Game
    team: Team
    rows: int
    turns: int
    seating: Seating
    learns: tuple[bool, ...] = (True,)
    symmetry: Any = None
    reward_weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    dense: bool = True
    parse_failure_reward: float = -1.0
    opponents: Opponents | None = None
    history_turns: int = 0
    history_tokens: int = 0
    turn_tokens: int = 0

    jitted = True
    games_go_on = True  # from one rollout to the next

    @property
    def lookahead(self) -> int:
        """Turns at the end that only look ahead: each seat decides once more, which closes its stream of turns."""
        return self.game.n_players

    @property
    def context(self) -> TurnContext | HistoryContext:
        """What a turn's prompt is."""
        if not self.history_turns:
            return TurnContext(self.team, self.turn_tokens)
        turns = self.turns + self.lookahead
        history = History(self.game, self.team, self.seating, self.history_turns, turns, self.symmetry)
        return HistoryContext(history, turns, self.history_tokens)

    def init(self, key: jax.Array, params: dict) -> GameRolloutState:
        """Fresh games, and a pool whose first member are the parameters as they are."""
        pool = None if self.opponents is None else self.opponents.new_pool(self.team, params)
        return GameRolloutState(self.fresh_games(key), pool)

    def shardings(self, state: GameRolloutState, rows: Callable, like_params: Callable) -> GameRolloutState:
        """Where the state lies: games by their rows, snapshots like the parameters.

        rows, like_params  from a tree of arrays or shapes to its shardings
        """
        return GameRolloutState(rows(state.games), None if state.pool is None else like_params(state.pool))

    def fresh_games(self, key: jax.Array) -> Games:
        """B of them."""
        return jax.vmap(self._fresh)(row_keys(key, self.rows))

    def after_update(self, state: GameRolloutState, params: dict, step: int | jax.Array) -> GameRolloutState:
        """The state with a snapshot of the new parameters in the pool; called where `changes_after(step)`."""
        return dataclasses.replace(state, pool=self.opponents.add_snapshot(self.team, state.pool, params, step))

    def changes_after(self, step: int) -> bool:
        """Whether `after_update` has anything to do after this step."""
        return self.opponents is not None and self.opponents.snapshot_due(step)

    def checkpointed(self, step: int) -> None:
        """All that a rollout needs to be repeated is in its state."""

    def close(self) -> None:
        """Nothing has to be ended."""

    def __call__(
        self, params: dict, state: GameRolloutState, key: jax.Array
    ) -> tuple[Samples, GameRolloutState, dict[str, jax.Array]]:
        """Play R turns of all games and return their samples, the state after them, and metrics.

        The samples include the turns that look ahead. These have weight 0, and the games continue from before them.
        """
        samples, state, _, metrics = self.measured(params, state, key)
        return samples, state, metrics

    def measured(
        self, params: dict, state: GameRolloutState, key: jax.Array
    ) -> tuple[Samples, GameRolloutState, Finished, dict[str, jax.Array]]:
        """Play as `__call__` does, and also return the results of the games that the metrics describe."""
        samples, state, finished = self.run(params, state, key)
        return samples, state, finished, self.metrics(samples, finished)

    def run(self, params: dict, state: GameRolloutState, key: jax.Array) -> tuple[Samples, GameRolloutState, Finished]:
        """Play one rollout and return its samples, the state after it, and the results of the games."""
        play_key, meet_key = jax.random.split(key)
        if state.pool is None:
            samples, finished, games = self.play(params, state.games, play_key)
            return samples, GameRolloutState(self._stagger(games, play_key)), finished
        place, snapshot = self.opponents.meet(state.pool, meet_key)
        samples, finished, games = self.play(params, state.games, play_key, snapshot)
        pool = self.opponents.record(state.pool, place, finished)
        return samples, GameRolloutState(self._stagger(games, play_key), pool), finished

    def metrics(self, samples: Samples, finished: Finished) -> dict[str, jax.Array]:
        """Of the games that ended, the answers, and how the learner fared against its opponents."""
        played = game_metrics(finished, self.game.competitive, self.game.solvable)
        against = {} if self.opponents is None else self.opponents.metrics(finished)
        return {**played, **against, **answer_metrics(samples, finished.dropped)}

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: dict | None = None
    ) -> tuple[Samples, Finished, Games]:
        """Samples, what ended in the first R turns, and the games after R turns.

        snapshot  acting parameters of a historical opponent; read when there is a section for it
        """
        ready = self.team.prepare_for_sampling(params)
        theirs, opposite = None, 0
        if self.opponents is not None and self.opponents.sections.historical:
            theirs = self.team.prepare_for_sampling(self.team.with_snapshot(params, snapshot))
            opposite = self.opponents.sections.historical

        def step(carry, turn):
            games, kept, talk = carry
            kept = jax.tree.map(lambda now, old: jnp.where(turn == self.turns, now, old), games, kept)
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            games, talk, record, finished = self._turn(ready, theirs, games, talk, keys)
            played, places = record
            played = dataclasses.replace(played, counts=played.counts * (turn < self.turns))
            return (games, kept, talk), (played, places, finished)

        talk = self.context.begin(self.rows, opposite)
        turns = jnp.arange(self.turns + self.lookahead)
        (_, kept, talk), (played, places, finished) = jax.lax.scan(step, (games, games, talk), turns)
        samples = self.context.samples(talk, played, places, lookahead=self.lookahead)
        finished = dataclasses.replace(finished, dropped=self.context.dropped(played, places))
        return samples, jax.tree.map(lambda x: x[: self.turns], finished), kept

    def _turn(self, ready, theirs, games: Games, talk, keys):
        """One move in every row, and a fresh game where one ended."""
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        games, talk, record, finished = self._move(ready, theirs, games, talk, act_keys, other_keys)
        talk = self.context.restart(talk, finished.ended)
        return self._restart(games, finished.ended, reset_keys), talk, record, finished

    def _move(self, ready, theirs, games: Games, talk, act_keys, other_keys):
        """One move in every row: the games, the conversations, (what was played, where it was written), what ended."""
        seen, context = self._look(games), self.context
        central = self._central_views(seen) if self.team.critic == "central" else None
        asked = context.read(talk, seen)
        decision, talk = context.act(
            ready, talk, asked, act_keys, legal=seen.legal, policy=seen.policy, central=central
        )
        action = self.team.playable(decision.action, seen.legal, other_keys)
        failed = (decision.action < 0) & (seen.policy >= 0)
        action = self.seating.bot_actions(seen.view, seen.seat, other_keys, action)
        policy, given = seen.policy, decision
        for bot, rows in () if self.opponents is None else self.opponents.sections.slices():
            part, part_asked = jax.tree.map(lambda x, r=rows: x[r], (seen, asked))
            opposite = (part.seat != games.seat[rows]) & (self.seating.policy(part.seat) >= 0)
            if bot is None:
                other, talk = context.act_opposite(theirs, talk, part_asked, part, rows.start, act_keys[rows])
                given = jax.tree.map(
                    lambda all_, own, r=rows, o=opposite: all_.at[r].set(jnp.where(like(o, own), own, all_[r])),
                    given, other,
                )  # fmt: skip
                other = self.team.playable(other.action, part.legal, other_keys[rows])
            else:
                other = jax.vmap(bot.act)(part.view, other_keys[rows])
            action = action.at[rows].set(jnp.where(opposite, other, action[rows]))
            policy = policy.at[rows].set(jnp.where(opposite, -1, policy[rows]))
            failed = failed.at[rows].set(failed[rows] & ~opposite)

        talk, places = context.say(talk, asked, given, seen.policy)
        state, reward, move = self._step(games.state, action, failed, seen)
        ended = jax.vmap(self.game.done)(state)
        total = jax.tree.map(jnp.add, games.total, reward)
        paid = self._weigh(reward) if self.dense else self._weigh(total) * ended[:, None]
        record = self._record(games, seen, decision, policy, paid, ended, central)
        finished = Finished(ended, total, games.turn + 1, games.seat)
        after = dataclasses.replace(games, state=state, turn=games.turn + 1, total=total)
        return (
            after,
            context.observe(talk, games.state, move, after.state, games.turn, games.symmetry),
            (record, places),
            finished,
        )

    @jax.named_scope("prompt")
    def _look(self, games: Games) -> Seen:
        """What the movers of all rows see."""
        seat = jax.vmap(self.game.player)(games.state)
        through = jnp.take_along_axis(games.symmetry, seat[:, None], axis=1)[:, 0]
        policy = self.seating.policy(seat, games.turn // self.game.n_players)
        view = games.state if self.symmetry is None else jax.vmap(self.symmetry.apply)(games.state, through)
        return look(self.game, self.team, view, seat, policy, through)

    @jax.named_scope("rules")
    def _step(self, state, action, failed, seen: Seen):
        """The states after the actions, what these paid (an answer that named none has its price), the moves made."""
        move = action if self.symmetry is None else jax.vmap(self._unmap)(action, seen.through)
        state, reward = jax.vmap(self.game.step)(state, move)
        penalty = self.parse_failure_reward * failed[:, None] * jax.nn.one_hot(seen.seat, self.game.n_players)
        return state, reward._replace(process=reward.process + penalty), move

    def _restart(self, games: Games, ended: jax.Array, keys: jax.Array) -> Games:
        """The games, with a fresh one in every row that ended."""
        fresh = dataclasses.replace(jax.vmap(self._fresh)(keys), episode=games.episode + 1)
        return jax.tree.map(lambda a, b: jnp.where(like(ended, a), a, b), fresh, games)

    def _stagger(self, games: Games, key: jax.Array) -> Games:
        """The games between two rollouts, with fresh ones in place of some rows' first, which are not learned from.

        Of n rollouts that a game usually takes, a row gives its first game up after the first, second, … or nth.
        """
        n = round(USUAL_LENGTH * self.game.max_turns / self.turns) if self.games_go_on else 1
        if n < 2:
            return games
        due = self.turns * (1 + jnp.arange(self.rows) % n)
        keys = row_keys(jax.random.fold_in(key, self.turns + self.lookahead), self.rows)
        return self._restart(games, (games.episode == 0) & (games.turn >= due), keys)

    def _central_views(self, seen: Seen):
        """What every seat sees, the mover last, as one text each: tokens [B, C] and lengths [B]."""
        n = self.game.n_players
        prompt = self.team.backbones[0].prompt

        def one(view, seat):
            seats = (seat + 1 + jnp.arange(n)) % n
            tokens, lengths = jax.vmap(lambda seat: prompt.opening(view, seat))(seats)
            return critics.join_views(tokens, lengths, row_length(n * prompt.opening_length, 1))

        return jax.vmap(one)(seen.view, seen.seat)

    # ------------------------------------------------------------------------------------------- one row, unbatched

    def _fresh(self, key) -> Games:
        reset_key, seat_key, symmetry_key = jax.random.split(key, 3)
        n = self.game.n_players
        zero = jnp.zeros((), jnp.int32)
        seat = zero
        if self.opponents is not None:
            own = jnp.asarray(self.seating.open_seats(), jnp.int32)
            seat = own[jax.random.randint(seat_key, (), 0, len(own))]
        through = jnp.zeros((n,), jnp.int32)
        if self.symmetry is not None:
            through = jax.random.randint(symmetry_key, (n,), 0, self.symmetry.n_symmetries)
        total = Reward(jnp.zeros(()), jnp.zeros((n,)), jnp.zeros((n,)))
        return Games(self.game.reset(reset_key), episode=zero, turn=zero, seat=seat, symmetry=through, total=total)

    def _unmap(self, action, through):
        """The action in the game that is seen as `action` through a symmetry."""
        seen_as = jax.vmap(lambda a: self.symmetry.map_action(a, through))(jnp.arange(self.game.n_actions))
        return jnp.argmax(seen_as == action).astype(jnp.int32)

    # ------------------------------------------------------------------------------------------------------ records

    def _weigh(self, reward: Reward) -> jax.Array:
        """float32 [B, P] from the three levels."""
        team, agent, process = self.reward_weights
        return team * reward.team[:, None] + agent * reward.agent + process * reward.process

    def _counts(self, policy: jax.Array) -> jax.Array:
        """float32 [...]: whether answers of these policies contribute to the loss."""
        return (jnp.asarray((*self.learns, False))[policy] & (policy >= 0)).astype(jnp.float32)

    def _record(self, games: Games, seen: Seen, decision, policy, paid, ended, central=None, counts=None) -> Turn:
        prompts = (seen.prompts, seen.lengths, seen.skip) if self.context.records_prompts else (None, None, None)
        return Turn(
            *prompts,
            seat=seen.seat,
            policy=policy,
            episode=games.episode,
            turn=games.turn,
            decision=decision,
            legal=seen.legal,
            rewards=paid,
            ends=ended,
            counts=self._counts(policy) if counts is None else counts,
            central=central,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seen:
    """Of every row: who moves, through which symmetry, its policy, what it sees, the prompt, what is legal.

    seat, through, policy   int32 [B]
    view                    the state as the mover sees it
    prompts                 int32 [B, T], of lengths int32 [B], behind a prefix of `skip` int32 [B] tokens
    legal                   bool [B, A]
    """

    seat: jax.Array
    through: jax.Array | None
    policy: jax.Array
    view: Any
    prompts: jax.Array
    lengths: jax.Array
    skip: jax.Array
    legal: jax.Array


def look(
    game: Game, team: Team, view: Any, seat: jax.Array, policy: jax.Array, through: jax.Array | None = None
) -> Seen:
    """What the movers of B games see, with prompts that stand alone in rows with room for an answer."""
    prompts, lengths = jax.vmap(team.prompts.opening)(view, seat, policy)
    room = row_length(prompts.shape[1], team.width) - prompts.shape[1]
    prompts = constrain(jnp.pad(prompts, ((0, 0), (0, room))), "BT")
    legal = jax.vmap(game.legal)(view)
    return Seen(seat, through, policy, view, prompts, lengths, team.prompts.skip(policy), legal)


def row_keys(key: jax.Array, rows: int) -> jax.Array:
    """A key for every row, [B], which does not depend on how many there are."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))


def like(flags: jax.Array, x: jax.Array) -> jax.Array:
    """bool [B] shaped to select among rows of x [B, …]."""
    return flags.reshape(-1, *(1,) * (x.ndim - 1))
