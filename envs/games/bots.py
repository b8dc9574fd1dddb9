"""Scripted players: the uniform bot and a registry of bots by name.

A bot is a frozen dataclass over a game with one method, the same call as a policy's seat:

    action = bot.act(state, key)

It is pure and unbatched, and works under `jit` and `vmap` unless its docstring says otherwise.

Each game brings its own bots (`GameEntry.bots`). Other packages add a bot to a game as "game/name":

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
"""Bots added to games by other packages, as "game/name"."""


def pick(mask: jax.Array, key: jax.Array) -> jax.Array:
    """Sample uniformly among the True entries of `mask` (bool [A], not all False): int32 []."""
    n = mask.shape[0]
    # Cumulative sum as a product with a triangular matrix: exact, and faster in a batch.
    count = mask.astype(jnp.float32) @ np.triu(np.ones((n, n), np.float32))
    wanted = jnp.floor(jax.random.uniform(key) * count[-1])
    return jnp.sum(count <= wanted, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True)
class UniformBot:
    """A bot that plays every legal action with the same probability."""

    game: Game

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """Sample a legal action uniformly: int32 []."""
        return pick(self.game.legal(state), key)


def bot_names(game: str) -> tuple[str, ...]:
    """Return the names of a game's bots, `random` first and its best bot last."""
    own, prefix = GAMES.get(game).bots, f"{game}/"
    added = tuple(key.removeprefix(prefix) for key in BOTS if key.startswith(prefix))
    for name in added:
        if name in own or name == RANDOM:
            raise ValueError(f"bot {prefix + name!r} already exists; choose another name")
    return (RANDOM, *added, *own)


def make_bot(game: Game, name: str) -> Bot:
    """Build the bot called `name` for the seats of a game."""
    names = bot_names(game.name)
    if name not in names:
        raise ValueError(f"{game.name} has no bot {name!r}; its bots are: {', '.join(names)}")
    if name == RANDOM:
        return UniformBot(game)
    own = GAMES.get(game.name).bots
    return game.bot_from(own[name] if name in own else BOTS.get(f"{game.name}/{name}"))
