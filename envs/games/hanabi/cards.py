"""Common knowledge about each kind of card, from the fireworks and the discards."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.hanabi.rules import Hanabi, HanabiState, copies


class CardTable(NamedTuple):
    """Common knowledge about each kind of card, bool [C, R].

    Attributes:
        playable: Whether the card can be played now.
        useless: Whether it was already played, or can never be played because a lower rank is gone.
        critical: Whether it is the last copy of a card that is not useless.
    """

    playable: jax.Array
    useless: jax.Array
    critical: jax.Array


def table(game: Hanabi, state: HanabiState) -> CardTable:
    """Return the table of the current position."""
    ranks = jnp.arange(game.ranks)
    total = np.array(copies(game.ranks))
    level = state.fireworks[:, None]
    gone = (state.discards == total) & (ranks >= level)
    unreachable = jnp.cumsum(gone, axis=1) > 0
    useless = (ranks < level) | unreachable
    return CardTable(ranks == level, useless, ~useless & (state.discards == total - 1))


def prospects(game: Hanabi, state: HanabiState, cards: jax.Array) -> jax.Array:
    """Classify cards (int [...]): int32 [...].

    0 is an empty place, 1 useless, 2 playable now, 3 the last copy, and 4 any other card. A playable card that is the
    last copy counts as playable.
    """
    t = CardTable(*(kind.ravel()[jnp.maximum(cards, 0)] for kind in table(game, state)))
    kinds = jnp.select([cards < 0, t.useless, t.playable, t.critical], [0, 1, 2, 3], 4)
    return kinds.astype(jnp.int32)
