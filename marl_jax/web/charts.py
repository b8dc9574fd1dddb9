"""Line charts as inline SVG, with smoothed curves, confidence bands and round tick values."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 50, 8, 8, 24
POINTS = 300
COLOURS = 6


@dataclasses.dataclass(frozen=True)
class Series:
    """Points of one line.

    Attributes:
        name: Name of the line.
        x: Positions.
        y: Values.
        low: Lower ends of a band around the line, or None.
        high: Upper ends of the band, or None.
        smooth: Whether to draw a moving average over the raw line.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    smooth: bool = False


@dataclasses.dataclass(frozen=True)
class Mark:
    """A vertical line at `x` in the color of its kind, with a tooltip."""

    kind: str
    x: float
    title: str


def chart(series: Sequence[Series], marks: Sequence[Mark] = (), axis: str = "step") -> str:
    """Draw one or more lines over the same axes as SVG.

    Non-finite points are left out. Of marks of the same kind on the same pixel only the last one is drawn. Marks
    outside the axis are drawn at its end.
    """
    numbered = [(i, thinned(s)) for i, s in enumerate(map(_finite, series)) if s.x]  # the legend counts empty ones too
    series = [s for _, s in numbered]
    if not series:
        return '<p class="quiet">no points yet</p>'
    low = min(min(s.low or s.y) for s in series)
    high = max(max(s.high or s.y) for s in series)
    left, right = min(s.x[0] for s in series), max(s.x[-1] for s in series)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def px(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((x - left) / (right - left) if right > left else 0.5)

    def py(y: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - low) / (high - low))

    parts = [f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for tick, words in zip(ticks, tick_labels(ticks), strict=True):
        y = f"{py(tick):.1f}"
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{float(y) + 3:.1f}" text-anchor="end">{words}</text>')
    for x, anchor, words in (
        ((left, "start", ""), (right, "end", f"{axis} ")) if right > left else ((left, "middle", f"{axis} "),)
    ):
        parts.append(f'<text x="{px(x):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{words}{label(x)}</text>')
    placed = {(round(px(min(max(mark.x, left), right))), mark.kind): mark for mark in marks}
    for (x, kind), mark in placed.items():
        title = f"<title>{html.escape(mark.title)}</title>"
        parts.append(f'<path class="event {html.escape(kind)}" d="M{x} {TOP}V{HEIGHT - BOTTOM}">{title}</path>')
    for number, s in numbered:
        parts += _draw(s, f"var(--c{number % COLOURS})", px, py)
    return "".join([*parts, "</svg>"])


def _draw(s: Series, color: str, px, py):
    def path(xs, ys) -> str:
        return "M" + "L".join(f"{px(x):.1f} {py(y):.1f}" for x, y in zip(xs, ys, strict=True))

    if s.low and s.high:
        around = path([*s.x, *reversed(s.x)], [*s.high, *reversed(s.low)])
        yield f'<path class="band" fill="{color}" d="{around}Z"/>'
    if len(s.x) == 1:
        yield f'<circle fill="{color}" cx="{px(s.x[0]):.1f}" cy="{py(s.y[0]):.1f}" r="3"/>'
        return
    if s.smooth and len(s.x) > 20:
        yield f'<path class="raw" stroke="{color}" d="{path(s.x, s.y)}"/>'
        s = dataclasses.replace(s, y=smoothed(s.y, max(2, len(s.y) // 25)))
    last = f"{s.name}: {label(s.y[-1])} at {label(s.x[-1])}"
    yield f'<path class="line" stroke="{color}" d="{path(s.x, s.y)}"><title>{html.escape(last)}</title></path>'


def legend(names: Sequence[str]) -> str:
    """Return the names of the lines with their colors."""
    marks = (f'<i style="background:var(--c{i % COLOURS})"></i>' for i in range(len(names)))
    spans = (f"<span>{mark}{html.escape(name)}</span>" for mark, name in zip(marks, names, strict=True))
    return f'<p class="legend quiet">{"".join(spans)}</p>'


def smoothed(values: Sequence[float], radius: int) -> list[float]:
    """Return each value averaged with up to `radius` neighbors on both sides."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    ends = [(max(0, i - radius), min(len(values), i + radius + 1)) for i in range(len(values))]
    return [(sums[b] - sums[a]) / (b - a) for a, b in ends]


def thinned(s: Series) -> Series:
    """Return at most `POINTS` points, each the mean of its neighbors."""
    stride = math.ceil(len(s.x) / POINTS)
    if stride == 1:
        return s

    def mean(values):
        parts = (values[i : i + stride] for i in range(0, len(values or ()), stride))
        return [math.fsum(part) / len(part) for part in parts] or None

    return dataclasses.replace(s, x=mean(s.x), y=mean(s.y), low=mean(s.low), high=mean(s.high))


def nice_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers from at or below `low` to at or above `high`."""
    low, high = min(low, high), max(low, high)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-200):
        margin = abs(low) * 0.1 if abs(low) > 1e-200 else 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return labels of ticks, with as many digits as they need to differ."""
    labels = [label(tick) for tick in ticks]
    for digits in range(4, 9):
        if len(set(labels)) == len(labels):
            break
        labels = [f"{tick:.{digits}g}" for tick in ticks]
    return labels


def label(value: float) -> str:
    """Return a short label of a number."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    if size >= 1e3:
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 1e-3 or value == 0 else f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


def _finite(s: Series) -> Series:
    columns = [s.x, s.y, s.low or s.y, s.high or s.y]
    numbers = (row for row in zip(*columns, strict=True) if all(isinstance(v, int | float) for v in row))
    rows = [row for row in numbers if all(map(math.isfinite, row))]
    x, y, low, high = ([row[i] for row in rows] for i in range(4))
    return dataclasses.replace(s, x=x, y=y, low=low if s.low else None, high=high if s.high else None)
