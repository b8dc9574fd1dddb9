"""Drawings of Hanabi positions.

With `player`, that player's own cards are replaced by the information from hints.
"""

import jax
import numpy as np

from envs.games import svg as shapes
from envs.games.hanabi.rules import COLOR_NAMES, HanabiState

_FILLS = ("#d64541", "#f4d03f", "#27ae60", "#f4f6f7", "#2e6fd1")
_CARD, _GAP = 44, 10


def board(state: HanabiState, player: int | None = None) -> str:
    """Draw tokens, fireworks, hands and discards as lines of text.

    Hands show the oldest card first, and `>` marks the player to move.
    """
    state = jax.device_get(state)
    n_ranks = state.discards.shape[1]
    fireworks = " ".join(f"{_letter(c)}{n}" for c, n in enumerate(state.fireworks))
    discards = [_card(c, n_ranks) for c, n in enumerate(state.discards.ravel()) for _ in range(n)]
    lines = [
        f"information {state.information}  lives {state.lives}  deck {_deck_left(state)}",
        f"fireworks   {fireworks}",
    ]
    for p in range(len(state.hands)):
        held = [h for h, card in enumerate(state.hands[p]) if card >= 0]
        shown = ["??" if p == player else _card(int(state.hands[p, h]), n_ranks) for h in held]
        known = [_knowledge(state, p, h) for h in held]
        marker = ">" if p == state.seat and not state.over else " "
        lines.append(f"{marker} player {p}  {' '.join(shown)}   knows {' '.join(known)}")
    lines.append(f"discards    {' '.join(discards) or 'none'}")
    return "\n".join(lines)


def svg(state: HanabiState, player: int | None = None) -> str:
    """Draw fireworks, a row of cards per player and the discards as an SVG document."""
    state = jax.device_get(state)
    n_colors, n_ranks = state.discards.shape
    n_players, hand = state.hands.shape
    step, row = _CARD + _GAP, 1.4 * _CARD + 38
    width = max(90 + step * max(n_colors, hand), 420)
    tokens = f"information {state.information}   lives {state.lives}   deck {_deck_left(state)}"
    parts = [shapes.text(10, 22, tokens, anchor="start"), shapes.text(10, 62, "fireworks", 13, anchor="start")]
    for c, n in enumerate(state.fireworks):
        parts += _card_shapes(90 + c * step, 34, _FILLS[c] if n else "#ffffff", str(n) if n else "", _letter(c))
    for p in range(n_players):
        y = 34 + (p + 1) * row
        marker = "▶ " if p == state.seat and not state.over else ""
        parts.append(shapes.text(10, y + 28, f"{marker}player {p}", 13, anchor="start"))
        for h, card in enumerate(state.hands[p]):
            if card >= 0:
                hidden = p == player
                fill = "#bdc3c7" if hidden else _FILLS[card // n_ranks]
                label = "?" if hidden else str(card % n_ranks + 1)
                parts += _card_shapes(90 + h * step, y, fill, label, *_possible(state, p, h))
    y = 34 + (n_players + 1) * row
    parts.append(shapes.text(10, y + 16, "discards", 13, anchor="start"))
    for i, card in enumerate(np.repeat(np.arange(n_colors * n_ranks), state.discards.ravel())):
        x, below = 90 + i % 15 * 22, y + i // 15 * 26
        parts += [
            shapes.rect(x, below, 20, 22, _FILLS[card // n_ranks], "#555555", rx=3),
            shapes.text(x + 10, below + 16, str(card % n_ranks + 1), 13),
        ]
    return shapes.document(width, int(y + 26 * 4), parts)


def _card_shapes(x: float, y: float, fill: str, label: str, *notes: str) -> list[str]:
    """Draw a card with its rank, and notes below it, one per line."""
    height = 1.4 * _CARD
    return [
        shapes.rect(x, y, _CARD, height, fill, "#555555", rx=5),
        shapes.text(x + _CARD / 2, y + height / 2 + 8, label, 22),
        *(shapes.text(x + _CARD / 2, y + height + 13 + 11 * i, note, 10, "#555555") for i, note in enumerate(notes)),
    ]


def _deck_left(state: HanabiState) -> int:
    return len(state.deck) - int(state.dealt)


def _letter(color: int) -> str:
    return COLOR_NAMES[color][0].upper()


def _card(card: int, n_ranks: int) -> str:
    return f"{_letter(card // n_ranks)}{card % n_ranks + 1}"


def _knowledge(state: HanabiState, p: int, h: int) -> str:
    """Return the values that the hints allow, e.g. RYGWB12345 without any hint."""
    return "".join(_possible(state, p, h))


def _possible(state: HanabiState, p: int, h: int) -> tuple[str, str]:
    """Return the colors and the ranks that the hints allow for a card."""
    n_colors, n_ranks = state.discards.shape
    colors = "".join(_letter(c) for c in range(n_colors) if state.colors[p, h] >> c & 1)
    return colors, "".join(str(r + 1) for r in range(n_ranks) if state.ranks[p, h] >> r & 1)
