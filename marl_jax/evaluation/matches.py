"""Matches: complete games between contestants in one XLA program.

A contestant is a team, which gets its weights at each call, or a bot. Unlike in a rollout, every row plays one complete
game, and the program ends when all games have ended.
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
    """B finished games of at most R turns, with completions of at most X tokens.

    Attributes:
        total: Sum of the rewards; float32 [B] and [B, P].
        length: int32 [B]. Number of turns.
        action: int32 [R, B]. Action of each turn.
        answer: int32 [R, B, X]. Tokens of the completion.
        completion_length: int32 [R, B]. Number of tokens of the completion.
        failed: bool [R, B]. Whether the completion named no legal action, so that a random one was played.
        fresh: bool [R, B]. Whether the conversation of the seat started with this turn.
        success: bool [B]. Whether a puzzle was solved; None for other games.
        endings: bool [B] by name. How the game ended.
        values: float32 [R, B]. Value predicted before the completion, 0 without a critic. None unless the match has
            `values`.
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
    """Games between contestants, compiled once for each number of games.

        match = Match(game, (seated_team, bot))
        played = match((weights, None), seating, key, temperature=0.0)

    `seating` is int32 [B, P], the index of the contestant in each seat.

    Attributes:
        game: The game.
        contestants: Teams and bots.
        walk: Whether game i plays level i of a puzzle, modulo the number of levels, instead of a random start.
        values: Whether to record the values of critic heads at every turn.
    """

    game: Game
    contestants: Sequence[SeatedTeam | Bot]
    walk: bool = False
    values: bool = False

    def __call__(self, weights: Sequence[dict | None], seating: np.ndarray, key: jax.Array, temperature=1.0) -> Played:
        """Play one game per row of `seating`."""
        return self._program(tuple(weights), seating, key, np.float32(temperature))

    def compile_ahead(
        self, ahead: AotCompiler, weights: Sequence[dict | None], seating: np.ndarray, key: jax.Array
    ) -> None:
        """Start to compile the program for a call with these arguments."""
        self._program.compile_ahead(ahead, lambda: (tuple(weights), seating, key, np.float32(0.0)))

    def start_keys(self, key: jax.Array, games: int) -> jax.Array:
        """Return the reset keys of the games of a call, to replay them."""
        return row_keys(jax.random.fold_in(key, self.game.max_turns), games)

    def first(self, key: jax.Array, row: jax.Array | int):
        """Return the first state of game `row` with start key `key`."""
        return self._levels.reset_level(row % self.n_levels) if self.walk else self.game.reset(key)

    def starts(self, games: int) -> np.ndarray:
        """Return a number for the start of every game, int [B], equal for equal starts."""
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
        """Jitted `first`, to replay games."""
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
        chats = tuple(None if t is None else t.context(game).begin(rows, recording=False) for t in teams)

        def going(carry):
            turn, state = carry[:2]
            return (turn < game.max_turns) & ~jnp.all(jax.vmap(game.done)(state))

        def step(carry):
            turn, state, total, length, chats, record = carry
            done = jax.vmap(game.done)(state)
            player = jax.vmap(game.player)(state)
            who = jnp.take_along_axis(seating, player[:, None], axis=1)[:, 0]
            keys = row_keys(jax.random.fold_in(key, turn), rows)
            answers, spoken = [], []
            for i, (pair, chat) in enumerate(zip(pairs, chats, strict=True)):
                moves_now = (who == i) & ~done
                answer, chat = self._act(*pair, chat, state, player, turn, keys, temperature, width, moves_now)
                answers.append(answer)
                spoken.append(chat)
            of_mover = lambda *xs: jnp.select([like(who == i, x) for i, x in enumerate(xs)], xs, xs[0])  # noqa: E731
            new = jax.tree.map(of_mover, *answers)
            after, reward = jax.vmap(game.step)(state, new[0])
            moves = jnp.full((rows,), turn)
            chats = tuple(
                None if t is None else t.context(game).observe(chat, state, new[0], after, moves)
                for t, chat in zip(teams, spoken, strict=True)
            )
            total = jax.tree.map(jnp.add, total, reward)
            record = tuple(lines.at[turn].set(line) for lines, line in zip(record, new, strict=True))
            return turn + 1, after, total, length + ~done, chats, record

        carry = (jnp.int32(0), state, total, jnp.zeros((rows,), jnp.int32), chats, record)
        _, state, total, length, _, record = jax.lax.while_loop(going, step, carry)
        success = jax.vmap(game.success)(state) if game.solvable else None
        endings = jax.vmap(game.endings)(state)
        return whole(Played(total, length, *record[:5], success, endings, *record[5:]))

    def _act(self, contestant, params, chat, state, seat, turn, keys, temperature, width, moves_now):
        """Return the turn of a contestant, as in `Played`, and its updated conversations.

        `moves_now`, bool [B], marks the rows in which the contestant moves. Bots with `act_rows`, such as remote
        models, are only called there.
        """
        if not isinstance(contestant, SeatedTeam):
            act = getattr(contestant, "act_rows", lambda *given: _act_if_needed(contestant, *given))
            action = act(state, keys, moves_now)
            nothing = jnp.zeros((*action.shape, width), jnp.int32), jnp.zeros_like(action)
            no = jnp.zeros(action.shape, bool)
            return (action, *nothing, no, no, *((jnp.zeros(action.shape),) if self.values else ())), chat
        team, context = contestant.team, contestant.context(self.game)
        seen = look(self.game, team, state, seat, contestant.policy(seat, turn))
        reading = context.read(chat, seen)
        settings = dict(legal=seen.legal, policy=seen.policy)
        best = contestant.best_of
        if best is None:
            decision, chat = context.act(params, chat, reading, keys, temperature=temperature, **settings)
        else:
            temperatures = best.temperatures(temperature, team.backbones[0].policy.temperature, len(keys))
            several = dict(temperature=temperatures, candidates=best.moves)
            decision, chat = context.act(params, chat, reading, best.keys(keys), **several, **settings)
            actions = decision.action.reshape(-1, best.moves)
            policies = contestant.policy(jnp.arange(self.game.n_players), turn + 1)
            worth = worth_of_moves(self.game, team, params, state, seat, actions, policies, best.reward_weight)
            decision = best.choose(decision, worth)
        # A random action replaces a free completion that names no legal one.
        action = team.playable(decision.action, seen.legal, keys)
        action = contestant.seating.bot_actions(state, seat, keys, action)
        chat, _ = context.say(chat, reading, decision, seen.policy)
        answers = jnp.pad(decision.answers, ((0, 0), (0, width - team.width)))
        failed = (decision.action < 0) & (seen.policy >= 0)
        values = (decision.values,) if self.values else ()
        return (action, answers, decision.lengths, failed, context.fresh(reading), *values), chat


