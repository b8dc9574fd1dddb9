"""A team with its seats, as it plays matches, and the choice of moves by value.

Best-of-K: of several moves of a policy, play the one whose position its critic values most. This needs a zero-sum game
of two players with perfect information: a move can be tried before it is made, and the value of the position after it
is lost to the player who moves next.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.game import Game, State
from envs.games.text import Prompt
from marl_jax.agents.answering import Decision
from marl_jax.agents.seating import Seating
from marl_jax.agents.team import Backbone, Team
from marl_jax.rollouts.conversations.contexts import HistoryContext, TurnContext
from marl_jax.rollouts.conversations.threads import History
from marl_jax.rollouts.games import look
from models.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class BestOf:
    """How many moves are compared, and in which unit the critic counts.

    moves          K: the policy's own, and K - 1 drawn at the temperature of training; they may repeat
    reward_weight  of what the game pays to an agent, as in training
    """

    moves: int
    reward_weight: float = 1.0

    def keys(self, keys: jax.Array) -> jax.Array:
        """Keys [B] of turns as keys [B·K] of their candidates; the policy's own move has the key it has alone."""
        more = [keys, *(jax.vmap(jax.random.fold_in, (0, None))(keys, k) for k in range(1, self.moves))]
        return jnp.stack(more, axis=1).reshape(-1)

    def temperatures(self, own: jax.Array, drawn: float, rows: int) -> jax.Array:
        """float32 [B·K]: that of the match for the policy's own move, that of training for the others."""
        first = jnp.arange(self.moves) == 0
        return jnp.tile(jnp.where(first, own, drawn), rows).astype(jnp.float32)

    def choose(self, decision: Decision, worth: jax.Array) -> Decision:
        """Of the candidates [B·K] of every row the best by `worth` [B, K]; of equals the first."""
        rows = jnp.arange(worth.shape[0])
        return jax.tree.map(lambda x: x.reshape(*worth.shape, *x.shape[1:])[rows, jnp.argmax(worth, axis=1)], decision)


def worth_of_moves(
    game: Game, team: Team, ready: dict, state: State, seat: jax.Array, actions: jax.Array, policies, weight: float
) -> jax.Array:
    """What each of K moves is worth to the player who makes it, as far as its own critic knows: float32 [B, K].

    state, seat  [B, …], before the move
    actions      int32 [B, K]
    policies     int32 [P], the policy that answers for each seat at the next turn
    weight       of the agents' rewards
    """
    rows, k = actions.shape
    before, mover = jax.tree.map(lambda x: jnp.repeat(x, k, axis=0), (state, seat))
    after, reward = jax.vmap(game.step)(before, actions.reshape(-1))
    player = jax.vmap(game.player)(after)
    seen = look(game, team, after, player, policies[player])
    keys = jax.random.split(jax.random.key(0), rows * k)  # what would be answered there is of no matter
    values = team.act(ready, seen.prompts, seen.lengths, seen.legal, keys, seen.policy, temperature=0.0).values
    values = jnp.where(player == mover, values, -values)
    paid = weight * jnp.take_along_axis(reward.agent, mover[:, None], axis=1)[:, 0]
    return (paid + jnp.where(jax.vmap(game.done)(after), 0.0, values)).reshape(rows, k)


@dataclasses.dataclass(frozen=True, eq=False)
class SeatedTeam:
    """A team as a contestant: which of its policies has which seat, and the seats it leaves to bots.

    history_turns  answers after which a seat's conversation begins again; 0: every prompt stands alone
    best_of        whether moves are chosen by value; None: the policy's own is played
    """

    team: Team
    seating: Seating
    history_turns: int = 0
    best_of: BestOf | None = None

    def context(self, game: Game) -> TurnContext | HistoryContext:
        """What a turn's prompt is."""
        if not self.history_turns:
            return TurnContext(self.team)
        history = History(game, self.team, self.seating, self.history_turns, game.max_turns)
        return HistoryContext(history, game.max_turns)

    def tokenizer(self, seat: int, turn: int) -> Tokenizer:
        """That of the model that answers for a seat at the game's turn of this number."""
        return self.backbone(seat, turn).tokenizer

    def policy(self, seat: jax.Array | int, turn: jax.Array | int) -> jax.Array:
        """The policy that answers for a seat at the game's turn of this number."""
        return self.seating.policy(jnp.asarray(seat), turn // self.seating.n_seats)

    def prompt(self, seat: int, turn: int) -> Prompt:
        """The prompts of the model that answers there."""
        return self.backbone(seat, turn).prompt

    def backbone(self, seat: int, turn: int) -> Backbone:
        """The model that answers there."""
        return self.team.backbones[int(self.team.backbone_of(self.policy(seat, turn)))]
