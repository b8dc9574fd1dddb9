"""Matches: whole games between contestants in one XLA program, for evaluation and for the logs.

A contestant is a policy (with weights given at each call) or a bot. Unlike in a rollout, every row plays one game, from
the first move to the last, and the program ends when all have ended.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import Bot, pick
from envs.games.game import Game, Reward
from envs.games.text import Prompt
from marl_jax.agents.policy import Policy
from marl_jax.agents.team import Prompts, Team
from marl_jax.rollouts.games import like, row_keys
from marl_jax.rollouts.opponents import seat_actions
from marl_jax.samples import row_length
from models.sharding import whole
from models.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Player:
    """A policy or a team at the table: what it reads, which of its policies plays which seat, seats it leaves to bots.

    tokenizers  for each seat, that of the model that plays it: to write out what was said
    """

    policy: Policy | Team
    prompt: Prompt | Prompts
    seat_policy: tuple[int, ...]
    seat_bots: tuple[Bot | None, ...] = ()
    tokenizers: tuple[Tokenizer, ...] = ()

    def leaves(self, seat: int) -> bool:
        """Whether a bot has the seat."""
        return bool(self.seat_bots) and self.seat_bots[seat] is not None


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

        match = Match(game, (player, bot))
        played = match((weights, None), seating, key, temperature=0.0)

    seating  int32 [B, P], for each seat the number of the contestant who sits there
    walk     game i plays level i of a puzzle, from the first again behind the last; otherwise its start is drawn
    """

    game: Game
    contestants: Sequence[Player | Bot]
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
        pairs = [(c, c.policy.ready(c.policy.player(w)) if isinstance(c, Player) else None) for c, w in pairs]
        width = max((c.policy.width for c in self.contestants if isinstance(c, Player)), default=1)
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
            answers = [self._act(*pair, state, player, keys, temperature, width) for pair in pairs]
            of_mover = lambda *xs: jnp.select([like(who == i, x) for i, x in enumerate(xs)], xs, xs[0])  # noqa: E731
            new = jax.tree.map(of_mover, *answers)
            state, reward = jax.vmap(game.step)(state, new[0])
            total = jax.tree.map(jnp.add, total, reward)
            record = tuple(lines.at[turn].set(line) for lines, line in zip(record, new, strict=True))
            return turn + 1, state, total, length + ~done, record

        carry = (jnp.int32(0), state, total, jnp.zeros((rows,), jnp.int32), record)
        _, state, total, length, record = jax.lax.while_loop(going, step, carry)
        success = jax.vmap(game.success)(state) if hasattr(game, "success") else None
        return whole(Played(total, length, *record, success))

    def _act(self, contestant, weights, state, player, keys, temperature, width):
        """(action [B], answer [B, W], its length [B], whether it failed [B]) of one contestant in all rows."""
        if not isinstance(contestant, Player):
            action = jax.vmap(contestant.act)(state, keys)
            nothing = jnp.zeros((*action.shape, width), jnp.int32), jnp.zeros_like(action)
            return action, *nothing, jnp.zeros(action.shape, bool)
        policy, prompt = contestant.policy, contestant.prompt
        tokens, lengths = jax.vmap(prompt.opening)(state, player)
        room = row_length(prompt.opening_length, policy.width) - tokens.shape[1]
        tokens = jnp.pad(tokens, ((0, 0), (0, room)))
        ids = jnp.asarray(contestant.seat_policy, jnp.int32)[player]
        legal = jax.vmap(self.game.legal)(state)
        decision = policy.act(weights, tokens, lengths, legal, keys, ids, temperature)
        # A free answer that names no legal action: a random one is played in its place.
        failed = decision.action < 0
        action = jnp.where(failed, jax.vmap(pick)(legal, keys), decision.action)
        action = seat_actions(contestant.seat_bots, state, player, keys, action)
        answers = jnp.pad(decision.answers, ((0, 0), (0, width - policy.width)))
        return action, answers, decision.lengths, failed & (ids >= 0)


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
