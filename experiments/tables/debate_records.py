"""Statistics of the episodes of an evaluation (`answers/test_*.jsonl`), as pure functions."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from experiments.tables.intervals import difference, rate
from experiments.tables.runs import Rate

Record = Mapping[str, Any]
"""An episode: one question that was debated."""


def by_turn(records: Sequence[Record], metric: str, turns: int) -> list[Rate]:
    """Return a metric of every turn, such as "vote"; failed episodes count as 0."""
    return [rate([r["metrics"].get(f"{metric}_turn_{t + 1}", 0.0) for r in records]) for t in range(turns)]


def transitions(records: Sequence[Record]) -> list[dict[str, float]]:
    """Return the fractions of "RR", "RW", "WR" and "WW" for every later turn.

    They compare an agent's answer with its previous one.
    """
    counts: dict[int, Counter[str]] = {}
    for record in records:
        right = {(turn["role"], turn["turn"]): bool(turn["verdict"]["right"]) for turn in judged(record)}
        for (role, turn), after in right.items():
            if (role, turn - 1) in right:
                change = f"{'R' if right[role, turn - 1] else 'W'}{'R' if after else 'W'}"
                counts.setdefault(turn, Counter())[change] += 1
    return [{c: counts[turn][c] / counts[turn].total() for c in ("RR", "RW", "WR", "WW")} for turn in sorted(counts)]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Average cost of a question.

    Attributes:
        answers: Number of completions.
        written: Number of generated tokens.
        processed: Number of tokens of all conversations, each counted once.
    """

    answers: float
    written: float
    processed: float

    def __str__(self) -> str:
        return f"{self.answers:.1f} | {self.written:,.0f} | {self.processed:,.0f}"


def cost(records: Sequence[Record], answers: int | None = None) -> Cost:
    """Return the average cost of a question, or of its first `answers` completions."""
    totals = [0.0, 0.0, 0.0]
    for record in records:
        turns = record["turns"][:answers]
        ends = {turn["role"]: turn["context"] + turn["tokens"] for turn in turns}  # of the last turn of each chat
        for i, value in enumerate((len(turns), sum(turn["tokens"] for turn in turns), sum(ends.values()))):
            totals[i] += value
    return Cost(*(total / len(records) for total in totals))


def judged(record: Record) -> list[Mapping[str, Any]]:
    """Return the turns with a verdict; none if the episode failed."""
    return [] if record["failed"] else [turn for turn in record["turns"] if turn["verdict"] is not None]


# ------------------------------------------------------------------------------------------- independent samples


def majority(record: Record, n: int) -> float:
    """Return how right the vote of the first `n` answers is, as in debates.

    A missing answer loses a tie against an answer.
    """
    verdicts = [turn["verdict"] for turn in judged(record)[:n]]
    counts = Counter(verdict["answer"] for verdict in verdicts)
    top = [answer for answer, count in counts.items() if count == max(counts.values())]
    top = [answer for answer in top if answer is not None] or top
    right = {verdict["answer"] for verdict in verdicts if verdict["right"]}
    return len(right & set(top)) / len(top) if top else 0.0


def scored(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records if a verifier has scored their answers, otherwise none."""
    return records if any("score" in turn["verdict"] for record in records for turn in judged(record)) else ()


def best_of(record: Record) -> float:
    """Return how right the answer with the verifier's highest score is.

    Equal scores give the mean.
    """
    return _mean_right([(score, right) for score, right, _ in _scores(record)])


def weighted_vote(record: Record) -> float:
    """Return how right the answer with the highest sum of scores is.

    Equal sums give the mean.
    """
    totals: dict[str, tuple[float, float]] = {}
    for score, right, answer in _scores(record):
        totals[answer] = totals.get(answer, (0.0, 0.0))[0] + score, right
    return _mean_right(totals.values())


def _scores(record: Record) -> list[tuple[float, float, str]]:
    """Return (score, right, answer) of the answers that could be read."""
    verdicts = [turn["verdict"] for turn in judged(record)]
    return [(v["score"], v["right"], v["answer"]) for v in verdicts if v["answer"] is not None]


def _mean_right(pairs: Collection[tuple[float, float]]) -> float:
    """Return the mean correctness of the pairs (score, right) with the highest score, or 0."""
    most = max((score for score, _ in pairs), default=0.0)
    top = [right for score, right in pairs if score == most]
    return sum(top) / len(top) if top else 0.0


def equal_tokens(samples: Sequence[Record], written: float) -> int:
    """Return how many samples together write about as many tokens as a debate.

    The result is at least 1 and at most the number of samples.
    """
    most = max((len(record["turns"]) for record in samples), default=1)
    costs = {n: abs(cost(samples, n).written - written) for n in range(1, most + 1)}
    return min(costs, key=costs.get)


# ------------------------------------------------------------------------------------------------------ comparison


def paired(
    ours: Sequence[Record], baseline: Sequence[Record], value: Callable[[Record], float]
) -> tuple[Rate, int] | None:
    """Compare debates with a baseline on the questions that both have.

    Args:
        ours: Episodes of debates.
        baseline: Episodes of the baseline.
        value: Success of an episode of the baseline.

    Returns:
        The difference of the means and the number of questions, or None without common questions.
    """
    other = {record["id"]: value(record) for record in baseline}
    both = [(record["success"], other[record["id"]]) for record in ours if record["id"] in other]
    return (difference(*zip(*both, strict=True)), len(both)) if both else None


def points(change: Rate) -> str:
    """Format a difference in percentage points."""
    return f"{100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"


def verdict(change: Rate, baseline: str) -> str:
    """Describe a difference; no claim is made if the interval contains 0."""
    if change.low > 0:
        return f"the debate **beats** {baseline}"
    if change.high < 0:
        return f"the debate is **worse than** {baseline}"
    return f"the debate does **not** beat {baseline}; no difference was shown"
