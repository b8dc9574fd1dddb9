"""What sits in a seat without a model: the bot interface, the uniform bot, and the bots of a game by name.

A bot is a frozen dataclass over a game with one method, the same call as a policy's seat:

    action = bot.act(state, key)

pure and usable inside jit where its docstring does not say otherwise; unbatched, batched with `vmap`.

Each game brings its own bots (`GameEntry.bots`). Another package adds one to a game under the name of both:

    BOTS.add("sokoban/greedy", "my_package.bots:GreedyBot")     # GreedyBot(game) makes the bot
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.entry import GAMES
from envs.games.game import Bot, Game, State
from registries import Registry

RANDOM = "random"

BOTS = Registry("bots")
"""Bots beside those that the games bring, as "game/name"."""


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


def bot_names(game: str) -> tuple[str, ...]:
    """The bots of the game called `game`: random play first, the game's best bot last."""
    own, prefix = GAMES.get(game).bots, f"{game}/"
    added = tuple(key.removeprefix(prefix) for key in BOTS if key.startswith(prefix))
    for name in added:
        if name in own or name == RANDOM:
            raise ValueError(f"bot {prefix + name!r} exists already; choose another name")
    return (RANDOM, *added, *own)


def make_bot(game: Game, name: str) -> Bot:
    """The bot called `name`, for the seats of a game."""
    names = bot_names(game.name)
    if name not in names:
        raise ValueError(f"{game.name} has no bot {name!r}, but must be one of: {', '.join(names)}")
    if name == RANDOM:
        return UniformBot(game)
    own = GAMES.get(game.name).bots
    return game.bot_from(own[name] if name in own else BOTS.get(f"{game.name}/{name}"))
