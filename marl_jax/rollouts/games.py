"""Rollouts: many games at once, prompts, answers and rules together in one XLA program.

A row plays game after game: a game that ends is replaced by a fresh one, so no row ever idles. A rollout is a fixed
number of turns of every row; the games go on in the next one. Nothing leaves the device in between.

Rows are cut into sections, fixed when the program is built: in the first all seats belong to the learner, in the next
a past self sits opposite, then each bot in its own section. The learner answers in all rows with one forward pass; the
past self needs a second one, for its own section only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import Bot, pick
from envs.games.game import Game, Reward
from envs.games.text import Prompt
from marl_jax.agents import critics
from marl_jax.agents.policy import Decision, Policy
from marl_jax.agents.team import Prompts, Team
from marl_jax.rollouts.opponents import seat_actions
from marl_jax.samples import Samples, join_answer, row_length
from models.sharding import constrain


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Games:
    """B games in progress: what survives from one rollout to the next.

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
class Finished:
    """What became of the games that ended, arrays [R, B, …].

    ended     bool           a game of this row ended with this turn; the rest counts only where it did
    total     Reward         what it paid in all, by level
    length    int32          its moves
    seat      int32          the learner's seat
    """

    ended: jax.Array
    total: Reward
    length: jax.Array
    seat: jax.Array


