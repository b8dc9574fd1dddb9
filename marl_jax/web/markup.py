"""Pieces of HTML that the reports share: page, tables, figures and cards with explained charts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from marl_jax.running.metric_help import explain
from marl_jax.web.charts import label

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Content security policy of a report: it loads nothing and runs no script."""

CODE = re.compile("`([^`]*)`")
EXACT = ("exploitability", "nash_conv", "payoff_seat_0", "payoff_seat_1")
"""Metrics of an evaluation that are computed exactly and have no interval."""


def text(value: object) -> str:
    """Escape a value for HTML."""
    return html.escape(str(value), quote=True)


def page(title: str, lines: Iterable[str]) -> str:
    """Return a self-contained page; the title is escaped here, the lines are HTML."""
    style = Path(__file__).with_name("report.css").read_text()
    body = "\n".join([f"<h1>{text(title)}</h1>", *lines])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def tiles(shown: Sequence[tuple[str, str]]) -> str:
    """Return the figures at the top of a page, each with its name."""
    cards = (f'<div class="card"><span class="quiet">{text(n)}</span><b>{text(v)}</b></div>' for n, v in shown)
    return f'<div class="figures">{"".join(cards)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table that scrolls sideways, with a shadow at the edge that hides columns.

    Args:
        head: Titles of the columns, as HTML.
        rows: Cells, as HTML.
        kind: Class of the table.
    """
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    shown = "".join(f"<tr>{line}</tr>\n" for line in ["".join(f"<th>{title}</th>" for title in head), *lines])
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{shown}</table></div>'


def metric_title(name: str, known: Mapping[str, str] | None = None) -> str:
    """Return the title of a column, with the explanation of the metric as its tooltip."""
    return f'<span title="{text(explain(name, known) or "")}">{text(name.replace("_", " "))}</span>'


def chart_card(name: str, drawing: str, known: Mapping[str, str] | None = None, title: str = "") -> str:
    """Return a card with a chart and the explanation of its metric.

    Args:
        name: Name of the metric.
        drawing: The chart.
        known: Explanations by name; None for those of training metrics.
        title: Title, if it is not the name.
    """
    words = explain(name, known)
    help_line = '<p class="help">' + CODE.sub(r"<code>\1</code>", text(words)) + "</p>" if words else ""
    return f'<div class="card"><h3>{text(title or name.replace("_", " "))}</h3>{help_line}{drawing}</div>'


def is_share(name: str) -> bool:
    """Return whether a metric is a fraction."""
    shares = ("rate", "accuracy", "precision")
    return any(word in name for word in shares) or name == "success" or "@" in name or name.startswith("right/")


def figure(value: float, name: str) -> str:
    """Return a value, as a percentage if the metric is a fraction."""
    return f"{100 * value:.1f} %" if is_share(name) else label(value)


def interval(row: Mapping, name: str) -> str:
    """Return the cell of a metric with its interval, or a dash."""
    numbers = [x for key in (name, f"{name}_low", f"{name}_high") if isinstance(x := row.get(key), int | float)]
    if len(numbers) < 3:
        return "–"
    value, low, high = numbers
    if low == value == high and name in EXACT:
        return label(value)
    if is_share(name):
        return f'{100 * value:.1f} % <span class="quiet">[{100 * low:.1f}, {100 * high:.1f}]</span>'
    return f'{value:.3g} <span class="quiet">[{low:.3g}, {high:.3g}]</span>'
