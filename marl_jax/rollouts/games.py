"""Rollouts of games: prompts, sampling and rules of many games in one XLA program.

Every row plays one game after another. A game that ends is replaced by a new one, so that no row idles. A rollout plays
a fixed number of turns in every row, and unfinished games continue in the next rollout. Nothing leaves the device in
between. All rows start at the same time, so if games take several rollouts and have similar lengths, every batch would
cover the same phase of the game. Therefore some rows abandon their first game between rollouts. From then on, a batch
covers all phases.

Rows are divided into sections when the program is built (see `opponents.py`). In the first section the learner has all
seats. In the next it plays against a historical opponent, and then against each bot in a separate section. The learner
samples for all rows in one forward pass. The historical opponent needs a second one, for its section only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from envs.games.game import Game, Reward
from envs.games.roles import puzzle_state
from marl_jax.agents import critics, messages
from marl_jax.agents.seating import Seating
from marl_jax.agents.team import Team
from marl_jax.rollouts.conversations.contexts import Context, HistoryContext, TurnContext
from marl_jax.rollouts.conversations.threads import History
from marl_jax.rollouts.conversations.turns import Finished, Turn, answer_metrics, game_metrics
from marl_jax.rollouts.opponents import OpponentPool, Opponents
from marl_jax.samples import Samples, row_length
from models.sharding import constrain

USUAL_LENGTH = 0.75
"""Typical length of a game, relative to the longest one."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Games:
    """B games in progress.

    Attributes:
        state: State of the games, a pytree of arrays [B, …].
        episode: int32 [B]. Number of games that the row has finished.
        turn: int32 [B]. Number of moves made in the current game.
        seat: int32 [B]. Seat of the learner in rows with an opponent.
        symmetry: int32 [B, P]. Symmetry through which each seat sees the game; 0 is the identity.
        total: Sum of the rewards of the current game so far, arrays [B, …].
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
    """State kept between rollouts: the games and the pool of historical opponents, if any."""

    games: Games
    pool: OpponentPool | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class GameRollout:
    """A jitted rollout that plays a fixed number of turns of every game.

    Attributes:
        game: Rules of the game.
        team: Policies that learn or act.
        rows: Number of games, B.
        turns: Number of turns of a rollout, R.
        seating: Assignment of policies to seats.
        learns: Whether the samples of each policy contribute to the loss.
        symmetry: Object with `n_symmetries`, `apply` and `map_action` (Other-Play), or None.
        reward_weights: Weights of the team, agent and process levels of the reward.
        dense: Whether rewards are given at every step; otherwise their sum is given at the end of the game.
        parse_failure_reward: Process reward of a completion that names no legal action. A random action is played
            instead.
        opponents: Players opposite the learner; None if the learner only plays itself.
        history_turns: Number of completions after which the conversation of a seat starts again; 0 if every prompt is
            self-contained.
        history_tokens: Row length with conversations; 0 chooses it with `transcripts.room`.
        turn_tokens: Row length with self-contained prompts; 0 fits the longest prompt.
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

    jitted: ClassVar[bool] = True
    games_go_on: ClassVar[bool] = True  # unfinished games continue in the next rollout

    @property
    def lookahead(self) -> int:
        """Number of extra turns at the end that close the turn stream of every seat."""
        return self.game.n_players

    @property
    def context(self) -> Context:
        """Context that forms the prompts of turns."""
        if not self.history_turns:
            return TurnContext(self.team, self.turn_tokens)
        turns = self.turns + self.lookahead
        history = History(self.game, self.team, self.seating, self.history_turns, turns, self.symmetry)
        return HistoryContext(history, turns, self.history_tokens)

    def init(self, key: jax.Array, params: dict) -> GameRolloutState:
        """Start new games and a pool that contains the current parameters."""
        pool = None if self.opponents is None else self.opponents.new_pool(self.team, params)
        return GameRolloutState(self.fresh_games(key), pool)

    def shardings(self, state: GameRolloutState, rows: Callable, like_params: Callable) -> GameRolloutState:
        """Return the shardings of a state: games by row, snapshots like the parameters."""
        return GameRolloutState(rows(state.games), None if state.pool is None else like_params(state.pool))

    def fresh_games(self, key: jax.Array) -> Games:
        """Start B new games."""
        return jax.vmap(self._fresh)(row_keys(key, self.rows))

    def after_update(self, state: GameRolloutState, params: dict, step: int | jax.Array) -> GameRolloutState:
        """Add a snapshot of the new parameters to the pool, if `changes_after(step)`."""
        assert self.opponents is not None and state.pool is not None
        return dataclasses.replace(state, pool=self.opponents.add_snapshot(self.team, state.pool, params, step))

    def changes_after(self, step: int) -> bool:
        """Return whether `after_update` changes the state after this step."""
        return self.opponents is not None and self.opponents.snapshot_due(step)

    def checkpointed(self, step: int) -> None:
        """Do nothing: the state is all that is needed to repeat a rollout."""

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""

    def __call__(
        self, params: dict, state: GameRolloutState, key: jax.Array
    ) -> tuple[Samples, GameRolloutState, dict[str, jax.Array]]:
        """Play R turns of all games and return samples, the next state and metrics.

        The samples include the lookahead turns. These have weight 0, and the games continue from the state before them.
        """
        samples, state, _, metrics = self.measured(params, state, key)
        return samples, state, metrics

    def measured(
        self, params: dict, state: GameRolloutState, key: jax.Array
    ) -> tuple[Samples, GameRolloutState, Finished, dict[str, jax.Array]]:
        """Play a rollout and also return the results that the metrics are computed from."""
        samples, state, finished = self.run(params, state, key)
        return samples, state, finished, self.metrics(samples, finished)

    def run(self, params: dict, state: GameRolloutState, key: jax.Array) -> tuple[Samples, GameRolloutState, Finished]:
        """Play one rollout and return its samples, the next state and the results of games."""
        play_key, meet_key = jax.random.split(key)
        if state.pool is None:
            samples, finished, games = self.play(params, state.games, play_key)
            return samples, GameRolloutState(self._stagger(games, play_key)), finished
        assert self.opponents is not None
        place, snapshot = self.opponents.meet(state.pool, meet_key)
        samples, finished, games = self.play(params, state.games, play_key, snapshot)
        pool = self.opponents.record(state.pool, place, finished)
        return samples, GameRolloutState(self._stagger(games, play_key), pool), finished

    def metrics(self, samples: Samples, finished: Finished) -> dict[str, jax.Array]:
        """Compute metrics of finished games, of completions and of the results against opponents."""
        played = game_metrics(finished, self.game.seat_names, self.game.competitive, self.game.solvable)
        against = {} if self.opponents is None else self.opponents.metrics(finished)
        return {**played, **against, **answer_metrics(samples, finished.dropped)}

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: dict | None = None
    ) -> tuple[Samples, Finished, Games]:
        """Play the turns of a rollout.

        Args:
            params: Weights of every backbone.
            games: Games to continue.
            key: Source of randomness.
            snapshot: Weights of a historical opponent, required if there is a section for it.

        Returns:
            The samples, the results of games that ended in the first R turns, and the games after R turns.
        """
        prepared = self.team.prepare_for_sampling(params)
        opponent, opposite = None, 0
        if self.opponents is not None and self.opponents.sections.historical:
            assert snapshot is not None
            opponent = self.team.prepare_for_sampling(self.team.with_snapshot(params, snapshot))
            opposite = self.opponents.sections.historical

        def step(carry, turn):
            games, kept, conversations = carry
            kept = jax.tree.map(lambda now, old: jnp.where(turn == self.turns, now, old), games, kept)
            keys = row_keys(jax.random.fold_in(key, turn), self.rows)
            games, conversations, record, finished = self._turn(prepared, opponent, games, conversations, keys)
            played, places = record
            played = dataclasses.replace(played, counts=played.counts * (turn < self.turns))
            return (games, kept, conversations), (played, places, finished)

        conversations = self.context.begin(self.rows, opposite)
        turns = jnp.arange(self.turns + self.lookahead)
        (_, kept, conversations), (played, places, finished) = jax.lax.scan(step, (games, games, conversations), turns)
        samples = self.context.samples(conversations, played, places, lookahead=self.lookahead)
        finished = dataclasses.replace(finished, dropped=self.context.dropped(played, places))
        return samples, jax.tree.map(lambda x: x[: self.turns], finished), kept

    def _turn(self, prepared, opponent, games: Games, conversations, keys):
        """Make one move in every row and replace games that end."""
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        games, conversations, record, finished = self._move(
            prepared, opponent, games, conversations, act_keys, other_keys
        )
        conversations = self.context.restart(conversations, finished.ended)
        return self._restart(games, finished.ended, reset_keys), conversations, record, finished

    def _move(self, prepared, opponent, games: Games, conversations, act_keys, other_keys):
        """Make one move in every row.

        Returns:
            The games, the conversations, the recorded turn with its position in the rows, and the results of games that
            ended.
        """
        seen, context = self._look(games), self.context
        central = self._central_views(seen) if self.team.critic in critics.CENTRAL else None
        inputs = context.read(conversations, seen)
        decision, conversations = context.act(
            prepared, conversations, inputs, act_keys, legal=seen.legal, policy=seen.policy, central=central
        )
        action = self.team.playable(decision.action, seen.legal, other_keys)
        failed = (decision.action < 0) & (seen.policy >= 0)
        action = self.seating.bot_actions(seen.view, seen.seat, other_keys, action)
        policy, given, sides = seen.policy, decision, jnp.asarray(self.game.sides)
        for bot, rows in () if self.opponents is None else self.opponents.sections.slices():
            part, part_inputs = jax.tree.map(lambda x, r=rows: x[r], (seen, inputs))
            opposite = (sides[part.seat] != sides[games.seat[rows]]) & (self.seating.policy(part.seat) >= 0)
            if bot is None:
                other, conversations = context.act_opposite(
                    opponent, conversations, part_inputs, part, rows.start, act_keys[rows]
                )
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

        conversations, places = context.say(conversations, inputs, given, seen.policy)
        state, reward, move = self._step(games.state, action, failed, seen)
        ended = jax.vmap(self.game.done)(state)
        total = jax.tree.map(jnp.add, games.total, reward)
        paid = self._weigh(reward) if self.dense else self._weigh(total) * ended[:, None]
        record = self._record(games, seen, decision, policy, paid, ended, central)
        level = puzzle_state(games.state).level if self.game.has_levels else None
        finished = Finished(ended, total, games.turn + 1, games.seat, level=level)
        after = dataclasses.replace(games, state=state, turn=games.turn + 1, total=total)
        return (
            after,
            context.observe(conversations, games.state, move, after.state, games.turn, games.symmetry),
            (record, places),
            finished,
        )

    @jax.named_scope("prompt")
    def _look(self, games: Games) -> Seen:
        """Return the observations of the acting seats of all rows."""
        seat = jax.vmap(self.game.player)(games.state)
        through = jnp.take_along_axis(games.symmetry, seat[:, None], axis=1)[:, 0]
        policy = self.seating.policy(seat, games.turn // self.game.n_players)
        view = games.state if self.symmetry is None else jax.vmap(self.symmetry.apply)(games.state, through)
        return look(self.game, self.team, view, seat, policy, through)

    @jax.named_scope("rules")
    def _step(self, state, action, failed, seen: Seen):
        """Apply the actions and return the next states, the rewards and the moves.

        Completions that named no legal action get `parse_failure_reward`.
        """
        move = action if self.symmetry is None else jax.vmap(self._unmap)(action, seen.through)
        state, reward = jax.vmap(self.game.step)(state, move)
        penalty = self.parse_failure_reward * failed[:, None] * jax.nn.one_hot(seen.seat, self.game.n_players)
        return state, reward._replace(process=reward.process + penalty), move

    def _restart(self, games: Games, ended: jax.Array, keys: jax.Array) -> Games:
        """Replace the games that ended by new ones."""
        fresh = dataclasses.replace(jax.vmap(self._fresh)(keys), episode=games.episode + 1)
        return jax.tree.map(lambda a, b: jnp.where(like(ended, a), a, b), fresh, games)

    def _stagger(self, games: Games, key: jax.Array) -> Games:
        """Replace the first game of some rows by a new one between two rollouts.

        If a game usually takes n rollouts, each row abandons its first game after the first, second, … or nth rollout.
        Abandoned games are not learned from.
        """
        n = round(USUAL_LENGTH * self.game.max_turns / self.turns) if self.games_go_on else 1
        if n < 2:
            return games
        due = self.turns * (1 + jnp.arange(self.rows) % n)
        keys = row_keys(jax.random.fold_in(key, self.turns + self.lookahead), self.rows)
        return self._restart(games, (games.episode == 0) & (games.turn >= due), keys)

    def _central_views(self, seen: Seen):
        """Join the observations of all seats, with the acting seat last.

        In simultaneous rounds, there is room for the names of the others' actions, which are not known yet.

        Returns:
            Tokens int32 [B, C] and lengths int32 [B].
        """
        n = self.game.n_players
        prompt = self.team.backbones[0].prompt
        assert prompt is not None
        width = central_length(self.game, self.team.critic, prompt.opening_length, self.team.width)

        def one(view, seat):
            seats = (seat + 1 + jnp.arange(n)) % n
            tokens, lengths = jax.vmap(lambda seat: prompt.opening(view, seat))(seats)
            return critics.join_views(tokens, lengths, width)

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
        """Return the action of the game that a seat sees as `action` through a symmetry."""
        seen_as = jax.vmap(lambda a: self.symmetry.map_action(a, through))(jnp.arange(self.game.n_actions))
        return jnp.argmax(seen_as == action).astype(jnp.int32)

    # ------------------------------------------------------------------------------------------------------ records

    def _weigh(self, reward: Reward) -> jax.Array:
        """Sum the three levels of the reward with their weights, float32 [B, P]."""
        team, agent, process = self.reward_weights
        return team * reward.team[:, None] + agent * reward.agent + process * reward.process

    def _counts(self, policy: jax.Array) -> jax.Array:
        """Return whether completions of these policies contribute to the loss, float32."""
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
            media=seen.media if self.context.records_prompts else None,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seen:
    """Observations of the acting seats of B games.

    Attributes:
        seat: int32 [B]. Seat that acts.
        through: int32 [B]. Symmetry through which the seat sees the game.
        policy: int32 [B]. Policy of the seat; -1 for any other player.
        view: State of the game as the seat sees it.
        prompts: int32 [B, T]. Prompts without the common prefix.
        lengths: int32 [B]. Lengths of the prompts.
        skip: int32 [B]. Length of the common prefix.
        legal: bool [B, A]. Legal actions.
        media: [B, C]. Codes of the media in the prompts or prompts of speakers; None for text.
    """

    seat: jax.Array
    through: jax.Array | None
    policy: jax.Array
    view: Any
    prompts: jax.Array
    lengths: jax.Array
    skip: jax.Array
    legal: jax.Array
    media: jax.Array | None = None


def look(
    game: Game, team: Team, view: Any, seat: jax.Array, policy: jax.Array, through: jax.Array | None = None
) -> Seen:
    """Observe B games with self-contained prompts, in rows with room for a completion."""
    opening = jax.vmap(team.prompts.opening)
    prompts, lengths = opening(view, seat, policy)
    legal, medium = jax.vmap(game.legal)(view), team.medium
    media = None if medium is None else jax.vmap(medium.codes)(view, seat)
    if team.message:
        speaker = messages.speaker_of(game, seat)
        media = messages.heard(team.message, *opening(view, jnp.maximum(speaker, 0), policy), speaker >= 0)
        lengths = lengths + team.message_tokens * (speaker >= 0)
    room = row_length(prompts.shape[1] + team.message_tokens, team.width) - prompts.shape[1]
    prompts = constrain(jnp.pad(prompts, ((0, 0), (0, room))), "BT")
    return Seen(seat, through, policy, view, prompts, lengths, team.prompts.skip(policy), legal, media)


def central_length(game: Game, critic: str, opening: int, width: int) -> int:
    """Return the length of the input of a central critic; 0 for other critics.

    Args:
        game: The game.
        critic: Kind of critic.
        opening: Maximum length of the prompt of a seat.
        width: Maximum length of the name of an action.
    """
    if critic not in critics.CENTRAL:
        return 0
    names = game.n_players - 1 if game.simultaneous and critic == "q_central" else 0
    return row_length(game.n_players * opening + names * width, 1)


def row_keys(key: jax.Array, rows: int) -> jax.Array:
    """Return a key for every row, independent of the number of rows."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))


def like(flags: jax.Array, x: jax.Array) -> jax.Array:
    """Reshape flags bool [B] to broadcast against rows of `x` [B, …]."""
    return flags.reshape(-1, *(1,) * (x.ndim - 1))
