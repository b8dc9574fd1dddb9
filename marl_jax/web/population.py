"""Results of a population as a Markdown table and as a page with curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_jax.web.charts import Series, chart, label, legend
from marl_jax.web.markup import page, table, text

FILE = "population.html"
HEAD = ("member", "share of the mixture", "payoff against it", "exploitability")


def markdown(history: Sequence[Mapping[str, Any]]) -> str:
    """Return the members with their shares, payoffs and exploitability, and the results of every round."""
    last = history[-1]
    lines = [HEAD, ["---"] * len(HEAD), *_rows(last)]
    rounds = [("round", "exploitability of the mixture", "gain of new members", "gain of a best response")]
    rounds += [("---",) * 4, *map(_round, history)]
    tables = ("".join(f"| {' | '.join(line)} |\n" for line in lines) for lines in (lines, rounds))
    return "\n".join(tables)


def html(name: str, history: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with the exploitability over the rounds, the members and their payoffs."""
    last, lines = history[-1], []
    if last["exploitability"] is not None:
        series = [Series("mixture", *_curve(history))]
        series += [Series(f"newest {kind}", *_curve(history, kind)) for kind in _kinds(last["names"])]
        lines += ["<h2>Exploitability</h2>", legend([one.name for one in series]), chart(series, axis="round")]
    lines += ["<h2>Members</h2>", table(HEAD, [[text(cell) for cell in row] for row in _rows(last)])]
    lines += ["<h2>Payoffs of row against column</h2>"]
    payoffs = [
        [text(name), *(label(value) for value in row)] for name, row in zip(last["names"], last["payoffs"], strict=True)
    ]
    lines += [table(["", *map(text, last["names"])], payoffs)]
    return page(f"Population {name}", lines)


def _rows(last: Mapping[str, Any]) -> list[list[str]]:
    gains = [sum(a * b for a, b in zip(row, last["shares"], strict=True)) for row in last["payoffs"]]
    exploited = last["of_members"] or [None] * len(gains)
    return [
        [name, f"{share:.1%}", f"{gain:.3f}", "–" if value is None else f"{value:.3f}"]
        for name, share, gain, value in zip(last["names"], last["shares"], gains, exploited, strict=True)
    ]


def _round(record: Mapping[str, Any]) -> tuple[str, ...]:
    gains = ", ".join(f"{name} {gain:.3f}" for name, gain in record.get("gain", {}).items()) or "–"
    best, value = record.get("best_gain"), record["exploitability"]
    return (
        str(record["round"]),
        *("–" if x is None else f"{x:.3f}" for x in (value,)),
        gains,
        ("–" if best is None else f"{best:.3f}"),
    )


def _kinds(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition("-")[0] for name in names))


def _curve(history: Sequence[Mapping[str, Any]], kind: str = "") -> tuple[list[int], list[float]]:
    """Return rounds and exploitability of the mixture, or of the newest member of a kind."""
    steps, values = [], []
    for record in history:
        chosen = [i for i, name in enumerate(record["names"]) if name.rpartition("-")[0] == kind]
        if not kind or chosen:
            steps.append(record["round"])
            values.append(record["of_members"][chosen[-1]] if kind else record["exploitability"])
    return steps, values
