"""Rollouts in which a bot finishes the game after every legal action.

The values are samples of the return of each action if the bot plays all seats from then on. All actions of a position
share its hidden state and its random numbers, so that their differences have little noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from envs.games.game import Bot, Game, Reward
from marl_jax.rollouts.games import GameRollout, Games, like


@dataclasses.dataclass(frozen=True, eq=False)
class PlayoutRollout(GameRollout):
    """A rollout with the value of every action of every turn (`Samples.action_values`).

    Values are relative to the bot's action. The values of the actions that are taken in a game sum up, on average, to
    the difference between its return and that of the bot in all seats (Kakade and Langford 2002).

    Attributes:
        bot: Bot that finishes the games, in all seats.
    """

    bot: Bot | None = None

    def _move(self, prepared, opponent, games: Games, conversations, act_keys, other_keys):
        """Make one move in every row; see `GameRollout._move`."""
        assert self.bot is not None
        after, conversations, (record, places), finished = super()._move(
            prepared, opponent, games, conversations, act_keys, other_keys
        )
        returns = action_returns(self.game, self.bot, games.state, record.seat, other_keys, self._weigh)
        action = legal_actions(self.game, self.bot, games.state, other_keys)
        values = jnp.where(record.legal, returns - jnp.take_along_axis(returns, action[:, None], axis=1), 0.0)
        return after, conversations, (dataclasses.replace(record, action_values=values), places), finished


@jax.named_scope("playouts")
def action_returns(
    game: Game, bot: Bot, states: Any, seats: jax.Array, keys: jax.Array, weigh: Callable[[Reward], jax.Array]
) -> jax.Array:
    """Play every action in positions and let a bot finish the games.

    Args:
        game: Rules of the game.
        bot: Bot that plays all seats after the action.
        states: Positions [B, …], none of them final.
        seats: int32 [B]. Seats that act, whose rewards are summed.
        keys: Random keys [B], shared by the actions of a position.
        weigh: Maps rewards of N games to those of all seats, float32 [N, P].

    Returns:
        Sums of rewards from the action to the end of the game, float32 [B, A]; 0 for illegal actions.
    """
    legal = jax.vmap(game.legal)(states)
    played = jnp.where(legal, jnp.arange(game.n_actions), jnp.argmax(legal, axis=1)[:, None])  # always a legal action
    repeated = lambda x: jnp.repeat(x, game.n_actions, axis=0)  # noqa: E731
    states, keys, seats = jax.tree.map(repeated, (states, keys, seats))

    def reward_of(reward: Reward) -> jax.Array:
        return jnp.take_along_axis(weigh(reward), seats[:, None], axis=1)[:, 0]

    def turn(carry):
        states, total, number = carry
        over = jax.vmap(game.done)(states)
        turn_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
        after, reward = jax.vmap(game.step)(states, legal_actions(game, bot, states, turn_keys))
        states = jax.tree.map(lambda new, old: jnp.where(like(over, new), old, new), after, states)
        return states, total + jnp.where(over, 0.0, reward_of(reward)), number + 1

    states, reward = jax.vmap(game.step)(states, played.reshape(-1))
    start = (states, reward_of(reward), jnp.int32(0))
    _, total, _ = jax.lax.while_loop(lambda carry: ~jnp.all(jax.vmap(game.done)(carry[0])), turn, start)
    return jnp.where(legal, total.reshape(legal.shape), 0.0)


def legal_actions(game: Game, bot: Bot, states: Any, keys: jax.Array) -> jax.Array:
    """Return the bot's actions in states [B, …], int32 [B].

    A bot without a good move may return an illegal one, which the first legal one replaces.
    """
    legal, action = jax.vmap(game.legal)(states), jax.vmap(bot.act)(states, keys)
    known = jnp.take_along_axis(legal, action[:, None], axis=1)[:, 0]
    return jnp.where(known, action, jnp.argmax(legal, axis=1)).astype(jnp.int32)
