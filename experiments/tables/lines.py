"""Curves as an SVG document: a panel for each title, a line for each run, the runs of one kind in one colour."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 240, 52, 14, 58, 34
INK, GRID = "#333333", "#e4e4e4"
COLOURS = ("#2471a3", "#d35400", "#7d8a94", "#1e8449", "#8e44ad")


@dataclasses.dataclass(frozen=True)
class Line:
    """Points of one run; runs of one `kind` share a colour and a word in the legend."""

    kind: str
    x: Sequence[float]
    y: Sequence[float]


def chart(panels: Mapping[str, Sequence[Line]], x_words: str, limits: Mapping[str, float] | None = None) -> str:
    """The document; `limits` draws a dashed line at a value of a panel."""
    kinds = list(dict.fromkeys(line.kind for lines in panels.values() for line in lines))
    colors = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    parts, width = [], WIDTH * len(panels)
    parts.append(f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>')
    for number, (kind, color) in enumerate(colors.items()):
        x = LEFT + number * 130
        parts.append(f'<line x1="{x}" x2="{x + 18}" y1="14" y2="14" stroke="{color}" stroke-width="2"/>')
        parts.append(_text(x + 24, 18, kind, "start"))
    for number, (title, lines) in enumerate(panels.items()):
        shown, limit = [line for line in lines if line.x], (limits or {}).get(title)
        parts += _panel(number * WIDTH, title, shown, colors, x_words, limit)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'font-family="sans-serif">\n{body}\n</svg>\n'
    )


def _panel(
    left: float, title: str, lines: Sequence[Line], colors: Mapping[str, str], x_words: str, limit: float | None
) -> list[str]:
    parts = [_text(left + LEFT, TOP - 14, title, "start", bold=True)]
    if not lines:
        return parts
    last = max(max(line.x) for line in lines) or 1
    top = max(max(line.y) for line in lines)
    step = next(s for power in range(-2, 9) for s in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if top / s <= 6)
    top = step * -(-top // step)

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (WIDTH - LEFT - RIGHT) * x / last, (HEIGHT - TOP - BOTTOM) * y / top
        return left + LEFT + across, HEIGHT - BOTTOM - up

    for i in range(round(top / step) + 1):
        (x, y), (right, _) = place(0, i * step), place(last, 0)
        parts.append(f'<line x1="{x:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(_text(x - 6, y + 4, f"{i * step:g}", "end"))
    if limit is not None:
        (x, y), (right, _) = place(0, limit), place(last, 0)
        dashes = 'stroke-dasharray="5 4"'
        parts.append(f'<line x1="{x:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{INK}" {dashes}/>')
    for line in lines:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*at) for at in zip(line.x, line.y, strict=True)))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colors[line.kind]}" stroke-width="1.6"/>')
    parts.append(_text(place(0, 0)[0], HEIGHT - 14, "0", "middle"))
    parts.append(_text(place(last, 0)[0], HEIGHT - 14, f"{last:g} {x_words}", "end"))
    return parts


def _text(x: float, y: float, words: str, anchor: str, bold: bool = False) -> str:
    weight, words = ' font-weight="bold"' if bold else "", escape(words)
    return f'<text x="{x:g}" y="{y:g}" font-size="12"{weight} fill="{INK}" text-anchor="{anchor}">{words}</text>'
