"""A round robin as a Markdown table and as an SVG chart of Elo ratings."""

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
    """Return a table with ratings and the points of row against column."""
    names = by_elo(result)
    where = {name: number for number, name in enumerate(result["names"])}
    head = ["", "Elo", "Nash average", "Nash share", *names]
    lines = [head, ["---"] * len(head)]
    for name in names:
        points = ["–" if name == other else f"{result['matrix'][where[name]][where[other]]:.3f}" for other in names]
        nash = f"{result['nash_average'][name]:.3f}", f"{result['nash_share'][name]:.3f}"
        lines.append([name, elo_text(result, name), *nash, *points])
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def svg(result: Mapping[str, Any]) -> str:
    """Draw the Elo ratings with their intervals, the strongest contestant first."""
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
