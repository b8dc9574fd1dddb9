"""A round robin as a Markdown table and as an SVG chart."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from marl_jax.web.charts import nice_ticks

NAMES, PLOT, LINE, MARGIN = 220, 420, 24, 30  # widths and heights of the chart
INK, GRID, DOT = "#333333", "#e4e4e4", "#2471a3"


def by_elo(result: Mapping[str, Any]) -> list[str]:
    """Return the names of the contestants, the strongest first."""
    return sorted(result["names"], key=lambda name: -result["elo"][name])


def elo_text(result: Mapping[str, Any], name: str) -> str:
    """Return an Elo rating with its interval."""
    return f"{result['elo'][name]:.0f} [{result['elo_low'][name]:.0f}, {result['elo_high'][name]:.0f}]"


def markdown(result: Mapping[str, Any]) -> str:
    """Return a table with ratings and points, or with cross-play scores."""
    if "elo" not in result:
        return _table(["", *result["names"]], _scores(result)) + _summary(result)
    names = by_elo(result)
    where = {name: number for number, name in enumerate(result["names"])}
    head = ["", "Elo", "Nash average", "Nash share", *names]
    lines = []
    for name in names:
        points = ["–" if name == other else f"{result['matrix'][where[name]][where[other]]:.3f}" for other in names]
        nash = f"{result['nash_average'][name]:.3f}", f"{result['nash_share'][name]:.3f}"
        lines.append([name, elo_text(result, name), *nash, *points])
    return _table(head, lines)


def svg(result: Mapping[str, Any]) -> str:
    """Draw Elo ratings, the strongest contestant first, or cross-play scores."""
    if "elo" not in result:
        return _heatmap(result)
    names = by_elo(result)
    ticks = nice_ticks(min(result["elo_low"].values()), max(result["elo_high"].values()))
    low, high, bottom = ticks[0], ticks[-1], LINE * len(names) + MARGIN

    def x(value: float) -> str:
        return f"{NAMES + PLOT * (value - low) / (high - low):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {NAMES + PLOT + MARGIN} {bottom + MARGIN}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">'
    ]
    for tick in ticks:
        parts.append(f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{MARGIN - 10}" y2="{bottom}" stroke="{GRID}"/>')
        parts.append(f'<text x="{x(tick)}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for number, name in enumerate(names):
        y = MARGIN + LINE * number
        ends = f'x1="{x(result["elo_low"][name])}" x2="{x(result["elo_high"][name])}"'
        parts.append(f'<text x="{NAMES - 10}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(f'<line {ends} y1="{y}" y2="{y}" stroke="{INK}"/>')
        parts.append(f'<circle cx="{x(result["elo"][name])}" cy="{y}" r="4" fill="{DOT}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _scores(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a cross-play matrix: names, and scores with intervals."""
    ends = zip(result["matrix"], result["low"], result["high"], strict=True)
    cells = [[f"{x:.2f} [{low:.2f}, {high:.2f}]" for x, low, high in zip(*row, strict=True)] for row in ends]
    return [[name, *row] for name, row in zip(result["names"], cells, strict=True)]


def _summary(result: Mapping[str, Any]) -> str:
    """Return the means of the trained runs as a line of text."""
    means = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in result["cross_play"].items())
    return f"\nRuns: {means}.\n"


def _table(head: list[str], lines: list[list[str]]) -> str:
    cells = ([cell.replace("|", "\\|") for cell in line] for line in (head, ["---"] * len(head), *lines))
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _heatmap(result: Mapping[str, Any]) -> str:
    """Draw a cross-play matrix, higher scores in stronger color."""
    names, cell, top = result["names"], 80, 60
    values = [x for row in result["matrix"] for x in row]
    least, span = min(values), max(max(values) - min(values), 1e-9)
    width, height = NAMES + cell * len(names) + MARGIN, top + cell * len(names) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}">'
    ]
    for i, name in enumerate(names):
        x, y = NAMES + cell * i, top + cell * i
        parts.append(f'<text x="{NAMES - 10}" y="{y + cell / 2 + 4}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(f'<text x="{x + cell / 2}" y="{top - 12}" text-anchor="middle">{html.escape(name[-12:])}</text>')
        for j, value in enumerate(result["matrix"][i]):
            x, middle = NAMES + cell * j, f'text-anchor="middle" x="{NAMES + cell * (j + 0.5)}"'
            share = 0.1 + 0.6 * (value - least) / span
            box = f'width="{cell - 2}" height="{cell - 2}" fill="{DOT}" fill-opacity="{share:.2f}"'
            parts.append(f'<rect x="{x}" y="{y}" {box}/>')
            parts.append(f'<text {middle} y="{y + 38}">{value:.2f}</text>')
            ends = f"{result['low'][i][j]:.2f} – {result['high'][i][j]:.2f}"
            parts.append(f'<text {middle} y="{y + 56}" font-size="10">{ends}</text>')
    return "\n".join([*parts, "</svg>", ""])