@dataclasses.dataclass(frozen=True)
class Sections:
    """Rows by who sits opposite the learner; all sizes are static.

    own   rows in which the learner has all seats
    past  rows with a past self
    bots  (bot, rows) for each scripted opponent
    """

    own: int
    past: int = 0
    bots: tuple[tuple[Bot, int], ...] = ()

    @property
    def rows(self) -> int:
        return self.own + self.past + sum(n for _, n in self.bots)

    def slices(self) -> list[tuple[Bot | None, slice]]:
        """The rows of every opponent: the past self (None) first, then the bots."""
        found, start = [], self.own
        for who, n in ((None, self.past), *self.bots):
            if n:
                found.append((who, slice(start, start + n)))
            start += n
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Rollout:
    """The program: `start` makes the games, calling it plays `turns` turns of all of them.

    policy       one, or a team of several models (`team.py`), which is asked the same way
    seat_policy  for each seat, the number of the policy that plays it; -1 where a bot does
    learns       for each policy, whether its samples count
    symmetry     a module with `n_symmetries`, `apply` and `map_action` (Other-Play), or None
    weights      of the reward's levels: team, agent, process
    dense        False pays everything at the end of the game
    unusable     process reward of an answer that names no legal action; a random one is played in its place
    seat_bots    for each seat, the bot to whom it belongs for good, or None; left out, there are none
    """

    game: Game
    prompt: Prompt | Prompts
    policy: Policy | Team
    sections: Sections
    turns: int
    seat_policy: tuple[int, ...]
    learns: tuple[bool, ...] = (True,)
    symmetry: Any = None
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    dense: bool = True
    parse_failure_reward: float = -1.0
    seat_bots: tuple[Bot | None, ...] = ()

    def start(self, key: jax.Array) -> Games:
        """Fresh games."""
        return jax.vmap(self._fresh)(row_keys(key, self.sections.rows))

    def __call__(
        self, weights: dict, games: Games, key: jax.Array, past: dict | None = None
    ) -> tuple[Samples, Finished, Games]:
        """Samples [R + P, B, …], what ended in the first R turns, and the games after R turns.

        The last P turns look ahead: each seat decides once more, which closes the streams of `advantages.gae`. They
        have weight 0, and the games go on from before them.

        weights  of the learner: {"model", "adapters", "critic"}, or of a team, that of each of its models by name
        past     of a past self: {"model"} or {"adapters"}, or of a team; read when there is a section for it
        """
        fast = self.policy.ready(weights)
        past_fast = self.policy.ready(self.policy.as_player(weights, past)) if self.sections.past else None
        ahead = self.game.n_players

        def step(carry, turn):
            games, kept = carry
            kept = jax.tree.map(lambda now, old: jnp.where(turn == self.turns, now, old), games, kept)
            keys = row_keys(jax.random.fold_in(key, turn), self.sections.rows)
            games, samples, finished = self._turn(fast, past_fast, games, keys)
            samples = samples.replace(weights=samples.weights * (turn < self.turns))
            return (games, kept), (samples, finished)

        (_, kept), (samples, finished) = jax.lax.scan(step, (games, games), jnp.arange(self.turns + ahead))
        return samples, jax.tree.map(lambda x: x[: self.turns], finished), kept

    def _turn(self, fast, past_fast, games: Games, keys):
        """One move in every row, and a fresh game where one ended."""
        act_keys, other_keys, reset_keys = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(keys), 1, 0)
        games, samples, finished = self._move(fast, past_fast, games, act_keys, other_keys)
        return self._restart(games, finished.ended, reset_keys), samples, finished

    def _move(self, fast, past_fast, games: Games, act_keys, other_keys):
        """One move in every row."""
        player, through, view, prompts, lengths, legal = self._look(games)
        central = jax.vmap(self._central_view)(view, player) if self.policy.critic == "central" else None
        who = jnp.asarray(self.seat_policy, jnp.int32)[player]

        decision = self.policy.act(fast, prompts, lengths, legal, act_keys, who, central=central)
        action, failed = decision.action, decision.action < 0
        if self.policy.free:
            action = jnp.where(failed, jax.vmap(pick)(legal, other_keys), action)
        action, failed = seat_actions(self.seat_bots, view, player, other_keys, action), failed & (who >= 0)
        for bot, rows in self.sections.slices():
            theirs = (player[rows] != games.seat[rows]) & jnp.asarray(self._open)[player[rows]]
            if bot is None:
                other = self.policy.act(
                    past_fast, prompts[rows], lengths[rows], legal[rows], act_keys[rows], who[rows]
                ).action
                if self.policy.free:
                    other = jnp.where(other < 0, jax.vmap(pick)(legal[rows], other_keys[rows]), other)
            else:
                other = jax.vmap(bot.act)(jax.tree.map(lambda x, r=rows: x[r], view), other_keys[rows])
            action = action.at[rows].set(jnp.where(theirs, other, action[rows]))
            who = who.at[rows].set(jnp.where(theirs, -1, who[rows]))
            failed = failed.at[rows].set(failed[rows] & ~theirs)

        state, reward = self._step(games.state, action, failed, player, through)
        ended = jax.vmap(self.game.done)(state)
        total = jax.tree.map(jnp.add, games.total, reward)
        paid = self._weigh(reward) if self.dense else self._weigh(total) * ended[:, None]
        samples = self._samples(games, prompts, lengths, legal, decision, player, who, paid, ended, central)
        finished = Finished(ended, total, games.turn + 1, games.seat)

        return Games(state, games.episode, games.turn + 1, games.seat, games.symmetry, total), samples, finished

    @jax.named_scope("prompt")
    def _look(self, games: Games):
        """Of every row: who moves, through which symmetry, what it sees, the prompt and its length, what is legal."""
        player = jax.vmap(self.game.player)(games.state)
        through = jnp.take_along_axis(games.symmetry, player[:, None], axis=1)[:, 0]
        view, prompts, lengths, legal = jax.vmap(self._view)(games.state, player, through)
        return player, through, view, constrain(prompts, "BT"), lengths, legal

    @jax.named_scope("rules")
    def _step(self, state, action, failed, player, through):
        """The states after the actions, and what these paid; an answer that named none has its price."""
        move = action if self.symmetry is None else jax.vmap(self._unmap)(action, through)
        state, reward = jax.vmap(self.game.step)(state, move)
        if self.policy.free:
            penalty = self.parse_failure_reward * failed[:, None] * jax.nn.one_hot(player, self.game.n_players)
            reward = reward._replace(process=reward.process + penalty)
        return state, reward

    def _restart(self, games: Games, ended: jax.Array, keys: jax.Array) -> Games:
        """The games, with a fresh one in every row that ended."""
        fresh = dataclasses.replace(jax.vmap(self._fresh)(keys), episode=games.episode + 1)
        return jax.tree.map(lambda a, b: jnp.where(like(ended, a), a, b), fresh, games)

    @property
    def _open(self) -> tuple[bool, ...]:
        """For each seat, whether an opponent can have it: not one that belongs to a bot for good."""
        return tuple(policy >= 0 for policy in self.seat_policy)

    # ------------------------------------------------------------------------------------------- one row, unbatched

    def _fresh(self, key) -> Games:
        reset_key, seat_key, symmetry_key = jax.random.split(key, 3)
        n = self.game.n_players
        zero = jnp.zeros((), jnp.int32)
        alone = self.sections.own == self.sections.rows
        own = [seat for seat in range(n) if self._open[seat]]
        seen = jnp.zeros((n,), jnp.int32)
        if self.symmetry is not None:
            seen = jax.random.randint(symmetry_key, (n,), 0, self.symmetry.n_symmetries)
        total = Reward(jnp.zeros(()), jnp.zeros((n,)), jnp.zeros((n,)))
        return Games(
            state=self.game.reset(reset_key),
            episode=zero,
            turn=zero,
            seat=zero if alone else jnp.asarray(own, jnp.int32)[jax.random.randint(seat_key, (), 0, len(own))],
            symmetry=seen,
            total=total,
        )

    def _view(self, state, player, through):
        view = state if self.symmetry is None else self.symmetry.apply(state, through)
        tokens, length = self.prompt.opening(view, player)
        return view, self._padded(tokens), length, self.game.legal(view)

    def _padded(self, tokens):
        room = row_length(self.prompt.opening_length, self.policy.width) - tokens.shape[0]
        return jnp.pad(tokens, (0, room))

    def _central_view(self, view, player):
        n = self.game.n_players
        seats = (player + 1 + jnp.arange(n)) % n  # the mover last
        tokens, lengths = jax.vmap(lambda seat: self.prompt.opening(view, seat))(seats)
        return critics.join_views(tokens, lengths, row_length(n * self.prompt.opening_length, 1))

    def _unmap(self, action, through):
        """The action in the game that is seen as `action` through a symmetry."""
        seen_as = jax.vmap(lambda a: self.symmetry.map_action(a, through))(jnp.arange(self.game.n_actions))
        return jnp.argmax(seen_as == action).astype(jnp.int32)

    # ------------------------------------------------------------------------------------------------------ records

    def _weigh(self, reward: Reward) -> jax.Array:
        """float32 [B, P] from the three levels."""
        team, agent, process = self.weights
        return team * reward.team[:, None] + agent * reward.agent + process * reward.process

    def _samples(self, games, prompts, lengths, legal, decision: Decision, player, who, paid, ended, central):
        learns = jnp.asarray((*self.learns, False))[who] & (who >= 0)
        zeros = jnp.zeros_like(decision.logps)
        return Samples(
            tokens=join_answer(prompts, lengths, decision.answers),
            prompt_lengths=lengths,
            answers=decision.answers,
            answer_lengths=decision.lengths,
            action=decision.action,
            legal=legal,
            logps=decision.logps,
            values=zeros.at[:, 0].set(decision.values),
            weights=learns.astype(jnp.float32),
            agent=player,
            policy=who,
            episode=games.episode,
            turn=games.turn,
            rewards=paid,
            ends=ended,
            group=jnp.arange(self.sections.rows),
            advantages=zeros,
            returns=zeros,
            central=central,
        )


