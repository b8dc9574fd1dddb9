"""Confidence intervals and Elo ratings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

LINE = 84  # characters; the time and the number of games add about 50 more to a log line


class Interval(NamedTuple):
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(successes: float, n: int, confidence: float = 0.95, distinct: int | None = None) -> Interval:
    """Compute the Wilson interval of a rate, which suits few trials and extreme rates.

    Args:
        successes: Number of successes. It may be fractional (a draw counts ½), which makes the interval slightly too
            wide.
        n: Number of trials.
        confidence: Confidence level.
        distinct: Number of distinct trials, if the others repeat them. Determines the width of the interval.
    """
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"successes is {successes} with n {n}, but must be from 0 to n, and n must be > 0")
    z = _z(confidence)
    p, n = successes / n, _distinct(n, distinct)
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, float(max(0.0, min(center - half, p))), float(min(1.0, max(center + half, p))))


def normal(values, confidence: float = 0.95) -> Interval:
    """Compute the interval of a mean from its standard error, for many values."""
    values = _values(values)
    half = _z(confidence) * values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else np.inf
    mean = float(values.mean())
    return Interval(mean, float(mean - half), float(mean + half))


def bootstrap(
    values, confidence: float = 0.95, resamples: int = 2000, seed: int = 0, distinct: int | None = None
) -> Interval:
    """Compute the bootstrap interval of a mean, for few or skewed values.

    Args:
        values: Values.
        confidence: Confidence level.
        resamples: Number of bootstrap samples.
        seed: Random seed.
        distinct: See `wilson`.
    """
    values = _values(values)
    rng = np.random.default_rng(seed)
    # Multinomial counts of distinct values need less memory than resamples x values.
    different, counts = np.unique(values, return_counts=True)
    n = _distinct(values.size, distinct)
    drawn = rng.multinomial(n, counts / values.size, size=resamples)
    means = drawn @ different / n
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(values.mean()), float(low), float(high))


def paired(ours, baseline, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Compute the bootstrap interval of the mean difference on the same examples.

    Half an example that only ours gets right, half an example that only the baseline gets right, and one on which they
    are equal are added before resampling (Agresti and Min 2005), because equal results of a few examples prove nothing.
    """
    ours, baseline = _values(ours), _values(baseline)
    if ours.size != baseline.size:
        raise ValueError(f"there are {ours.size} and {baseline.size} values, but both must have the same examples")
    different, counts = np.unique(ours - baseline, return_counts=True)
    chances = np.concatenate([counts, [0.5, 0.5, 1.0]])
    drawn = np.random.default_rng(seed).multinomial(ours.size, chances / chances.sum(), size=resamples)
    means = drawn @ np.concatenate([different, [1.0, -1.0, 0.0]]) / ours.size
    value, tail = float((ours - baseline).mean()), (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(value, min(float(low), value), max(float(high), value))


def student(values, confidence: float = 0.95) -> Interval:
    """Compute Student's t interval of a mean, for few values such as those of seeds.

    The interval of a single value has no width.
    """
    values = _values(values)
    mean, n = float(values.mean()), values.size
    half = _t(confidence, n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    return Interval(mean, mean - half, mean + half)


def elo(scores, games, prior_games: float = 1.0, mean: float = 1000.0) -> np.ndarray:
    """Compute Elo ratings by maximum likelihood (Bradley-Terry; a draw counts ½).

    Args:
        scores: [..., n, n]. Points of row against column.
        games: [n, n]. Number of games between row and column; symmetric.
        prior_games: Number of virtual draws against an average player, which keep all ratings finite.
        mean: Mean rating.

    Returns:
        Ratings [..., n]. A difference of 400 points means ten wins to one.
    """
    scores, games = np.asarray(scores, float), np.asarray(games, float)
    n = len(games)
    if scores.shape[-2:] != (n, n) or games.shape != (n, n):
        raise ValueError(
            f"scores have shape {scores.shape} and games {games.shape}, but must have the same square shape"
        )
    if not np.allclose(games, games.T) or not np.allclose(scores + np.swapaxes(scores, -1, -2), games):
        raise ValueError("scores[i, j] + scores[j, i] must equal games[i, j], and games must be symmetric")
    others = ~np.eye(n, dtype=bool)
    games, won = games * others, (scores * others).sum(-1) + prior_games / 2
    strength = np.zeros(won.shape)  # logarithm, in nats; virtual opponents have 0
    for _ in range(200):  # Newton's method, in steps of at most 1
        expected = 1 / (1 + np.exp(strength[..., None, :] - strength[..., :, None]))
        drawn = 1 / (1 + np.exp(-strength))
        gradient = won - (games * expected).sum(-1) - prior_games * drawn
        curvature = games * expected * (1 - expected)
        diagonal = curvature.sum(-1) + prior_games * drawn * (1 - drawn)
        step = np.linalg.solve(diagonal[..., None] * np.eye(n) - curvature, gradient[..., None])[..., 0]
        largest = np.abs(step).max(-1, keepdims=True)
        strength = strength + step / np.maximum(largest, 1.0)
        if largest.max() < 1e-10:
            break
    ratings = 400 / np.log(10) * strength
    return ratings - ratings.mean(-1, keepdims=True) + mean


def elo_intervals(
    points, draws, games, confidence: float = 0.95, resamples: int = 500, seed: int = 0
) -> list[Interval]:
    """Compute Elo ratings with bootstrap intervals over the games of every pair.

    Args:
        points: [n, n]. Mean points of row against column.
        draws: [n, n]. Share of draws; symmetric.
        games: [n, n]. Number of distinct games; symmetric.
        confidence: Confidence level.
        resamples: Number of bootstrap samples.
        seed: Random seed.
    """
    points, draws, games = (np.asarray(x, float) for x in (points, draws, games))
    n, rng = len(games), np.random.default_rng(seed)
    scores = np.zeros((resamples, n, n))
    for i, j in zip(*np.triu_indices(n, 1), strict=True):
        won, lost = points[i, j] - draws[i, j] / 2, points[j, i] - draws[i, j] / 2
        share = np.clip([won, draws[i, j], lost], 0.0, 1.0)
        drawn = rng.multinomial(int(games[i, j]), share / share.sum(), size=resamples)
        scores[:, i, j] = drawn @ [1.0, 0.5, 0.0]
        scores[:, j, i] = games[i, j] - scores[:, i, j]
    tail = (1 - confidence) / 2
    others = games * ~np.eye(n, dtype=bool)
    low, high = np.quantile(elo(scores, others), [tail, 1 - tail], axis=0)
    return [Interval(*map(float, ends)) for ends in zip(elo(points * others, others), low, high, strict=True)]


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}, but must be between 0 and 1")
    return statistics.NormalDist().inv_cdf(0.5 + confidence / 2)


def _t(confidence: float, freedom: int) -> float:
    """Return t such that Student's distribution is within ±t with a probability of `confidence`."""
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(freedom)
    for _ in range(60):
        angle = (low + high) / 2
        term, terms = (1.0, 0.0) if freedom % 2 == 0 else (math.cos(angle), 0.0)
        for i in range(2 + freedom % 2, freedom + 1, 2):
            terms, term = terms + term, term * math.cos(angle) ** 2 * (i - 1) / i
        inside = math.sin(angle) * terms if freedom % 2 == 0 else 2 / math.pi * (angle + math.sin(angle) * terms)
        low, high = (angle, high) if inside < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _distinct(n: int, distinct: int | None) -> int:
    if distinct is not None and not 0 < distinct <= n:
        raise ValueError(f"distinct is {distinct}, but must be from 1 to the number of values ({n})")
    return n if distinct is None else distinct


def _values(values) -> np.ndarray:
    values = np.asarray(values, float).ravel()
    if not values.size:
        raise ValueError("values is empty, but must have at least one value")
    return values


def describe(row: Mapping[str, Any]) -> str:
    """Describe a row of an evaluation in a line of about `LINE` characters.

    The first metric is shown with its interval, the others without. Metrics of single seats are left out, and so are
    the last ones if they do not fit. The number of failed episodes always comes last. A row of a task has a `part`, the
    split, and no opponent if the trained policies play.
    """
    who = "" if "part" in row and row["opponent"] == "self" else f"{row['opponent']}: "
    names = [name for name in row if f"{name}_low" in row and "_seat_" not in name]
    failed = failures(row)
    if not names:
        return f"{who}{failed}" if failed else str(row["opponent"])
    first, *others = names
    words = [f"{first.replace('_', ' ')} {Interval(row[first], row[f'{first}_low'], row[f'{first}_high'])}"]
    words += [f"{name.removesuffix('_rate').replace('_', ' ')} {row[name]:.3f}" for name in others]
    line, shown = f"{who}{words[0]}", 1
    more = ", …"
    while shown < len(words) and len(line) + len(words[shown]) + 2 + len(more) * (shown + 1 < len(words)) <= LINE:
        line, shown = f"{line}, {words[shown]}", shown + 1
    line = line if shown == len(words) else line + more
    return f"{line}; {failed}" if failed else line


def failures(row: Mapping[str, Any]) -> str:
    """Describe the failed episodes of an evaluation, or return "".

    For example, "12 of 512 failed (timeout: 12)".
    """
    if not row.get("failed"):
        return ""
    reasons = {name.removeprefix("failed/"): n for name, n in row.items() if name.startswith("failed/")}
    return f"{row['failed']} of {row['games']} failed ({', '.join(f'{reason}: {n}' for reason, n in reasons.items())})"
