"""Drawings and media of Lookup: the sound, and the table as numbers or a picture."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import svg as shapes
from envs.games.lookup.rules import TAKES, TONE, VALUE, Lookup, LookupState
from envs.games.medium import Media, Numbers, Sound
from envs.games.picture import HIDDEN_TILE, SHADE, Picture, Tile

_LINE = 24
LENGTH, LOWEST, STEP = 2560, 300.0, 1.3
"""Samples of a tone (0.16 s), frequency of the lowest one, and ratio of neighbors."""


def board(state: LookupState, player: int | None = None) -> str:
    """Draw the tone, the table and the question as terminal text."""
    return "\n".join(_lines(state))


def svg(state: LookupState, player: int | None = None) -> str:
    """Draw the same lines as an SVG document."""
    lines = _lines(state)
    parts = [shapes.text(20, _LINE * (i + 1), line, anchor="start") for i, line in enumerate(lines)]
    return shapes.document(320, _LINE * (len(lines) + 1), parts)


def _lines(state: LookupState) -> list[str]:
    state = jax.device_get(state)
    question = {VALUE: "value of the tone's row", TONE: "number of the tone"}
    kind = question.get(int(state.question), f"value in row {int(state.key) + 1}")
    rows = [f"row {i + 1}     {int(value) + 1}" for i, value in enumerate(state.values)]
    return [f"tone      {int(state.heard) + 1}", *rows, f"question  {kind}"]


@functools.cache
def recordings(rows: int) -> np.ndarray:
    """Return TAKES recordings of each tone, then silence: float32 [rows · TAKES + 1, LENGTH]."""
    rng, time = np.random.default_rng(0), np.arange(LENGTH) / 16_000
    pitch = LOWEST * STEP ** np.arange(rows)[:, None, None] * rng.uniform(0.97, 1.03, (rows, TAKES, 1))
    tone = np.sin(2 * np.pi * (pitch * time + rng.uniform(size=(rows, TAKES, 1))))
    made = rng.uniform(0.2, 0.8, (rows, TAKES, 1)) * tone + 0.05 * rng.normal(size=(rows, TAKES, LENGTH))
    return np.concatenate([made.reshape(-1, LENGTH), np.zeros((1, LENGTH))]).clip(-1, 1).astype(np.float32)


def medium(game: Lookup, style: str) -> Media:
    """Return the sound, and the table: rows with their number and their value."""
    del style
    silence = game.rows * TAKES

    def heard(state: LookupState, seat: jax.Array) -> jax.Array:
        return jnp.where(game.hidden == "sound", silence, state.heard * TAKES + state.take)

    def values(state: LookupState) -> jax.Array:
        return jnp.where(game.hidden == "table", -1, state.values) + 1

    def table(state: LookupState, seat: jax.Array) -> jax.Array:
        return jnp.stack([jnp.arange(game.rows) + 1, values(state)], axis=1)

    def drawn(state: LookupState, seat: jax.Array) -> jax.Array:
        return jnp.stack([game.rows + 1 + jnp.arange(game.rows), values(state)])

    digits = [str(row + 1) for row in range(game.rows)]
    tiles = (HIDDEN_TILE, *(Tile(digit) for digit in digits), *(Tile(digit, paper=SHADE) for digit in digits))
    shown = Numbers((game.rows, 2), table) if game.board == "table" else Picture((2, game.rows), tiles, drawn)
    return Media((Sound(recordings(game.rows), 1, heard), shown))
