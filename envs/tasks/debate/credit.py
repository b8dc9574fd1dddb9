r"""Credit assignment in debates: rewards of answers as functions of scores and verdicts.

With scores s(t, a) of T turns and A agents, and a discount γ for each turn (MAPoRL, arXiv 2502.18439), the return of
the answer of agent a at turn t is one of:

    influence   [ s(t, a) + Σ_{t' > t} γ^(t'−t) · mean over agents j of s(t', j) ] / Σ_{t' ≥ t} γ^(t'−t)
    cumulative  Σ_{t' ≥ t} γ^(t'−t) · s(t', a) / Σ_{t' ≥ t} γ^(t'−t)
    immediate   s(t, a)
    last        s(T, a)
    last_mean   mean over agents j of s(T, j)

Each is the full return of that answer: it already contains the later turns, and is not a term of a sum.

Two tables of bonuses shape the reward further. They depend on which answers are right (R) and wrong (W), and on the
majority of the *other* agents. A tie is not a majority, and gives no bonus.

    own answer  majority   bonus on own    | majority   own answer  bonus on own
    t → t+1     at t       answer at t+1   | t → t+1    at t        answer at t
    R → W       R          −α1             | R → W      R           −β1
    R → W       W          −α0             | R → W      W           −β0
    W → R       W          +α0             | W → R      W           +β0
    W → R       R          +α1             | W → R      R           +β1

The preset `paper` is the paper's credit; the penalty for a malformed answer affects only its author. The preset
`released` reproduces the code published with the paper, which differs:

- γ is 0.3.
- A malformed answer scores −10, which lowers the mean for everyone and at all earlier turns.
- The two sizes are swapped in the W → R rows of α.
- All signs of β are inverted, and its sizes are swapped in the R → W rows.
- The first turn gets no bonus.
- A single agent gets ±α1 for changing its answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Generic, TypeVar

KINDS = ("influence", "cumulative", "immediate", "last", "last_mean")
LONGEST_CYCLE, MOST_REPEATS = 20, 3

Table = Sequence[Sequence[float]]
"""A number for every turn t and agent a: table[t][a]."""

Amount = TypeVar("Amount", Table, float)


@dataclasses.dataclass(frozen=True)
class Credit:
    """Rules for the rewards of answers.

    Attributes:
        kind: One of KINDS.
        gamma: Discount per turn, 0 to 1.
        alpha0: Size α0 of the first table.
        alpha1: Size α1 of the first table.
        beta0: Size β0 of the second table.
        beta1: Size β1 of the second table.
        format_penalty: Amount subtracted from the reward of a malformed answer.
        malformed_score: Score of a malformed answer; None keeps the score that it has.
        released_tables: Whether to use the bonuses of the released code instead of the paper's.
    """

    kind: str = "influence"
    gamma: float = 1.0
    alpha0: float = 0.0
    alpha1: float = 0.0
    beta0: float = 0.0
    beta1: float = 0.0
    format_penalty: float = 0.1
    malformed_score: float | None = None
    released_tables: bool = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"credit is {self.kind!r}, but must be one of: {', '.join(KINDS)}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}, but must be 0 to 1")


PRESETS = {
    "paper": Credit(),
    "released": Credit(gamma=0.3, format_penalty=0.0, malformed_score=-10.0, released_tables=True),
}


@dataclasses.dataclass(frozen=True)
class Paid(Generic[Amount]):
    """Components of rewards, as tables [t][a] or for one answer.

    Attributes:
        returns: Returns.
        bonuses: Bonuses.
        format: Format terms.
    """

    returns: Amount
    bonuses: Amount
    format: Amount


def pay(
    credit: Credit, scores: Table, right: Sequence[Sequence[bool]], malformed: Sequence[Sequence[bool]]
) -> Paid[Table]:
    """Return the rewards of all answers of a debate.

    Args:
        credit: The rules.
        scores: [t][a].
        right: [t][a].
        malformed: [t][a].
    """
    if (malformed_score := credit.malformed_score) is not None:
        scores = _each(lambda score, bad: malformed_score if bad else score, scores, malformed)
    return Paid(
        returns=returns(scores, credit.kind, credit.gamma),
        bonuses=bonuses(right, credit),
        format=_each(lambda bad: -credit.format_penalty * bad, malformed),
    )


def pay_candidate(
    credit: Credit, score: float, right: bool, malformed: bool, before: Sequence[bool] | None, agent: int
) -> Paid[float]:
    """Return the reward of one candidate, without the turns that follow.

    The reward consists of its score, the bonus for a changed answer, and the format term.

    Args:
        credit: The rules.
        score: Score of the candidate.
        right: Whether the candidate is right.
        malformed: Whether the candidate is malformed.
        before: Which agents were right at the previous turn; None at the first turn.
        agent: Index of the agent.
    """
    if malformed and credit.malformed_score is not None:
        score = credit.malformed_score
    bonus = 0.0
    if before is not None:
        bonus = change_bonus(credit, before, [*before[:agent], right, *before[agent + 1 :]], agent)
    return Paid(returns=score, bonuses=bonus, format=-credit.format_penalty * malformed)


def _each(function, *tables):
    return [[function(*values) for values in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]


# ------------------------------------------------------------------------------------------------------------ returns


def returns(scores: Table, kind: str, gamma: float) -> list[list[float]]:
    """Compute the returns of all answers by one of KINDS."""
    means = [sum(row) / len(row) for row in scores]
    result = []
    for t, row in enumerate(scores):
        weights = [gamma**k for k in range(len(scores) - t)]
        total = sum(weights)
        later = sum(w * mean for w, mean in zip(weights[1:], means[t + 1 :], strict=True))
        result.append([
            (row[a] + later) / total if kind == "influence"
            else sum(w * scores[t + k][a] for k, w in enumerate(weights)) / total if kind == "cumulative"
            else row[a] if kind == "immediate"
            else scores[-1][a] if kind == "last"
            else means[-1]
            for a in range(len(row))
        ])  # fmt: skip
    return result


# ------------------------------------------------------------------------------------------------------------ bonuses


_ALPHA = {  # (change of the own answer, majority of the others before it) -> (sign, size)
    ("RW", "R"): (-1, "alpha1"),
    ("RW", "W"): (-1, "alpha0"),
    ("WR", "W"): (+1, "alpha0"),
    ("WR", "R"): (+1, "alpha1"),
}
_BETA = {  # (change of the others' majority, own answer before it) -> (sign, size)
    ("RW", "R"): (-1, "beta1"),
    ("RW", "W"): (-1, "beta0"),
    ("WR", "W"): (+1, "beta0"),
    ("WR", "R"): (+1, "beta1"),
}
_RELEASED_ALPHA = _ALPHA | {("WR", "W"): (+1, "alpha1"), ("WR", "R"): (+1, "alpha0")}
_RELEASED_BETA = {
    ("RW", "R"): (+1, "beta0"),
    ("RW", "W"): (+1, "beta1"),
    ("WR", "W"): (-1, "beta0"),
    ("WR", "R"): (-1, "beta1"),
}


def majority(right: Sequence[bool], agent: int) -> str:
    """Return the majority of the other agents: "R", "W", or "" without one."""
    others = sum(1 if r else -1 for a, r in enumerate(right) if a != agent)
    return "R" if others > 0 else "W" if others < 0 else ""


def bonuses(right: Sequence[Sequence[bool]], credit: Credit) -> list[list[float]]:
    """Compute the bonuses of both tables for all answers.

    Args:
        right: [t][a], by the known answer.
        credit: The rules.
    """
    result = [[0.0] * len(row) for row in right]
    for t, (now, then) in enumerate(zip(right, right[1:], strict=False)):
        for a in range(len(now)):
            result[t + 1][a] += change_bonus(credit, now, then, a)
            if t > 0 or not credit.released_tables:
                result[t][a] += influence_bonus(credit, now, then, a)
    return result


def change_bonus(credit: Credit, now: Sequence[bool], then: Sequence[bool], agent: int) -> float:
    """Return the bonus of the first table, for an agent that changed its answer.

    It belongs to the answer of the later of the two turns.
    """
    change, most = _letter(now[agent]) + _letter(then[agent]), majority(now, agent)
    if credit.released_tables and len(now) == 1:
        return {"RW": -credit.alpha1, "WR": credit.alpha1}.get(change, 0.0)
    return _bonus(credit, _RELEASED_ALPHA if credit.released_tables else _ALPHA, change, most)


def influence_bonus(credit: Credit, now: Sequence[bool], then: Sequence[bool], agent: int) -> float:
    """Return the bonus of the second table, for a changed majority of the others.

    It belongs to the answer of the earlier of the two turns.
    """
    change = majority(now, agent) + majority(then, agent)
    return _bonus(credit, _RELEASED_BETA if credit.released_tables else _BETA, change, _letter(now[agent]))


def _bonus(credit: Credit, table: dict, change: str, state: str) -> float:
    sign, size = table.get((change, state), (0, "alpha0"))
    return sign * getattr(credit, size)


def _letter(right: bool) -> str:
    return "R" if right else "W"


# ------------------------------------------------------------------------------------------------------------- format


def is_malformed(text: str, answer: str | None, min_words: int = 0) -> bool:
    """Return whether a reply has no readable answer, is too short, or repeats itself."""
    words = text.split()
    return answer is None or len(words) < min_words or repeats(words)


def repeats(words: Sequence[str], longest: int = LONGEST_CYCLE, most: int = MOST_REPEATS) -> bool:
    """Return whether up to `longest` words occur more than `most` times in a row."""
    for cycle in range(1, min(longest, len(words) // (most + 1)) + 1):
        same = 0  # number of consecutive words that equal the word one cycle earlier
        for i in range(cycle, len(words)):
            same = same + 1 if words[i] == words[i - cycle] else 0
            if same >= most * cycle:
                return True
    return False
