"""Shared drawing code of the card games."""

from collections.abc import Sequence

from envs.games import svg as shapes

_WIDTH, _HEIGHT, _GAP, _LINE = 60, 84, 24, 20


def listed(names: Sequence[str], actions: Sequence[int]) -> str:
    """Return the names of actions, or a dash if there are none."""
    return ", ".join(names[action] for action in actions) or "–"


def table(cards: Sequence[tuple[str, str, bool]], lines: Sequence[str]) -> str:
    """Draw cards side by side above lines of text, as an SVG document.

    Args:
        cards: Label, letter and whether it is red, for each card.
        lines: Lines of text.
    """
    step = _WIDTH + _GAP
    width = max(step * len(cards) + _GAP, 260)
    parts = []
    for i, (label, letter, is_red) in enumerate(cards):
        x = _GAP + i * step
        fill = "#bdc3c7" if letter == "?" else "#f4f6f7"
        parts += [
            shapes.text(x + _WIDTH / 2, 20, label, 13),
            shapes.rect(x, 30, _WIDTH, _HEIGHT, fill, "#555555", rx=6),
            shapes.text(x + _WIDTH / 2, 30 + _HEIGHT / 2 + 11, letter, 32, "#d64541" if is_red else "#222222"),
        ]
    top = 30 + _HEIGHT + _LINE
    parts += [shapes.text(_GAP, top + i * _LINE, line, 13, anchor="start") for i, line in enumerate(lines)]
    return shapes.document(width, top + _LINE * len(lines), parts)