def _act_if_needed(bot: Bot, state, keys: jax.Array, moves_now: jax.Array) -> jax.Array:
    """Return the moves of a bot, int32 [B], or zeros if it has no turn."""
    nobody = lambda: jnp.zeros(moves_now.shape, jnp.int32)  # noqa: E731
    return jax.lax.cond(jnp.any(moves_now), lambda: jax.vmap(bot.act)(state, keys).astype(jnp.int32), nobody)


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
    """Return whether a match can compute values: a critic head needs no other input."""
    return policy.critic == "head"


def in_turns(games: int, sides: Sequence[int], lap: int | None = None) -> np.ndarray:
    """Return a seating of two contestants, int32 [B, P].

    Contestant 0 takes the seats of one side, in turns, and contestant 1 all others.

    Args:
        games: Number of games.
        sides: Side of each seat (`Game.sides`).
        lap: Number of different starts. When they repeat, contestant 0 moves on by one side at each start.
    """
    lap = lap or games
    side = (np.arange(games) % lap + np.arange(games) // lap)[:, None] % (max(sides) + 1)
    return np.where(np.asarray(sides) == side, 0, 1).astype(np.int32)


def alone(games: int, n_players: int) -> np.ndarray:
    """Return a seating, int32 [B, P], with contestant 0 in all seats."""
    return np.zeros((games, n_players), np.int32)
