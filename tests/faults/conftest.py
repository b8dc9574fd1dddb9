"""Counts of the soak: what every test has done and seen, as a table at the end of `make soak`."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.faults import fuzz

PROPERTY = "seen"
# The processes of pytest-xdist inherit the time at which the soak ends.
END = os.environ.setdefault(
    "MARL_JAX_SOAK_END", str(time.time() + 60 * float(os.environ.get("MARL_JAX_SOAK_MINUTES", "inf")))
)


@pytest.fixture(autouse=True)
def in_time():
    """Skip the tests that are left when the minutes of the soak are over."""
    if time.time() > float(END):
        pytest.skip("no time is left")


@pytest.fixture
def seen(record_property):
    """`seen(what, outcome, kills=3)`: a row of the table; rows of one `what` are added up."""

    def record(what: str, outcome: str, **counts: int) -> None:
        record_property(PROPERTY, json.dumps([what, outcome, counts]))

    return record


def table(rows: list[tuple[str, str, dict[str, int]]]) -> list[str]:
    """Lines of Markdown, a row for each `what`, with the sums of its counts."""
    found: dict[str, tuple[dict[str, int], dict[str, None]]] = {}
    for what, outcome, counts in rows:
        sums, outcomes = found.setdefault(what, ({}, {}))
        outcomes[outcome] = None
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count
    lines = ["| what | seen |", "| --- | --- |"]
    for what in sorted(found):
        sums, outcomes = found[what]
        done = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sums.items())
        lines.append(f"| {what} | {done}{': ' if done else ''}{'; '.join(outcomes)} |")
    return lines


def pytest_terminal_summary(terminalreporter):
    """Print the table, and the tests that failed or were skipped and therefore have no counts."""
    if not fuzz.SOAK:
        return
    reports = [report for found in terminalreporter.stats.values() for report in found if hasattr(report, "when")]
    passed = [report for report in reports if report.when == "call" and report.passed]
    given = [value for report in passed for name, value in report.user_properties if name == PROPERTY]
    terminalreporter.section(f"soak, seed {fuzz.SOAK}")
    for line in table([json.loads(value) for value in given]):
        terminalreporter.write_line(line)
    for kind in ("failed", "error", "skipped"):
        for report in terminalreporter.stats.get(kind, ()):
            terminalreporter.write_line(f"{kind}: {report.nodeid}")
