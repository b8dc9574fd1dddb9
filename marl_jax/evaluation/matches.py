"""Matches: whole games between contestants in one XLA program, for evaluation and for the logs.

A contestant is a policy (with weights given at each call) or a bot. Unlike in a rollout, every row plays one game, from
the first move to the last, and the program ends when all have ended.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Bot, Game, Reward, State
from marl_jax.agents.policy import Policy
from marl_jax.devices.aot import AotCompiler, Program
from marl_jax.rollouts.games import like, look, row_keys
from marl_jax.rollouts.seated_team import SeatedTeam, worth_of_moves
from models.sharding import whole


class LevelGame(Protocol):
    """A game with levels (`Game.has_levels`)."""

    @property
    def n_levels(self) -> int:
        """Number of levels."""
        ...

    def reset_level(self, index: jax.Array | int) -> State:
        """Return the first state of a level."""
        ...


class Played(NamedTuple):
    """B finished games of at most R turns.

    total and length [B, …]; by turn [R, B, …]: action, answer, its length, whether it failed (it names no legal action,
    and a random one was played), and whether the seat's conversation began with it; of puzzles success [B]; how games
    ended, bool [B] by name; where the match has `values`, what the critic expected before each answer [R, B], 0 where
    there is none to ask.
    """

    total: Reward
    length: jax.Array
    action: jax.Array
    answer: jax.Array
    completion_length: jax.Array
    failed: jax.Array
    fresh: jax.Array
    success: jax.Array | None = None
    endings: dict[str, jax.Array] | None = None
    values: jax.Array | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Match:
    """Games of some contestants; compiled once for each number of games.

        match = Match(game, (seated_team, bot))
        played = match((weights, None), seating, key, temperature=0.0)

    seating  int32 [B, P], for each seat the number of the contestant who sits there
    walk     game i plays level i of a puzzle, from the first again behind the last; otherwise its start is drawn
    values   critics that are heads on what the policy reads are asked at every turn
    """

    game: Game
    contestants: Sequence[SeatedTeam | Bot]
    walk: bool = False
    values: bool = False

    def __call__(self, weights: Sequence[dict | None], seating: np.ndarray, key: jax.Array, temperature=1.0) -> Played:
        return self._program(tuple(weights), seating, key, np.float32(temperature))

    def compile_ahead(
        self, ahead: AotCompiler, weights: Sequence[dict | None], seating: np.ndarray, key: jax.Array
    ) -> None:
        """Begins to compile what a call with such arguments needs."""
        self._program.compile_ahead(ahead, lambda: (tuple(weights), seating, key, np.float32(0.0)))

    def start_keys(self, key: jax.Array, games: int) -> jax.Array:
        """The keys with which the games of a call were reset, so that they can be played again."""
        return row_keys(jax.random.fold_in(key, self.game.max_turns), games)

    def first(self, key: jax.Array, row: jax.Array | int):
        """The first state of game `row`, whose start key is `key`."""
        return self._levels.reset_level(row % self.n_levels) if self.walk else self.game.reset(key)

    def starts(self, games: int) -> np.ndarray:
        """int [B]: a number for the start of every game, equal where two games begin alike."""
        if self.game.reset_is_free:
            return np.zeros(games, int)
        return np.arange(games) % self.n_levels if self.walk else np.arange(games)

    @property
    def n_levels(self) -> int:
        """Number of levels of a puzzle."""
        return self._levels.n_levels

    @property
    def _levels(self) -> LevelGame:
        return cast(LevelGame, self.game)

    @functools.cached_property
    def reset(self):
        """`first` as a program, to play games again."""
        return jax.jit(self.first)

    @functools.cached_property
    def _program(self):
        return Program(self._play, "a match")

    def _play(self, weights, seating, key, temperature):
        rows, game = seating.shape[0], self.game
        pairs = list(zip(self.contestants, weights, strict=True))
        pairs = [(c, _prepared(c, w, self.values)) for c, w in pairs]
        width = max((c.team.width for c in self.contestants if isinstance(c, SeatedTeam)), default=1)
        state = jax.vmap(self.first)(self.start_keys(key, rows), jnp.arange(rows))
        total = Reward(jnp.zeros((rows,)), *(jnp.zeros((rows, game.n_players)),) * 2)
        record = (
            jnp.zeros((game.max_turns, rows), jnp.int32),
            jnp.zeros((game.max_turns, rows, width), jnp.int32),
            jnp.zeros((game.max_turns, rows), jnp.int32),
            jnp.zeros((game.max_turns, rows), bool),
            jnp.zeros((game.max_turns, rows), bool),
            *((jnp.zeros((game.max_turns, rows), jnp.float32),) if self.values else ()),
        )
        teams = [c if isinstance(c, SeatedTeam) else None for c in self.contestants]
        talks = tuple(None if t is None else t.context(game).begin(rows, recording=False) for t in teams)

        def going(carry):
            turn, state = carry[:2]
            return (turn < game.max_turns) & ~jnp.all(jax.vmap(game.done)(state))

        def step(carry):
            turn, state, total, length, talks, record = carry
            done = jax.vmap(game.done)(state)
            player = jax.vmap(game.player)(state)
            who = jnp.take_along_axis(seating, player[:, None], axis=1)[:, 0]
            keys = row_keys(jax.random.fold_in(key, turn), rows)
            answers, spoken = [], []
            for i, (pair, talk) in enumerate(zip(pairs, talks, strict=True)):
                asked = (who == i) & ~done
                answer, talk = self._act(*pair, talk, state, player, turn, keys, temperature, width, asked)
                answers.append(answer)
                spoken.append(talk)
            of_mover = lambda *xs: jnp.select([like(who == i, x) for i, x in enumerate(xs)], xs, xs[0])  # noqa: E731
            new = jax.tree.map(of_mover, *answers)
            after, reward = jax.vmap(game.step)(state, new[0])
            moves = jnp.full((rows,), turn)
            talks = tuple(
                None if t is None else t.context(game).observe(talk, state, new[0], after, moves)
                for t, talk in zip(teams, spoken, strict=True)
            )
            total = jax.tree.map(jnp.add, total, reward)
            record = tuple(lines.at[turn].set(line) for lines, line in zip(record, new, strict=True))
            return turn + 1, after, total, length + ~done, talks, record

        carry = (jnp.int32(0), state, total, jnp.zeros((rows,), jnp.int32), talks, record)
        _, state, total, length, _, record = jax.lax.while_loop(going, step, carry)
        success = jax.vmap(game.success)(state) if game.solvable else None
        endings = jax.vmap(game.endings)(state)
        return whole(Played(total, length, *record[:5], success, endings, *record[5:]))

    def _act(self, contestant, ready, talk, state, seat, turn, keys, temperature, width, asked):
        """What one contestant answers in all rows, as in `Played`, and its conversations with that.

        asked  bool [B], where its answer matters: bots with `act_rows`, to whom a move costs something, move there only
        """
        if not isinstance(contestant, SeatedTeam):
            act = getattr(contestant, "act_rows", lambda *given: _act_if_asked(contestant, *given))
            action = act(state, keys, asked)
            nothing = jnp.zeros((*action.shape, width), jnp.int32), jnp.zeros_like(action)
            no = jnp.zeros(action.shape, bool)
            return (action, *nothing, no, no, *((jnp.zeros(action.shape),) if self.values else ())), talk
        team, context = contestant.team, contestant.context(self.game)
        seen = look(self.game, team, state, seat, contestant.policy(seat, turn))
        asked = context.read(talk, seen)
        settings = dict(legal=seen.legal, policy=seen.policy)
        best = contestant.best_of
        if best is None:
            decision, talk = context.act(ready, talk, asked, keys, temperature=temperature, **settings)
        else:
            temperatures = best.temperatures(temperature, team.backbones[0].policy.temperature, len(keys))
            several = dict(temperature=temperatures, candidates=best.moves)
            decision, talk = context.act(ready, talk, asked, best.keys(keys), **several, **settings)
            actions = decision.action.reshape(-1, best.moves)
            policies = contestant.policy(jnp.arange(self.game.n_players), turn + 1)
            worth = worth_of_moves(self.game, team, ready, state, seat, actions, policies, best.reward_weight)
            decision = best.choose(decision, worth)
        # A free answer that names no legal action: a random one is played in its place.
        action = team.playable(decision.action, seen.legal, keys)
        action = contestant.seating.bot_actions(state, seat, keys, action)
        talk, _ = context.say(talk, asked, decision, seen.policy)
        answers = jnp.pad(decision.answers, ((0, 0), (0, width - team.width)))
        failed = (decision.action < 0) & (seen.policy >= 0)
        values = (decision.values,) if self.values else ()
        return (action, answers, decision.lengths, failed, context.fresh(asked), *values), talk


def _act_if_asked(bot: Bot, state, keys: jax.Array, asked: jax.Array) -> jax.Array:
    """Its moves in all rows, int32 [B]; in a turn in which it has none to make, nothing is computed."""
    nobody = lambda: jnp.zeros(asked.shape, jnp.int32)  # noqa: E731
    return jax.lax.cond(jnp.any(asked), lambda: jax.vmap(bot.act)(state, keys).astype(jnp.int32), nobody)


def _prepared(contestant: SeatedTeam | Bot, weights: dict | None, values: bool) -> dict | None:
    if not isinstance(contestant, SeatedTeam):
        return None
    assert weights is not None
    team = contestant.team
    acting = team.acting_params(weights)
    for backbone in team.backbones if values or contestant.best_of else ():
        if has_value(backbone.policy) and "critic" in weights[backbone.name]:
            acting[backbone.name]["critic"] = weights[backbone.name]["critic"]
    return team.prepare_for_sampling(acting)


def has_value(policy: Policy) -> bool:
    """Whether a match can ask the critic: one that is a head reads nothing of its own."""
    return policy.critic == "head"


def in_turns(games: int, n_players: int, lap: int | None = None) -> np.ndarray:
    """Seating int32 [B, P] for two contestants: the first in one seat, in turns; the second in all others.

    lap  so many games begin differently; in the next lap the first sits elsewhere at each of these starts
    """
    lap = lap or games
    seat = (np.arange(games) % lap + np.arange(games) // lap)[:, None] % n_players
    return np.where(np.arange(n_players)[None] == seat, 0, 1).astype(np.int32)


def alone(games: int, n_players: int) -> np.ndarray:
    """Seating int32 [B, P] for one contestant in all seats."""
    return np.zeros((games, n_players), np.int32)
