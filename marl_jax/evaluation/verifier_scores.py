"""How good a verifier's scores are: accuracy, calibration, and how well they rank right answers above wrong ones.

    accuracy         at 0.5
    auc              a right answer scores above a wrong one, over all pairs; knowing which questions are hard helps
    auc_by_question  the same over pairs of one question, then the mean over questions: what a reward or best-of-n needs
    ece              expected calibration error: |mean score − share of right ones| over ten equal bins, by their counts
    brier, log_loss  proper scores of the probabilities; lower is better

Answers to one question are not independent, so intervals come from resampling questions.
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
    """Scores between two bounds: how many, their mean, and the share of right answers among them."""

    count: int
    score: float
    right: float


def accuracy(scores: np.ndarray, right: np.ndarray) -> float:
    """The share of answers on the correct side of 0.5."""
    return float(np.mean((scores > 0.5) == right))


def auc(scores: np.ndarray, right: np.ndarray) -> float | None:
    """The area under the ROC curve, pairs of equal scores counting half; None without both kinds."""
    n = int(np.sum(right))
    if n == 0 or n == len(right):
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((np.sum(ranks[right]) - n * (n + 1) / 2) / (n * (len(right) - n)))


def auc_by_question(scores: np.ndarray, right: np.ndarray, questions: np.ndarray) -> list[float]:
    """The area of every question that has both kinds of answers."""
    order = np.argsort(questions, kind="stable")
    cuts = np.flatnonzero(np.diff(questions[order])) + 1
    found = (auc(scores[picked], right[picked]) for picked in np.split(order, cuts))
    return [value for value in found if value is not None]


def reliability(scores: np.ndarray, right: np.ndarray, bins: int = BINS) -> list[Bin]:
    """Equal bins from 0 to 1; an empty one has the scores of its middle."""
    place = np.minimum((scores * bins).astype(int), bins - 1)
    found = []
    for i in range(bins):
        here = place == i
        n = int(np.sum(here))
        means = (float(np.mean(scores[here])), float(np.mean(right[here]))) if n else ((i + 0.5) / bins, 0.0)
        found.append(Bin(n, *means))
    return found


def ece(scores: np.ndarray, right: np.ndarray, bins: int = BINS) -> float:
    """The expected calibration error."""
    found = reliability(scores, right, bins)
    return sum(b.count * abs(b.score - b.right) for b in found) / len(scores)


def brier(scores: np.ndarray, right: np.ndarray) -> float:
    """The mean squared difference to the labels."""
    return float(np.mean((scores - right) ** 2))


def log_loss(scores: np.ndarray, right: np.ndarray) -> float:
    """The mean cross-entropy with the labels."""
    likely = np.where(right, scores, 1 - scores)
    return float(-np.mean(np.log(np.clip(likely, 1e-7, 1.0))))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "accuracy": accuracy, "auc": auc, "ece": ece, "brier": brier, "log_loss": log_loss,
}  # fmt: skip
NAMES = ("accuracy", "auc", "auc_by_question", "ece", "brier", "log_loss")


def row(scores: np.ndarray, right: np.ndarray, questions: np.ndarray, confidence: float) -> dict[str, Any]:
    """All metrics with their intervals, NAME, NAME_low and NAME_high; those that have no meaning here are left out."""
    found: dict[str, Any] = {"games": len(scores), "distinct": len(np.unique(questions))}
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
            found |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return found | {"right_share": float(np.mean(right)), "questions_with_both": len(areas)}


def _resample(scores: np.ndarray, right: np.ndarray, questions: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Scores and labels of questions drawn with replacement, again and again."""
    rng = np.random.default_rng(0)
    order = np.argsort(questions, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(questions[order])) + 1)
    drawn = (np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))]) for _ in range(RESAMPLES))
    return [(scores[picked], right[picked]) for picked in drawn]


SIDE, LEFT, TOP, FOOT = 320, 60, 46, 70


def diagram(title: str, scores: np.ndarray, right: np.ndarray) -> str:
    """A reliability diagram as an SVG document: share of right answers by score, and how many answers have it."""
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
