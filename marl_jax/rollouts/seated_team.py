"""A team with its seats as a contestant in matches, and best-of-K play by value.

Best-of-K samples several moves of a policy and plays the one with the highest value according to its critic. This needs
a two-player zero-sum game with perfect information: a move can be tried before it is made, and the value of the
position
after it is the negative of the opponent's value.
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
from marl_jax.rollouts.conversations.contexts import Context, HistoryContext, TurnContext
from marl_jax.rollouts.conversations.threads import History
from marl_jax.rollouts.games import look
from models.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class BestOf:
    """Settings of best-of-K play.

    Attributes:
        moves: Number of moves to compare, K: the policy's own move and K - 1 sampled at the training temperature. Moves
            may repeat.
        reward_weight: Weight of the agent level of the reward, as in training.
    """

    moves: int
    reward_weight: float = 1.0

    def keys(self, keys: jax.Array) -> jax.Array:
        """Expand keys [B] of turns to keys [B·K] of their candidates.

        The policy's own move keeps the key that it has without candidates.
        """
        more = [keys, *(jax.vmap(jax.random.fold_in, (0, None))(keys, k) for k in range(1, self.moves))]
        return jnp.stack(more, axis=1).reshape(-1)

    def temperatures(self, own: jax.Array, drawn: float, rows: int) -> jax.Array:
        """Return the temperatures of the candidates, float32 [B·K].

        The policy's own move uses the temperature of the match, the others that of training.
        """
        first = jnp.arange(self.moves) == 0
        return jnp.tile(jnp.where(first, own, drawn), rows).astype(jnp.float32)

    def choose(self, decision: Decision, worth: jax.Array) -> Decision:
        """Select the candidates [B·K] with the highest `worth` [B, K], the first if tied."""
        rows = jnp.arange(worth.shape[0])
        return jax.tree.map(lambda x: x.reshape(*worth.shape, *x.shape[1:])[rows, jnp.argmax(worth, axis=1)], decision)


def worth_of_moves(
    game: Game, team: Team, prepared: dict, state: State, seat: jax.Array, actions: jax.Array, policies, weight: float
) -> jax.Array:
    """Estimate the value of K moves for the player who makes them, float32 [B, K].

    Args:
        game: Rules of the game.
        team: Team whose critic is used.
        prepared: Weights prepared for sampling.
        state: States [B, …] before the moves.
        seat: int32 [B]. Seat that moves.
        actions: int32 [B, K]. Moves to compare.
        policies: int32 [P]. Policy of each seat at the next turn.
        weight: Weight of the agent level of the reward.
    """
    rows, k = actions.shape
    before, mover = jax.tree.map(lambda x: jnp.repeat(x, k, axis=0), (state, seat))
    after, reward = jax.vmap(game.step)(before, actions.reshape(-1))
    player = jax.vmap(game.player)(after)
    seen = look(game, team, after, player, policies[player])
    keys = jax.random.split(jax.random.key(0), rows * k)  # the sampled actions are not used
    values = team.act(
        prepared, seen.prompts, seen.lengths, seen.legal, keys, seen.policy, temperature=0.0, media=seen.media
    ).values
    values = jnp.where(player == mover, values, -values)
    paid = weight * jnp.take_along_axis(reward.agent, mover[:, None], axis=1)[:, 0]
    return (paid + jnp.where(jax.vmap(game.done)(after), 0.0, values)).reshape(rows, k)


@dataclasses.dataclass(frozen=True, eq=False)
class SeatedTeam:
    """A team as a contestant in matches.

    Attributes:
        team: Policies of the team.
        seating: Assignment of policies to seats, and of bots to the seats that the team leaves to them.
        history_turns: Number of completions after which the conversation of a seat starts again; 0 if every prompt is
            self-contained.
        best_of: Best-of-K settings; None plays the policy's own move.
    """

    team: Team
    seating: Seating
    history_turns: int = 0
    best_of: BestOf | None = None

    def context(self, game: Game) -> Context:
        """Return the context that forms the prompts of turns."""
        if not self.history_turns:
            return TurnContext(self.team)
        history = History(game, self.team, self.seating, self.history_turns, game.max_turns)
        return HistoryContext(history, game.max_turns)

    def tokenizer(self, seat: int, turn: int) -> Tokenizer:
        """Return the tokenizer of the model that acts for a seat at a turn."""
        return self.backbone(seat, turn).tokenizer

    def policy(self, seat: jax.Array | int, turn: jax.Array | int) -> jax.Array:
        """Return the policy that acts for a seat at a turn."""
        return self.seating.policy(jnp.asarray(seat), turn // self.seating.n_seats)

    def prompt(self, seat: int, turn: int) -> Prompt:
        """Return the prompts of the model that acts for a seat at a turn."""
        prompt = self.backbone(seat, turn).prompt
        assert prompt is not None
        return prompt

    def backbone(self, seat: int, turn: int) -> Backbone:
        """Return the model that acts for a seat at a turn."""
        return self.team.backbones[int(self.team.backbone_of(self.policy(seat, turn)))]
