"""Static sizes of a batch of episodes, chosen so that the learner rarely recompiles.

The longest conversation differs from step to step. So a step uses a size that the run has used before, if one holds its
episodes without much padding. Otherwise it uses a new size, with some room for longer conversations. The sizes in use
are part of the state of the rollout, so that a resumed run makes the same choices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

UNIT = 64
"""Divisor of T and X."""
SPARE = 1.1
"""Tokens of a new size, relative to the tokens that are needed."""
PADDING = 1.5
"""Maximum tokens of a reused size, relative to those of a new one."""
FEW = 4
"""Number of sizes from which any that holds a batch is reused, and a new one has twice the tokens of all others."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Static sizes of a batch.

    Attributes:
        rows: Number of rows, N.
        tokens: Row length, T.
        answers: Number of completions per row, S.
        answer_tokens: Number of completion tokens per row, X.
        groups: Number of groups.
        members: Number of members of a group.
        turns: Number of turns of an episode.
        branches: Whether there are branches.
    """

    rows: int = 1
    tokens: int = 1
    answers: int = 1
    answer_tokens: int = 1
    groups: int = 1
    members: int = 1
    turns: int = 1
    branches: bool = False

    def max(self, other: Sizes) -> Sizes:
        """Return the elementwise maximum."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Sizes(*(max(a, b) for a, b in pairs))

    def holds(self, other: Sizes) -> bool:
        """Return whether every size is at least as large as the other."""
        return self.max(other) == self

    @property
    def work(self) -> int:
        """Number of tokens that the learner reads and predicts, including padding."""
        return self.rows * (self.tokens + self.answer_tokens)


def choose(needed: Sizes, used: Sequence[Sizes], tokens: int | None = None, answer_tokens: int | None = None) -> Sizes:
    """Choose a size that holds a batch: one in use, or a new one.

    However lengths change, a run has few sizes. From the fifth on, each new size exceeds all others in some dimension
    and has twice their tokens.

    Args:
        needed: Sizes of the batch.
        used: Sizes in use.
        tokens: Maximum row length, which a new size only exceeds if necessary; None if unknown.
        answer_tokens: Maximum number of completion tokens per row, likewise.
    """
    spare = SPARE if len(used) < FEW else 2.0
    size = dataclasses.replace(
        needed,
        tokens=_with_room(needed.tokens, spare, tokens),
        answer_tokens=_with_room(needed.answer_tokens, spare, answer_tokens),
    )
    for other in used:  # rows, groups and turns never shrink; lengths do unless there are many sizes
        if len(used) < FEW:
            other = dataclasses.replace(other, tokens=1, answer_tokens=1)
        size = size.max(other)
    best = min((other for other in used if other.holds(needed)), key=lambda other: other.work, default=None)
    if best and (len(used) >= FEW or best.work <= PADDING * size.work):
        return best
    return size


def bucket(n: int, unit: int = 1) -> int:
    """Round up to 1, 2, 3, 4, 6, 8, 12, 16 … units.

    The result is at most half as large again as `n`.
    """
    power = 1
    while power * unit < n:
        power *= 2
    return unit * (power * 3 // 4 if power >= 4 and power * 3 // 4 * unit >= n else power)


def round_up(n: int, unit: int) -> int:
    """Round up to a multiple of `unit`."""
    return -(-n // unit) * unit


def _with_room(needed: int, spare: float, most: int | None) -> int:
    """Add spare room and round up.

    The result is 1 … 8, 10, 12, 14, 16, 20 … units, or `most` if that is smaller and large enough.
    """
    units = -(-int(spare * needed) // UNIT)
    step = 1 << max((units - 1).bit_length() - 3, 0)  # a quarter of the power of two below
    size = round_up(units, step) * UNIT
    return max(needed, size if most is None else min(size, round_up(most, UNIT)))
