"""Quality of a judge: agreement with a rule, and biases by position, length and author."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from envs.tasks.judges.judge import Verdict


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two texts with the verdict of a judge.

    Attributes:
        first: First text.
        second: Second text.
        verdict: Verdict of the judge.
        truth: Probability that the first text is better according to the rule; None without a rule.
        first_author: Model that wrote the first text, or "".
        second_author: Model that wrote the second text, or "".
        example: Name of the example, or "".
    """

    first: str
    second: str
    verdict: Verdict
    truth: float | None = None
    first_author: str = ""
    second_author: str = ""
    example: str = ""


def report(comparisons: Sequence[Comparison], author: str = "") -> dict[str, float]:
    """Measure a judge on comparisons; shares that nothing is known about are left out.

    Args:
        comparisons: Comparisons by one judge.
        author: Name of the judge as an author, for self-preference.

    Returns:
        - `pairs`: Number of comparisons.
        - `ties`: Share of ties, including flipped and failed comparisons.
        - `flipped`: Share of comparisons whose verdict changed with the order.
        - `failed`: Share of answers that were not verdicts.
        - `agreement`: Share of pairs decided by the rule in which the judge prefers the same text; ties count half.
        - `position_bias`: Mean probability of the text that is shown first, minus ½.
        - `length_bias`: Share of decided pairs in which the longer text wins, minus the same share for the rule, or
          minus ½ without a rule.
        - `self_preference`: Share of decided pairs with one text of the judge in which that text wins, minus the same
          share for the rule, or minus ½ without a rule.
    """
    verdicts = [c.verdict for c in comparisons]
    n = len(verdicts)
    answered = [v for v in verdicts if v.forward is not None or v.backward is not None or v.failed == 2]
    seen = [p for v in verdicts for p in (v.forward, v.backward) if p is not None]
    judged = [(c.verdict.p, c.truth) for c in comparisons if c.truth is not None and c.truth != 0.5]
    measures = {
        "pairs": float(n),
        "ties": _mean(v.p == 0.5 for v in verdicts),
        "flipped": _mean(v.flipped for v in verdicts),
        "failed": _mean(v.failed / 2 for v in answered),
        "agreement": _mean(0.5 if p == 0.5 else (p > 0.5) == (truth > 0.5) for p, truth in judged),
        "position_bias": _mean(p - 0.5 for p in seen),
        "length_bias": _excess(comparisons, lambda c: len(c.first) - len(c.second)),
        "self_preference": _excess(comparisons, lambda c: (c.first_author == author) - (c.second_author == author))
        if author
        else None,
    }
    return {name: value for name, value in measures.items() if value is not None}


def preferences(comparisons: Iterable[Comparison]) -> dict[str, dict[str, float]]:
    """Return the mean probability that an author's text is preferred, by author and example."""
    shares: dict[str, dict[str, list[float]]] = {}
    for one in comparisons:
        if one.first_author != one.second_author:
            for author, p in ((one.first_author, one.verdict.p), (one.second_author, 1.0 - one.verdict.p)):
                shares.setdefault(author, {}).setdefault(one.example, []).append(p)
    return {
        author: {example: sum(values) / len(values) for example, values in examples.items()}
        for author, examples in shares.items()
    }


def _excess(comparisons: Iterable[Comparison], favours: Callable[[Comparison], int]) -> float | None:
    """Return how much more often the judge prefers the favoured side than the rule.

    Args:
        comparisons: The comparisons.
        favours: Maps a comparison to a positive number for its first side, a negative one for its second, or 0.
    """
    kept = [(c, favours(c)) for c in comparisons if favours(c)]
    wins = _mean((c.verdict.p > 0.5) == (side > 0) for c, side in kept if c.verdict.p != 0.5)
    truth = _mean((c.truth > 0.5) == (side > 0) for c, side in kept if c.truth is not None and c.truth != 0.5)
    return None if wins is None else wins - (0.5 if truth is None else truth)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
