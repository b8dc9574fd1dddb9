"""What sits in a seat without a model: the bot interface and the uniform bot.

A bot is a frozen dataclass over a game with one method, the same call as a policy's seat:

    action = bot.act(state, key)

pure and usable inside jit where its docstring does not say otherwise; unbatched, batched with `vmap`.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Game, State


class Bot(Protocol):
    """Anything that picks a legal action for the player to move."""

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """A legal action in `state`: int32[]."""
        ...


def pick(mask: jax.Array, key: jax.Array) -> jax.Array:
    """Uniform choice among the True entries of `mask` (bool[A], not all False): int32[]."""
    n = mask.shape[0]
    # Running counts as a product with a triangle of ones: exact, and in a batch faster than a cumulative sum.
    count = mask.astype(jnp.float32) @ np.triu(np.ones((n, n), np.float32))
    wanted = jnp.floor(jax.random.uniform(key) * count[-1])
    return jnp.sum(count <= wanted, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True)
class UniformBot:
    """Every legal action with the same probability."""

    game: Game

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """A uniformly drawn legal action: int32[]."""
        return pick(self.game.legal(state), key)
