"""Counters, gauges and histograms in the text format of Prometheus; safe to use from several threads.

    metrics = Metrics()
    metrics.count("http_requests_total", "Requests.", path="/predict", status=200)
    metrics.observe("http_request_seconds", "Seconds a request takes.", 0.02, path="/predict")
    metrics.text()                                                     # what GET /metrics answers
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of times."""


class Metrics:
    """Metrics by name; each is created when it is first used, and a name has one kind."""

    def __init__(self):
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[str, str]] = {}  # name: kind, help
        self._values: dict[str, dict[tuple, float]] = {}  # name: labels: value
        self._histograms: dict[str, dict[tuple, _Histogram]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, help: str, by: float = 1, /, **labels) -> None:
        """Adds to a counter."""
        with self._lock:
            series, key = self._series(name, "counter", help), _key(labels)
            series[key] = series.get(key, 0) + by

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Adds a gauge, whose value is read when somebody asks for the metrics."""
        with self._lock:
            self._series(name, "gauge", help)
            self._gauges[name] = read

    def observe(self, name: str, help: str, value: float, bounds: Sequence[float] = SECONDS, /, **labels) -> None:
        """Adds a value to a histogram."""
        with self._lock:
            self._series(name, "histogram", help)
            series, key = self._histograms.setdefault(name, {}), _key(labels)
            if key not in series:
                series[key] = _Histogram(tuple(bounds))
            series[key].add(value)

    def value(self, name: str, /, **labels) -> float:
        """The value of a counter, 0 if there is none yet."""
        with self._lock:
            return self._values.get(name, {}).get(_key(labels), 0)

    def text(self) -> str:
        """All metrics."""
        lines = []
        with self._lock:
            for name, (kind, help) in self._kinds.items():
                escaped = help.replace("\\", r"\\").replace("\n", r"\n")
                lines += [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]
                lines += [f"{name}{_braces(key)} {_number(v)}" for key, v in self._values.get(name, {}).items()]
                if kind == "gauge":
                    lines.append(f"{name} {_number(self._gauges[name]())}")
                for key, histogram in self._histograms.get(name, {}).items():
                    lines += histogram.lines(name, key)
        return "\n".join(lines) + "\n"

    def _series(self, name: str, kind: str, help: str) -> dict[tuple, float]:
        known, _ = self._kinds.setdefault(name, (kind, help))
        if known != kind:
            raise ValueError(f"the metric {name!r} is a {known}; it cannot be used as a {kind}")
        return self._values.setdefault(name, {})


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, key: tuple) -> list[str]:
        found, below = [], 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            below += count
            found.append(f"{name}_bucket{_braces((*key, ('le', _number(bound))))} {below}")
        return [*found, f"{name}_sum{_braces(key)} {_number(self.sum)}", f"{name}_count{_braces(key)} {below}"]


def _key(labels: dict) -> tuple:
    found = [(name, str(value)) for name, value in labels.items()]
    return tuple(sorted(found) if len(found) > 1 else found)


def _braces(key: tuple) -> str:
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in key)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if key else ""


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
