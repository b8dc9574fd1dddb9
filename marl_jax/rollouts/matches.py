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

from envs.bots import Bot, pick
from envs.game import Game, Reward
from envs.text import Prompt
from marl_jax.policy import Policy
from marl_jax.rollouts.opponents import seat_actions
from marl_jax.rollouts.rollout import like, row_keys
from marl_jax.samples import row_length
from marl_jax.team import Prompts, Team
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

    total and length [B, …]; by turn [R, B, …]: action, answer, its length; of puzzles success [B].
    """

    total: Reward
    length: jax.Array
    action: jax.Array
    answer: jax.Array
    answer_length: jax.Array
    success: jax.Array | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Match:
    """Games of some contestants; compiled once for each number of games.

        match = Match(game, (player, bot))
        played = match((weights, None), seating, key, temperature=0.0)

    seating  int32 [B, P], for each seat the number of the contestant who sits there
    """

    game: Game
    contestants: Sequence[Player | Bot]

    def __call__(self, weights: Sequence[dict | None], seating: jax.Array, key: jax.Array, temperature=1.0) -> Played:
        return self._program(tuple(weights), seating, key, jnp.float32(temperature))

    def start_keys(self, key: jax.Array, games: int) -> jax.Array:
        """The keys with which the games of a call were reset, so that they can be played again."""
        return row_keys(jax.random.fold_in(key, self.game.max_turns), games)

    @functools.cached_property
    def _program(self):
        return jax.jit(self._play)

    def _play(self, weights, seating, key, temperature):
        rows, game = seating.shape[0], self.game
        pairs = list(zip(self.contestants, weights, strict=True))
        pairs = [(c, c.policy.ready(c.policy.player(w)) if isinstance(c, Player) else None) for c, w in pairs]
        width = max((c.policy.width for c in self.contestants if isinstance(c, Player)), default=1)
        state = jax.vmap(game.reset)(self.start_keys(key, rows))
        total = Reward(jnp.zeros((rows,)), *(jnp.zeros((rows, game.n_players)),) * 2)
        record = (
            jnp.zeros((game.max_turns, rows), jnp.int32),
            jnp.zeros((game.max_turns, rows, width), jnp.int32),
            jnp.zeros((game.max_turns, rows), jnp.int32),
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
            of_mover = lambda *xs: jnp.select([like(who == i, x) for i, x in enumerate(xs)], xs)  # noqa: E731
            action, answer, answer_length = jax.tree.map(of_mover, *answers)
            state, reward = jax.vmap(game.step)(state, action)
            total = jax.tree.map(jnp.add, total, reward)
            new = (action, answer, answer_length)
            record = tuple(lines.at[turn].set(line) for lines, line in zip(record, new, strict=True))
            return turn + 1, state, total, length + ~done, record

        carry = (jnp.int32(0), state, total, jnp.zeros((rows,), jnp.int32), record)
        _, state, total, length, record = jax.lax.while_loop(going, step, carry)
        success = jax.vmap(game.success)(state) if hasattr(game, "success") else None
        return whole(Played(total, length, *record, success))

    def _act(self, contestant, weights, state, player, keys, temperature, width):
        """(action [B], answer [B, W], its length [B]) of one contestant in all rows."""
        if not isinstance(contestant, Player):
            action = jax.vmap(contestant.act)(state, keys)
            return action, jnp.zeros((*action.shape, width), jnp.int32), jnp.zeros_like(action)
        policy, prompt = contestant.policy, contestant.prompt
        tokens, lengths = jax.vmap(prompt.first)(state, player)
        room = row_length(prompt.first_length, policy.width) - tokens.shape[1]
        tokens = jnp.pad(tokens, ((0, 0), (0, room)))
        ids = jnp.asarray(contestant.seat_policy, jnp.int32)[player]
        legal = jax.vmap(self.game.legal)(state)
        decision = policy.act(weights, tokens, lengths, legal, keys, ids, temperature)
        # A free answer that names no legal action: a random one is played in its place.
        action = jnp.where(decision.action < 0, jax.vmap(pick)(legal, keys), decision.action)
        action = seat_actions(contestant.seat_bots, state, player, keys, action)
        return action, jnp.pad(decision.answers, ((0, 0), (0, width - policy.width))), decision.lengths


def in_turns(games: int, n_players: int) -> jax.Array:
    """Seating int32 [B, P] for two contestants: the first in one seat, in turns; the second in all others."""
    seat = jnp.arange(games)[:, None] % n_players
    return jnp.where(jnp.arange(n_players)[None] == seat, 0, 1).astype(jnp.int32)


def alone(games: int, n_players: int) -> jax.Array:
    """Seating int32 [B, P] for one contestant in all seats."""
    return jnp.zeros((games, n_players), jnp.int32)
