"""Thread-safe counters, gauges and histograms in the Prometheus text format.

Usage:

    metrics = ServerMetrics()
    metrics.count("http_requests_total", "Requests.", path="/predict", status=200)
    metrics.observe("http_request_seconds", "Seconds a request takes.", 0.02, path="/predict")
    metrics.text()  # the response to GET /metrics
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histogram buckets for durations, in seconds."""


class ServerMetrics:
    """Metrics by name. A metric is created at its first use and keeps its kind."""

    def __init__(self):
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[str, str]] = {}  # name: kind, help
        self._values: dict[str, dict[tuple, float]] = {}  # name: labels: value
        self._histograms: dict[str, dict[tuple, _Histogram]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, help: str, by: float = 1, /, **labels) -> None:
        """Add to a counter."""
        with self._lock:
            series, key = self._series(name, "counter", help), _key(labels)
            series[key] = series.get(key, 0) + by

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read whenever the metrics are requested."""
        with self._lock:
            self._series(name, "gauge", help)
            self._gauges[name] = read

    def observe(self, name: str, help: str, value: float, bounds: Sequence[float] = SECONDS, /, **labels) -> None:
        """Add a value to a histogram."""
        with self._lock:
            self._series(name, "histogram", help)
            series, key = self._histograms.setdefault(name, {}), _key(labels)
            if key not in series:
                series[key] = _Histogram(tuple(bounds))
            series[key].add(value)

    def value(self, name: str, /, **labels) -> float:
        """Return the value of a counter, or 0 if it does not exist yet."""
        with self._lock:
            return self._values.get(name, {}).get(_key(labels), 0)

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return text_of([self.snapshot()])

    def snapshot(self) -> list[dict[str, Any]]:
        """Return all metrics as a JSON value for `text_of`."""
        with self._lock:
            return [
                {"name": name, "kind": kind, "help": help, "series": [list(pair) for pair in self._read(name, kind)]}
                for name, (kind, help) in self._kinds.items()
            ]

    def _read(self, name: str, kind: str) -> list[tuple[tuple, Any]]:
        """Return the labels and value of each series; a histogram's value is (bounds, counts, sum)."""
        if kind == "gauge":
            return [((), self._gauges[name]())]
        if kind == "histogram":
            histograms = self._histograms.get(name, {})
            return [(key, (one.bounds, list(one.counts), one.sum)) for key, one in histograms.items()]
        return list(self._values.get(name, {}).items())

    def _series(self, name: str, kind: str, help: str) -> dict[tuple, float]:
        known, _ = self._kinds.setdefault(name, (kind, help))
        if known != kind:
            raise ValueError(f"the metric {name!r} is a {known} and cannot be used as a {kind}")
        return self._values.setdefault(name, {})


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value


def text_of(snapshots: Sequence[list[dict[str, Any]]]) -> str:
    """Return the sum of several processes' metrics in the Prometheus text format."""
    merged: dict[str, tuple[str, str, dict[tuple, Any]]] = {}
    for one in (one for snapshot in snapshots for one in snapshot):
        _, _, series = merged.setdefault(one["name"], (one["kind"], one["help"], {}))
        for labels, value in one["series"]:
            key = tuple((name, text) for name, text in labels)
            series[key] = _sum(series[key], value) if key in series else value
    lines = []
    for name, (kind, help, series) in merged.items():
        escaped = help.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]
        for key, value in series.items():
            lines += _histogram_lines(name, key, *value) if kind == "histogram" else [
                f"{name}{_braces(key)} {_number(value)}"
            ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _sum(one: Any, other: Any) -> Any:
    """Add two values of a series. Histograms have the same buckets in all processes."""
    if isinstance(one, int | float):
        return one + other
    (bounds, counts, total), (_, more, others) = one, other
    return bounds, [a + b for a, b in zip(counts, more, strict=True)], total + others


def _histogram_lines(name: str, key: tuple, bounds: Sequence[float], counts: Sequence[int], total: float) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_braces((*key, ('le', _number(bound))))} {below}")
    return [*lines, f"{name}_sum{_braces(key)} {_number(total)}", f"{name}_count{_braces(key)} {below}"]


def _key(labels: dict) -> tuple:
    pairs = [(name, str(value)) for name, value in labels.items()]
    return tuple(sorted(pairs) if len(pairs) > 1 else pairs)


def _braces(key: tuple) -> str:
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in key)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if key else ""


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
