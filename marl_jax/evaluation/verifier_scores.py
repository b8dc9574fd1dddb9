"""Metrics of verifier scores: accuracy, ranking and calibration.

    accuracy         accuracy with threshold 0.5
    auc              probability that a correct completion scores above a wrong one, over all pairs; also rewards
                     knowing which questions are hard
    auc_by_question  the same over pairs of one question, averaged over questions; relevant for rewards and best-of-n
    ece              expected calibration error: mean |mean score − fraction correct| over ten equal bins
    brier, log_loss  proper scoring rules of the probabilities; lower is better

Completions of one question are not independent, so intervals come from resampling questions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from envs.games import svg
from marl_jax.evaluation import intervals
from marl_jax.evaluation.intervals import Interval

BINS = 10
RESAMPLES = 300


class Bin(NamedTuple):
    """A bin of scores: their number, their mean, and the fraction of correct completions."""

    count: int
    score: float
    right: float


def accuracy(scores: np.ndarray, right: np.ndarray) -> float:
    """Compute the accuracy with threshold 0.5."""
    return float(np.mean((scores > 0.5) == right))


def auc(scores: np.ndarray, right: np.ndarray) -> float | None:
    """Compute the area under the ROC curve, or return None without both labels."""
    n = int(np.sum(right))
    if n == 0 or n == len(right):
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((np.sum(ranks[right]) - n * (n + 1) / 2) / (n * (len(right) - n)))


def auc_by_question(scores: np.ndarray, right: np.ndarray, questions: np.ndarray) -> list[float]:
    """Compute the AUC of every question with both labels."""
    order = np.argsort(questions, kind="stable")
    cuts = np.flatnonzero(np.diff(questions[order])) + 1
    areas = (auc(scores[picked], right[picked]) for picked in np.split(order, cuts))
    return [value for value in areas if value is not None]


def reliability(scores: np.ndarray, right: np.ndarray, bins: int = BINS) -> list[Bin]:
    """Divide the scores into equal bins; the mean of an empty one is its center."""
    place = np.minimum((scores * bins).astype(int), bins - 1)
    result = []
    for i in range(bins):
        here = place == i
        n = int(np.sum(here))
        means = (float(np.mean(scores[here])), float(np.mean(right[here]))) if n else ((i + 0.5) / bins, 0.0)
        result.append(Bin(n, *means))
    return result


def ece(scores: np.ndarray, right: np.ndarray, bins: int = BINS) -> float:
    """Compute the expected calibration error."""
    table = reliability(scores, right, bins)
    return sum(b.count * abs(b.score - b.right) for b in table) / len(scores)


def brier(scores: np.ndarray, right: np.ndarray) -> float:
    """Compute the mean squared difference from the labels."""
    return float(np.mean((scores - right) ** 2))


def log_loss(scores: np.ndarray, right: np.ndarray) -> float:
    """Compute the mean cross-entropy with the labels."""
    likely = np.where(right, scores, 1 - scores)
    return float(-np.mean(np.log(np.clip(likely, 1e-7, 1.0))))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "accuracy": accuracy, "auc": auc, "ece": ece, "brier": brier, "log_loss": log_loss,
}  # fmt: skip
NAMES = ("accuracy", "auc", "auc_by_question", "ece", "brier", "log_loss")


def row(scores: np.ndarray, right: np.ndarray, questions: np.ndarray, confidence: float) -> dict[str, Any]:
    """Compute all defined metrics with their intervals: NAME, NAME_low and NAME_high."""
    metrics: dict[str, Any] = {"games": len(scores), "distinct": len(np.unique(questions))}
    resampled = _resample(scores, right, questions)
    tail = (1 - confidence) / 2
    areas = auc_by_question(scores, right, questions)
    for name in NAMES:
        if name == "auc_by_question":
            interval = intervals.bootstrap(areas, confidence) if areas else None
        else:
            value = METRICS[name](scores, right)
            values = [v for s, r in resampled if (v := METRICS[name](s, r)) is not None]
            interval = None if value is None else Interval(value, *np.quantile(values, [tail, 1 - tail]).tolist())
        if interval is not None:
            metrics |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return metrics | {"right_share": float(np.mean(right)), "questions_with_both": len(areas)}


def _resample(scores: np.ndarray, right: np.ndarray, questions: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw bootstrap samples of questions and return their scores and labels."""
    rng = np.random.default_rng(0)
    order = np.argsort(questions, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(questions[order])) + 1)
    drawn = (np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))]) for _ in range(RESAMPLES))
    return [(scores[picked], right[picked]) for picked in drawn]


SIDE, LEFT, TOP, FOOT = 320, 60, 46, 70


def diagram(title: str, scores: np.ndarray, right: np.ndarray) -> str:
    """Draw a reliability diagram as SVG: fraction of correct completions and counts by score."""
    bins = reliability(scores, right)
    most = max(b.count for b in bins)
    shapes = [svg.text(LEFT, 26, f"{title}: ECE {ece(scores, right):.3f}, {len(scores)} answers", 14, anchor="start")]

    def x(value: float) -> float:
        return LEFT + SIDE * value

    def y(value: float) -> float:
        return TOP + SIDE * (1 - value)

    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        shapes += [svg.line(x(0), y(tick), x(1), y(tick), "#e4e4e4"), svg.line(x(tick), y(0), x(tick), y(1), "#e4e4e4")]
        shapes += [svg.text(LEFT - 8, y(tick) + 4, f"{tick:g}", 12, anchor="end")]
        shapes += [svg.text(x(tick), y(0) + 18, f"{tick:g}", 12)]
    for i, one in enumerate(bins):
        height = SIDE * 0.25 * one.count / most
        shapes.append(svg.rect(x(i / BINS) + 2, y(0) - height, SIDE / BINS - 4, height, "#dbe5ec"))
    shapes.append(svg.line(x(0), y(0), x(1), y(1), "#999999"))
    points = [(x(one.score), y(one.right)) for one in bins if one.count]
    shapes += [svg.line(*a, *b, "#2471a3", 2) for a, b in zip(points, points[1:], strict=False)]
    shapes += [svg.circle(*point, 4, "#2471a3") for point in points]
    shapes.append(svg.text(x(0.5), y(0) + 42, "score", 13))
    shapes.append(svg.text(8, TOP - 8, "share of right answers; bars: answers", 12, anchor="start"))
    return svg.document(LEFT + SIDE + 40, TOP + SIDE + FOOT, shapes)
