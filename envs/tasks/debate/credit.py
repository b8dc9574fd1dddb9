r"""Credit: what the answer of agent a at turn t of a debate is paid. Pure functions of scores and verdicts.

With scores s(t, a) of T turns and A agents, and a discount γ for each turn (MAPoRL, arXiv 2502.18439):

    influence   [ s(t, a) + Σ_{t' > t} γ^(t'−t) · mean over agents j of s(t', j) ] / Σ_{t' ≥ t} γ^(t'−t)
    cumulative  Σ_{t' ≥ t} γ^(t'−t) · s(t', a) / Σ_{t' ≥ t} γ^(t'−t)
    immediate   s(t, a)
    last        s(T, a)
    last_mean   mean over agents j of s(T, j)

Each is the whole return of that answer: it contains the later turns already, and is not a step of a sum.

Two tables shape it further, by what is right (R) and wrong (W) and by the majority of the *other* agents, where these
have one; a tie is none, and nothing is paid.

    own answer  majority   bonus on own    | majority   own answer  bonus on own
    t → t+1     at t       answer at t+1   | t → t+1    at t        answer at t
    R → W       R          −α1             | R → W      R           −β1
    R → W       W          −α0             | R → W      W           −β0
    W → R       W          +α0             | W → R      W           +β0
    W → R       R          +α1             | W → R      R           +β1

Presets: `paper` is the paper's credit, with a malformed answer charged to its author alone. `released` does what the
code published with the paper does instead: γ is 0.3; a malformed answer scores −10, which lowers the mean for everyone
and at all earlier turns; in the W → R rows of α the two sizes are swapped; all signs of β are inverted, and its sizes
swapped in the R → W rows; the first turn gets no bonus; a single agent is paid ±α1 for changing its answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Generic, TypeVar

KINDS = ("influence", "cumulative", "immediate", "last", "last_mean")
LONGEST_CYCLE, MOST_REPEATS = 20, 3

Table = Sequence[Sequence[float]]
"""A number for every turn and agent: table[t][a]."""

Amount = TypeVar("Amount", Table, float)


@dataclasses.dataclass(frozen=True)
class Credit:
    """How answers are paid.

    kind               one of KINDS
    gamma              discount per turn, 0 to 1
    alpha0, alpha1     bonuses of the first table
    beta0, beta1       bonuses of the second
    format_penalty     taken from the reward of a malformed answer, and of no other
    malformed_score    what a malformed answer scores; None: as if it were well-formed
    released_tables    the bonuses of the released code in place of the paper's
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
    """The parts of what answers are paid, [t][a] or of one answer: the return, the bonuses and the format term."""

    returns: Amount
    bonuses: Amount
    format: Amount


def pay(
    credit: Credit, scores: Table, right: Sequence[Sequence[bool]], malformed: Sequence[Sequence[bool]]
) -> Paid[Table]:
    """What every answer of a debate is paid; all arguments are [t][a]."""
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
    """What a candidate is paid when it is given, whatever follows: its score, its change and its format.

    before  which agents were right at the turn before; None at the first turn
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
    """The return of every answer by one of KINDS."""
    means = [sum(row) / len(row) for row in scores]
    found = []
    for t, row in enumerate(scores):
        weights = [gamma**k for k in range(len(scores) - t)]
        total = sum(weights)
        later = sum(w * mean for w, mean in zip(weights[1:], means[t + 1 :], strict=True))
        found.append([
            (row[a] + later) / total if kind == "influence"
            else sum(w * scores[t + k][a] for k, w in enumerate(weights)) / total if kind == "cumulative"
            else row[a] if kind == "immediate"
            else scores[-1][a] if kind == "last"
            else means[-1]
            for a in range(len(row))
        ])  # fmt: skip
    return found


# ------------------------------------------------------------------------------------------------------------ bonuses


_ALPHA = {  # (change of the own answer, majority of the others before it): sign and size
    ("RW", "R"): (-1, "alpha1"),
    ("RW", "W"): (-1, "alpha0"),
    ("WR", "W"): (+1, "alpha0"),
    ("WR", "R"): (+1, "alpha1"),
}
_BETA = {  # (change of the others' majority, own answer before it): sign and size
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
    """What most of the others are, "R" or "W"; "" where as many are right as wrong, or where there is nobody else."""
    others = sum(1 if r else -1 for a, r in enumerate(right) if a != agent)
    return "R" if others > 0 else "W" if others < 0 else ""


def bonuses(right: Sequence[Sequence[bool]], credit: Credit) -> list[list[float]]:
    """The bonuses of both tables on every answer; right[t][a] by the known answer."""
    found = [[0.0] * len(row) for row in right]
    for t, (now, then) in enumerate(zip(right, right[1:], strict=False)):
        for a in range(len(now)):
            found[t + 1][a] += change_bonus(credit, now, then, a)
            if t > 0 or not credit.released_tables:
                found[t][a] += influence_bonus(credit, now, then, a)
    return found


def change_bonus(credit: Credit, now: Sequence[bool], then: Sequence[bool], agent: int) -> float:
    """The first table, on the answer of the later of two turns: an agent has changed its own answer."""
    change, most = _letter(now[agent]) + _letter(then[agent]), majority(now, agent)
    if credit.released_tables and len(now) == 1:
        return {"RW": -credit.alpha1, "WR": credit.alpha1}.get(change, 0.0)
    return _bonus(credit, _RELEASED_ALPHA if credit.released_tables else _ALPHA, change, most)


def influence_bonus(credit: Credit, now: Sequence[bool], then: Sequence[bool], agent: int) -> float:
    """The second table, on the answer of the earlier of two turns: the majority of the others has changed."""
    change = majority(now, agent) + majority(then, agent)
    return _bonus(credit, _RELEASED_BETA if credit.released_tables else _BETA, change, _letter(now[agent]))


def _bonus(credit: Credit, table: dict, change: str, beside: str) -> float:
    sign, size = table.get((change, beside), (0, "alpha0"))
    return sign * getattr(credit, size)


def _letter(right: bool) -> str:
    return "R" if right else "W"


# ------------------------------------------------------------------------------------------------------------- format


def is_malformed(text: str, answer: str | None, min_words: int = 0) -> bool:
    """Whether a reply has no answer that can be read, is too short, or repeats itself."""
    words = text.split()
    return answer is None or len(words) < min_words or repeats(words)


def repeats(words: Sequence[str], longest: int = LONGEST_CYCLE, most: int = MOST_REPEATS) -> bool:
    """Whether a sequence of at most `longest` words stands more than `most` times in a row."""
    for cycle in range(1, min(longest, len(words) // (most + 1)) + 1):
        same = 0  # words so far that equal the one a cycle before
        for i in range(cycle, len(words)):
            same = same + 1 if words[i] == words[i - cycle] else 0
            if same >= most * cycle:
                return True
    return False
