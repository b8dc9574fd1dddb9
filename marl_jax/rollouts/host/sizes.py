"""Static sizes of a batch of episodes, and how few of them a run uses: the learner is compiled once for each.

The longest conversation of a step is another one every time. So a step takes a size that the run has used before, if
one holds its episodes without much padding, and only otherwise a new one, with some room for longer conversations. The
sizes in use are part of the rollout's state: a run that is resumed chooses as if it had not been interrupted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

UNIT = 64
"""T and X are multiples of this."""
SPARE = 1.1
"""Room in a new size: times the tokens that are needed now."""
PADDING = 1.5
"""A size in use will do up to so many times the tokens that are needed, or where a new one would be no smaller."""
FEW = 4
"""With so many sizes in use, whichever of them holds a batch will do, and a new one holds all others twice over."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Static sizes of a batch: N, T, S, X, groups and their members, turns of an episode, whether it has branches."""

    rows: int = 1
    tokens: int = 1
    answers: int = 1
    answer_tokens: int = 1
    groups: int = 1
    members: int = 1
    turns: int = 1
    branches: bool = False

    def max(self, other: Sizes) -> Sizes:
        """The larger of each."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Sizes(*(max(a, b) for a, b in pairs))

    def holds(self, other: Sizes) -> bool:
        """Whether it is as large in everything."""
        return self.max(other) == self

    @property
    def work(self) -> int:
        """Tokens that the learner reads and predicts, padding included."""
        return self.rows * (self.tokens + self.answer_tokens)


def choose(needed: Sizes, used: Sequence[Sizes], tokens: int | None = None, answer_tokens: int | None = None) -> Sizes:
    """A size that holds what is needed: one of those in use, or a new one.

    tokens, answer_tokens  what rows can have at most: a new size is no larger, unless more is needed; None: not known

    However lengths change, a run has few sizes: from the fifth on, each new one is larger than all others in something,
    and in tokens twice as large.
    """
    spare = SPARE if len(used) < FEW else 2.0
    size = dataclasses.replace(
        needed,
        tokens=_with_room(needed.tokens, spare, tokens),
        answer_tokens=_with_room(needed.answer_tokens, spare, answer_tokens),
    )
    for other in used:  # rows, groups and turns keep the most there were; lengths only when sizes are many
        if len(used) < FEW:
            other = dataclasses.replace(other, tokens=1, answer_tokens=1)
        size = size.max(other)
    best = min((other for other in used if other.holds(needed)), key=lambda other: other.work, default=None)
    if best and (len(used) >= FEW or best.work <= max(PADDING * needed.work, size.work)):
        return best
    return size


def bucket(n: int, unit: int = 1) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16 … units that holds n: at most half as much again."""
    power = 1
    while power * unit < n:
        power *= 2
    return unit * (power * 3 // 4 if power >= 4 and power * 3 // 4 * unit >= n else power)


def round_up(n: int, unit: int) -> int:
    """The next multiple."""
    return -(-n // unit) * unit


def _with_room(needed: int, spare: float, most: int | None) -> int:
    """The next of 1 … 8, 10, 12, 14, 16, 20 … units that holds so much and the spare room."""
    units = -(-int(spare * needed) // UNIT)
    step = 1 << max((units - 1).bit_length() - 3, 0)  # a quarter of the power of two below
    size = round_up(units, step) * UNIT
    return max(needed, size if most is None else min(size, round_up(most, UNIT)))