def make_sections(rows: int, self_play_frac: float, bots: Sequence[Bot], bot_frac: float) -> Sections:
    """Rows shared out: `self_play_frac` to self-play, `bot_frac` to the bots in equal parts, the rest to past ones."""
    each = round(rows * bot_frac / len(bots)) if bots else 0
    own = min(round(rows * self_play_frac), rows - each * len(bots))
    past = rows - own - each * len(bots)
    if past == 1 and own:
        own, past = own + 1, 0  # a rounding error is no section
    return Sections(own, past, tuple((bot, each) for bot in bots if each))


def summary(finished: Finished, sections: Sections, competitive: bool) -> dict[str, jax.Array]:
    """Figures of the games that ended, as scalars; means are over games."""
    ended = finished.ended
    count = jnp.maximum(jnp.sum(ended), 1)
    mean = lambda x: jnp.sum(jnp.where(ended, x, 0)) / count  # noqa: E731
    agent = finished.total.agent
    figures = {
        "games": jnp.sum(ended),
        "game_length": mean(finished.length),
        "reward/team": mean(finished.total.team),
        "reward/process": mean(jnp.mean(finished.total.process, axis=-1)),
    }
    for seat in range(agent.shape[-1]):
        figures[f"reward/agent_{seat}"] = mean(agent[..., seat])
    if competitive:
        figures["draws"] = mean(jnp.all(agent == 0, axis=-1))
    for number, (bot, rows) in enumerate(sections.slices()):
        name = "past" if bot is None else f"bot_{number - (sections.past > 0)}"
        wins, games = results(finished, rows)
        figures[f"versus/{name}"] = wins / jnp.maximum(games, 1)
    return figures


def results(finished: Finished, rows: slice) -> tuple[jax.Array, jax.Array]:
    """(points of the learner, games) in some rows; a draw is half a point, and the learner wins by earning more.

    A game that goes on from one rollout to the next counts for the opponent that ended it. Leaving such games out would
    leave out the long ones.
    """
    section = jax.tree.map(lambda x: x[:, rows], finished)
    agent = section.total.agent
    seats = np.arange(agent.shape[-1])
    mine = jnp.take_along_axis(agent, section.seat[..., None], axis=-1)[..., 0]
    others = jnp.max(jnp.where(seats == section.seat[..., None], -jnp.inf, agent), axis=-1)
    points = jnp.where(mine > others, 1.0, jnp.where(mine == others, 0.5, 0.0))
    return jnp.sum(points * section.ended), jnp.sum(section.ended)


def row_keys(key: jax.Array, rows: int) -> jax.Array:
    """A key for every row, [B], which does not depend on how many there are."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))


def like(flags: jax.Array, x: jax.Array) -> jax.Array:
    """bool [B] shaped to select among rows of x [B, …]."""
    return flags.reshape(-1, *(1,) * (x.ndim - 1))
