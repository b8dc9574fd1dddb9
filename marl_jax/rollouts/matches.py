"""Matches: whole games between contestants in one XLA program, for evaluation and for the logs.

A contestant is a policy (with weights given at each call) or a bot. Unlike in a rollout, every row plays one game, from
the first move to the last, and the program ends when all have ended.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import Bot
from envs.games.game import Game, Reward
from marl_jax.agents.seating import Seating
from marl_jax.agents.team import Team
from marl_jax.rollouts.games import like, row_keys
from marl_jax.samples import row_length
from models.sharding import whole
from models.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class SeatedTeam:
    """A team as a contestant: which of its policies has which seat, and the seats it leaves to bots."""

    team: Team
    seating: Seating

    def tokenizer(self, seat: int, turn: int) -> Tokenizer:
        """That of the model that answers for a seat at the game's turn of this number."""
        return self.team.backbones[int(self.team.backbone_of(self.policy(seat, turn)))].tokenizer

    def policy(self, seat: jax.Array | int, turn: jax.Array | int) -> jax.Array:
        """The policy that answers for a seat at the game's turn of this number."""
        return self.seating.policy(jnp.asarray(seat), turn // self.seating.n_seats)

    def prompt_text(self, state: Any, seat: int, turn: int) -> str:
        """The prompt that it reads there."""
        return self.team.prompts.opening_text(state, seat, int(self.policy(seat, turn)))


class Played(NamedTuple):
    """B finished games of at most R turns.

    total and length [B, …]; by turn [R, B, …]: action, answer, its length, and whether it failed, naming no legal
    action, so that a random one was played; of puzzles success [B].
    """

    total: Reward
    length: jax.Array
    action: jax.Array
    answer: jax.Array
    answer_length: jax.Array
    failed: jax.Array
    success: jax.Array | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Match:
    """Games of some contestants; compiled once for each number of games.

        match = Match(game, (seated_team, bot))
        played = match((weights, None), seating, key, temperature=0.0)

    seating  int32 [B, P], for each seat the number of the contestant who sits there
    walk     game i plays level i of a puzzle, from the first again behind the last; otherwise its start is drawn
    """

    game: Game
    contestants: Sequence[SeatedTeam | Bot]
    walk: bool = False

    def __call__(self, weights: Sequence[dict | None], seating: jax.Array, key: jax.Array, temperature=1.0) -> Played:
        return self._program(tuple(weights), seating, key, jnp.float32(temperature))

    def start_keys(self, key: jax.Array, games: int) -> jax.Array:
        """The keys with which the games of a call were reset, so that they can be played again."""
        return row_keys(jax.random.fold_in(key, self.game.max_turns), games)

    def first(self, key: jax.Array, row: jax.Array | int):
        """The first state of game `row`, whose start key is `key`."""
        return self.game.reset_level(row % self.game.n_levels) if self.walk else self.game.reset(key)

    def starts(self, games: int) -> np.ndarray:
        """int [B]: a number for the start of every game, equal where two games begin alike."""
        if self.game.reset_is_free:
            return np.zeros(games, int)
        return np.arange(games) % self.game.n_levels if self.walk else np.arange(games)

    @functools.cached_property
    def reset(self):
        """`first` as a program, to play games again."""
        return jax.jit(self.first)

    @functools.cached_property
    def _program(self):
        return jax.jit(self._play)

    def _play(self, weights, seating, key, temperature):
        rows, game = seating.shape[0], self.game
        pairs = list(zip(self.contestants, weights, strict=True))
        pairs = [(c, _prepared(c, w)) for c, w in pairs]
        width = max((c.team.width for c in self.contestants if isinstance(c, SeatedTeam)), default=1)
        state = jax.vmap(self.first)(self.start_keys(key, rows), jnp.arange(rows))
        total = Reward(jnp.zeros((rows,)), *(jnp.zeros((rows, game.n_players)),) * 2)
        record = (
            jnp.zeros((game.max_turns, rows), jnp.int32),
            jnp.zeros((game.max_turns, rows, width), jnp.int32),
            jnp.zeros((game.max_turns, rows), jnp.int32),
            jnp.zeros((game.max_turns, rows), bool),
        )

        def going(carry):
            turn, state = carry[:2]
            return (turn < game.max_turns) & ~jnp.all(jax.vmap(game.done)(state))

        def step(carry):
            turn, state, total, length, record = carry
            done = jax.vmap(game.done)(state)
            player = jax.vmap(game.player)(state)
            who = jnp.take_along_axis(seating, player[:, None], axis=1)[:, 0]
            keys = row_keys(jax.random.fold_in(key, turn), rows)
            answers = [self._act(*pair, state, player, turn, keys, temperature, width) for pair in pairs]
            of_mover = lambda *xs: jnp.select([like(who == i, x) for i, x in enumerate(xs)], xs, xs[0])  # noqa: E731
            new = jax.tree.map(of_mover, *answers)
            state, reward = jax.vmap(game.step)(state, new[0])
            total = jax.tree.map(jnp.add, total, reward)
            record = tuple(lines.at[turn].set(line) for lines, line in zip(record, new, strict=True))
            return turn + 1, state, total, length + ~done, record

        carry = (jnp.int32(0), state, total, jnp.zeros((rows,), jnp.int32), record)
        _, state, total, length, record = jax.lax.while_loop(going, step, carry)
        success = jax.vmap(game.success)(state) if game.solvable else None
        return whole(Played(total, length, *record, success))

    def _act(self, contestant, ready, state, seat, turn, keys, temperature, width):
        """(action [B], answer [B, W], its length [B], whether it failed [B]) of one contestant in all rows."""
        if not isinstance(contestant, SeatedTeam):
            action = jax.vmap(contestant.act)(state, keys)
            nothing = jnp.zeros((*action.shape, width), jnp.int32), jnp.zeros_like(action)
            return action, *nothing, jnp.zeros(action.shape, bool)
        team = contestant.team
        policy = contestant.policy(seat, turn)
        tokens, lengths = jax.vmap(team.prompts.opening)(state, seat, policy)
        room = row_length(tokens.shape[1], team.width) - tokens.shape[1]
        tokens = jnp.pad(tokens, ((0, 0), (0, room)))
        legal = jax.vmap(self.game.legal)(state)
        decision = team.act(ready, tokens, lengths, legal, keys, policy, temperature)
        # A free answer that names no legal action: a random one is played in its place.
        action = team.playable(decision.action, legal, keys)
        action = contestant.seating.bot_actions(state, seat, keys, action)
        answers = jnp.pad(decision.answers, ((0, 0), (0, width - team.width)))
        return action, answers, decision.lengths, (decision.action < 0) & (policy >= 0)


def _prepared(contestant: SeatedTeam | Bot, weights: dict | None) -> dict | None:
    if not isinstance(contestant, SeatedTeam):
        return None
    return contestant.team.prepare_for_sampling(contestant.team.acting_params(weights))


def in_turns(games: int, n_players: int, lap: int | None = None) -> jax.Array:
    """Seating int32 [B, P] for two contestants: the first in one seat, in turns; the second in all others.

    lap  so many games begin differently; in the next lap the first sits elsewhere at each of these starts
    """
    lap = lap or games
    seat = (jnp.arange(games) % lap + jnp.arange(games) // lap)[:, None] % n_players
    return jnp.where(jnp.arange(n_players)[None] == seat, 0, 1).astype(jnp.int32)


def alone(games: int, n_players: int) -> jax.Array:
    """Seating int32 [B, P] for one contestant in all seats."""
    return jnp.zeros((games, n_players), jnp.int32)
