"""What everybody can tell about a kind of card from the fireworks and the discards."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.hanabi.rules import Hanabi, HanabiState, copies


class CardTable(NamedTuple):
    """What everybody knows about each kind of card, bool[C, R]."""

    playable: jax.Array
    useless: jax.Array
    """Already played, or never playable because a lower rank is gone."""
    critical: jax.Array
    """The last copy of a card that is not useless."""


def table(game: Hanabi, state: HanabiState) -> CardTable:
    """Of all kinds, as the position is."""
    ranks = jnp.arange(game.ranks)
    total = np.array(copies(game.ranks))
    level = state.fireworks[:, None]
    gone = (state.discards == total) & (ranks >= level)
    unreachable = jnp.cumsum(gone, axis=1) > 0
    useless = (ranks < level) | unreachable
    return CardTable(ranks == level, useless, ~useless & (state.discards == total - 1))


def prospects(game: Hanabi, state: HanabiState, cards: jax.Array) -> jax.Array:
    """For each card (int[...]): 0 an empty place, 1 useless, 2 playable now, 3 the last copy, 4 any other; int32[...].

    A playable card that is the last copy counts as playable.
    """
    t = CardTable(*(kind.ravel()[jnp.maximum(cards, 0)] for kind in table(game, state)))
    found = jnp.select([cards < 0, t.useless, t.playable, t.critical], [0, 1, 2, 3], 4)
    return found.astype(jnp.int32)
