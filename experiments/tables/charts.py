"""SVG charts of tables: bars with intervals, and panels of curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape

Interval = tuple[float, float, float]
"""(value, low, high) between 0 and 1."""

INK, GRID = "#333333", "#e4e4e4"
BEFORE, AFTER = "#b9c9d6", "#2471a3"
COLORS = ("#2471a3", "#d35400", "#7d8a94", "#1e8449", "#8e44ad")

LABELS, PLOT, MARGIN = 300, 420, 70  # widths of a bar chart's columns
LINE, GAP, TITLE, HEAD = 26, 16, 26, 34  # heights in a bar chart
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 240, 52, 14, 58, 34  # sizes of a panel with curves


@dataclasses.dataclass(frozen=True)
class Bar:
    """One line of a bar chart: rates before and after training, or None."""

    words: str
    before: Interval | None
    after: Interval | None


def bar_chart(groups: Mapping[str, Sequence[Bar]]) -> str:
    """Draw a block of bars per group, on a scale from 0 to 100 %."""
    shapes = []
    for x, fill, words in ((LABELS, BEFORE, "before training"), (LABELS + 140, AFTER, "after")):
        shapes += [_rect(x, 12, 12, 12, fill), _text(x + 18, 22, words, "start")]
    ticks = [(LABELS + PLOT * tick / 100, f"{tick} %") for tick in range(0, 101, 20)]
    y = HEAD
    for title, bars in groups.items():
        shapes.append(_text(12, y + 16, title, "start", bold=True))
        y += TITLE
        shapes += [_line(x, y, x, y + LINE * len(bars), GRID) for x, _ in ticks]
        for bar in bars:
            shapes += _bar(bar, y)
            y += LINE
        y += GAP
    shapes += [_text(x, y, words, "middle") for x, words in ticks]
    return _document(LABELS + PLOT + MARGIN, y + 20, shapes)


def _bar(bar: Bar, y: float) -> list[str]:
    shapes = [_text(LABELS - 10, y + LINE / 2 + 4, bar.words, "end")]
    shown = [(rate, fill) for rate, fill in ((bar.before, BEFORE), (bar.after, AFTER)) if rate is not None]
    for number, (rate, fill) in enumerate(shown):
        thick = (LINE - 8) / len(shown)
        top = y + 4 + number * thick
        value, low, high = (PLOT * x for x in rate)
        middle = top + thick / 2
        shapes.append(_rect(LABELS, top, round(value, 1), thick - 1, fill))
        shapes.append(_line(round(LABELS + low, 1), middle, round(LABELS + high, 1), middle, INK))
    if shown:
        value, _, high = shown[-1][0]
        shapes.append(_text(LABELS + PLOT * high + 6, y + LINE / 2 + 4, f"{100 * value:.1f}", "start"))
    return shapes


@dataclasses.dataclass(frozen=True)
class Curve:
    """Points of one run. Runs of one `kind` share a color and a legend entry."""

    kind: str
    x: Sequence[float]
    y: Sequence[float]


def curve_chart(panels: Mapping[str, Sequence[Curve]], x_label: str, limits: Mapping[str, float] | None = None) -> str:
    """Draw one panel of curves per title, side by side.

    Args:
        panels: The curves of each panel, by its title.
        x_label: Unit of the horizontal axis.
        limits: A value of some panels at which a dashed line is drawn.
    """
    kinds = list(dict.fromkeys(curve.kind for curves in panels.values() for curve in curves))
    colors = {kind: COLORS[i % len(COLORS)] for i, kind in enumerate(kinds)}
    shapes = []
    for number, (kind, color) in enumerate(colors.items()):
        x = LEFT + number * 130
        shapes += [_line(x, 14, x + 18, 14, color, 2), _text(x + 24, 18, kind, "start")]
    for number, (title, curves) in enumerate(panels.items()):
        shown, limit = [curve for curve in curves if curve.x], (limits or {}).get(title)
        shapes += _panel(number * WIDTH, title, shown, colors, x_label, limit)
    return _document(WIDTH * len(panels), HEIGHT, shapes)


def _panel(
    left: float, title: str, curves: Sequence[Curve], colors: Mapping[str, str], x_label: str, limit: float | None
) -> list[str]:
    shapes = [_text(left + LEFT, TOP - 14, title, "start", bold=True)]
    if not curves:
        return shapes
    last = max(max(curve.x) for curve in curves) or 1
    top = max(max(curve.y) for curve in curves) or 1  # all values may be 0
    step = next(s for power in range(-2, 9) for s in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if top / s <= 6)
    top = step * -(-top // step)

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (WIDTH - LEFT - RIGHT) * x / last, (HEIGHT - TOP - BOTTOM) * y / top
        return round(left + LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    for i in range(round(top / step) + 1):
        (x, y), (right, _) = place(0, i * step), place(last, 0)
        shapes += [_line(x, y, right, y, GRID), _text(x - 6, y + 4, f"{i * step:g}", "end")]
    if limit is not None:
        (x, y), (right, _) = place(0, limit), place(last, 0)
        shapes.append(_line(x, y, right, y, INK, dashes="5 4"))
    for curve in curves:
        shapes.append(_polyline([place(*at) for at in zip(curve.x, curve.y, strict=True)], colors[curve.kind]))
    shapes.append(_text(place(0, 0)[0], HEIGHT - 14, "0", "middle"))
    shapes.append(_text(place(last, 0)[0], HEIGHT - 14, f"{last:g} {x_label}", "end"))
    return shapes


def _document(width: int, height: int, shapes: list[str]) -> str:
    body = "\n".join([_rect(0, 0, width, height, "#ffffff"), *shapes])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif">\n{body}\n</svg>\n'
    )


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1, dashes: str = "none") -> str:
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{stroke}" stroke-width="{width:g}" stroke-dasharray="{dashes}"/>'


def _polyline(points: list[tuple[float, float]], stroke: str) -> str:
    places = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{stroke}" stroke-width="1.6"/>'


def _text(x: float, y: float, words: str, anchor: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="12"{weight} fill="{INK}" text-anchor="{anchor}">{escape(words)}</text>'
    )
