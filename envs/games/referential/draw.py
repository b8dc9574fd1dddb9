"""Drawings of the referential game; the listener does not see the card before the end."""

import jax
import jax.numpy as jnp

from envs.games import svg as shapes
from envs.games.picture import SHADE, Picture, Tile
from envs.games.referential.rules import CARDS, LISTENER, MESSAGES, SPEAKER, Referential, ReferentialState

_LINE = 24


def board(state: ReferentialState, player: int | None = None) -> str:
    """Draw the card and the message as terminal text."""
    return "\n".join(_lines(state, player))


def svg(state: ReferentialState, player: int | None = None) -> str:
    """Draw the same lines as an SVG document."""
    lines = _lines(state, player)
    parts = [shapes.text(20, _LINE * (i + 1), line, anchor="start") for i, line in enumerate(lines)]
    return shapes.document(200, _LINE * (len(lines) + 1), parts)


def _lines(state: ReferentialState, player: int | None) -> list[str]:
    state = jax.device_get(state)
    hidden = player == LISTENER and not state.over
    message = "–" if state.message < 0 else MESSAGES[int(state.message)]
    return [f"card     {'?' if hidden else CARDS[int(state.card)]}", f"message  {message}"]


def picture(game: Referential, style: str) -> Picture:
    """Return the drawing for models: the reader, and the card or the message."""
    del style
    seats = Tile("S", "#ffffff", "#2471a3"), Tile("L", "#ffffff", "#1e8449")
    facts = (*map(Tile, CARDS[: game.cards]), *map(Tile, MESSAGES[: game.messages]), Tile("-", paper=SHADE))

    def drawn(state: ReferentialState, seat: jax.Array) -> jax.Array:
        heard = jnp.where(state.message < 0, game.messages, state.message)
        return jnp.stack([seat, len(seats) + jnp.where(seat == SPEAKER, state.card, game.cards + heard)])

    return Picture((1, 2), (*seats, *facts), drawn)
