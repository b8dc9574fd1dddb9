"""A bar chart as an SVG document: rates before and after, in groups, with their intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape

Interval = tuple[float, float, float]
"""Value, low and high, between 0 and 1."""

LABELS, PLOT, RIGHT = 300, 420, 70
LINE, GAP, TITLE, TOP = 26, 16, 26, 34
BEFORE, AFTER, INK = "#b9c9d6", "#2471a3", "#333333"


@dataclasses.dataclass(frozen=True)
class Bar:
    """One line: a rate before and one after, either of which may be missing."""

    words: str
    before: Interval | None
    after: Interval | None


def chart(groups: Mapping[str, Sequence[Bar]]) -> str:
    """The document: a block of lines for every group, on one scale from 0 to 100 %."""
    height = TOP + sum(TITLE + LINE * len(bars) + GAP for bars in groups.values()) + 20
    width = LABELS + PLOT + RIGHT
    parts = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *_legend()]
    y = TOP
    for title, bars in groups.items():
        parts.append(_text(12, y + 16, title, anchor="start", bold=True))
        y += TITLE
        for tick in range(0, 101, 20):
            x = LABELS + PLOT * tick / 100
            parts.append(f'<line x1="{x:g}" x2="{x:g}" y1="{y}" y2="{y + LINE * len(bars)}" stroke="#e4e4e4"/>')
        for bar in bars:
            parts += _bar(bar, y)
            y += LINE
        y += GAP
    parts += [_text(LABELS + PLOT * tick / 100, y, f"{tick} %") for tick in range(0, 101, 20)]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif">\n{body}\n</svg>\n'
    )


def _legend() -> list[str]:
    parts = []
    for x, fill, words in ((LABELS, BEFORE, "before training"), (LABELS + 140, AFTER, "after")):
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{fill}"/>')
        parts.append(_text(x + 18, 22, words, anchor="start"))
    return parts


def _bar(bar: Bar, y: float) -> list[str]:
    parts = [_text(LABELS - 10, y + LINE / 2 + 4, bar.words, anchor="end")]
    shown = [(rate, fill) for rate, fill in ((bar.before, BEFORE), (bar.after, AFTER)) if rate is not None]
    for number, (rate, fill) in enumerate(shown):
        thick = (LINE - 8) / len(shown)
        top = y + 4 + number * thick
        value, low, high = (PLOT * x for x in rate)
        middle = top + thick / 2
        parts.append(f'<rect x="{LABELS}" y="{top:g}" width="{value:.1f}" height="{thick - 1:g}" fill="{fill}"/>')
        parts.append(
            f'<line x1="{LABELS + low:.1f}" x2="{LABELS + high:.1f}" y1="{middle:g}" y2="{middle:g}" stroke="{INK}"/>'
        )
    if shown:
        value, _, high = shown[-1][0]
        place = LABELS + PLOT * high + 6
        parts.append(_text(place, y + LINE / 2 + 4, f"{100 * value:.1f}", anchor="start"))
    return parts


def _text(x: float, y: float, words: str, anchor: str = "middle", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    words = escape(words)
    return f'<text x="{x:g}" y="{y:g}" font-size="12"{weight} fill="{INK}" text-anchor="{anchor}">{words}</text>'
