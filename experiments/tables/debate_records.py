"""What the table of debates reads in the episodes of an evaluation (`answers/test_*.jsonl`): pure functions."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from experiments.tables.intervals import difference, rate
from experiments.tables.runs import Rate

Record = Mapping[str, Any]
"""An episode: a question that was debated."""


def by_turn(records: Sequence[Record], metric: str, turns: int) -> list[Rate]:
    """A metric of every turn, such as "vote"; episodes that failed count as 0."""
    return [rate([r["metrics"].get(f"{metric}_turn_{t + 1}", 0.0) for r in records]) for t in range(turns)]


def transitions(records: Sequence[Record]) -> list[dict[str, float]]:
    """For every turn after the first, shares of "RR", "RW", "WR" and "WW", from an agent's last answer to this one."""
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
    """What a question took on average: answers, tokens written, and tokens of all chats, each counted once."""

    answers: float
    written: float
    processed: float

    def __str__(self) -> str:
        return f"{self.answers:.1f} | {self.written:,.0f} | {self.processed:,.0f}"


def cost(records: Sequence[Record], answers: int | None = None) -> Cost:
    """The mean cost of a question; of its first `answers` answers."""
    totals = [0.0, 0.0, 0.0]
    for record in records:
        turns = record["turns"][:answers]
        ends = {turn["role"]: turn["context"] + turn["tokens"] for turn in turns}  # the last turn of each chat stays
        for i, value in enumerate((len(turns), sum(turn["tokens"] for turn in turns), sum(ends.values()))):
            totals[i] += value
    return Cost(*(total / len(records) for total in totals))


def judged(record: Record) -> list[Mapping[str, Any]]:
    """The answers of an episode that did not fail, each with a verdict."""
    return [] if record["failed"] else [turn for turn in record["turns"] if turn["verdict"] is not None]


# ------------------------------------------------------------------------------------------- independent samples


def majority(record: Record, n: int) -> float:
    """How right the vote of the first `n` answers is, by the rule of debates: no answer leaves a tie with an answer."""
    verdicts = [turn["verdict"] for turn in judged(record)[:n]]
    counts = Counter(verdict["answer"] for verdict in verdicts)
    top = [answer for answer, count in counts.items() if count == max(counts.values())]
    top = [answer for answer in top if answer is not None] or top
    right = {verdict["answer"] for verdict in verdicts if verdict["right"]}
    return len(right & set(top)) / len(top) if top else 0.0


def scored(records: Sequence[Record]) -> Sequence[Record]:
    """The records, if a verifier has scored their answers; none otherwise."""
    return records if any("score" in turn["verdict"] for record in records for turn in judged(record)) else ()


def best_of(record: Record) -> float:
    """How right the answer is that the verifier scores highest, of equals the mean."""
    return _mean_right([(score, right) for score, right, _ in _scores(record)])


def weighted_vote(record: Record) -> float:
    """How right the answer is whose scores add up to the most, of equals the mean."""
    totals: dict[str, tuple[float, float]] = {}
    for score, right, answer in _scores(record):
        totals[answer] = totals.get(answer, (0.0, 0.0))[0] + score, right
    return _mean_right(totals.values())


def _scores(record: Record) -> list[tuple[float, float, str]]:
    """(score, right, answer) of the answers that could be read."""
    verdicts = [turn["verdict"] for turn in judged(record)]
    return [(v["score"], v["right"], v["answer"]) for v in verdicts if v["answer"] is not None]


def _mean_right(found: Collection[tuple[float, float]]) -> float:
    """The mean of those with the highest score, from pairs (score, right); 0 where there is none."""
    most = max((score for score, _ in found), default=0.0)
    top = [right for score, right in found if score == most]
    return sum(top) / len(top) if top else 0.0


def equal_tokens(samples: Sequence[Record], written: float) -> int:
    """How many of the samples of a question together write as many tokens as a debate; at least 1, at most all."""
    most = max((len(record["turns"]) for record in samples), default=1)
    costs = {n: abs(cost(samples, n).written - written) for n in range(1, most + 1)}
    return min(costs, key=costs.get)


# ------------------------------------------------------------------------------------------------------ comparison


def paired(
    ours: Sequence[Record], theirs: Sequence[Record], value: Callable[[Record], float]
) -> tuple[Rate, int] | None:
    """The success of debates less the `value` of `theirs` on the questions of both, and how many these are; or None."""
    other = {record["id"]: value(record) for record in theirs}
    both = [(record["success"], other[record["id"]]) for record in ours if record["id"] in other]
    return (difference(*zip(*both, strict=True)), len(both)) if both else None


def points(found: Rate) -> str:
    """A difference in percentage points."""
    return f"{100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def verdict(found: Rate, baseline: str) -> str:
    """A difference in words; nothing is claimed where the interval holds 0."""
    if found.low > 0:
        return f"the debate **beats** {baseline}"
    if found.high < 0:
        return f"the debate is **worse than** {baseline}"
    return f"the debate does **not** beat {baseline}; no difference was shown"
