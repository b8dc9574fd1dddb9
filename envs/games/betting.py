"""A round of betting as a table: every sequence of actions has a number, and a step is a lookup."""

import dataclasses
from collections.abc import Callable

import numpy as np

Sequence = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """All sequences of actions that a round can have, shorter ones first, the empty one at 0.

    sequences  N of them
    next       int32 [N, A]: the number of the sequence with one action more; -1 where that action is not legal
    mover      int32 [N]: who acts next, two players in turn
    over       bool [N]: no action is legal, the round is over
    """

    sequences: tuple[Sequence, ...]
    next: np.ndarray
    mover: np.ndarray
    over: np.ndarray


def enumerate_round(n_actions: int, legal: Callable[[Sequence], Sequence]) -> Round:
    """The table of a round in which `legal` says what may follow a sequence."""
    sequences: list[Sequence] = [()]
    for sequence in sequences:  # grows while it is walked
        sequences += [(*sequence, action) for action in legal(sequence)]
    number = {sequence: i for i, sequence in enumerate(sequences)}
    following = [[number.get((*sequence, a), -1) for a in range(n_actions)] for sequence in sequences]
    table = np.array(following, np.int32)
    mover = np.array([len(sequence) % 2 for sequence in sequences], np.int32)
    return Round(tuple(sequences), table, mover, np.all(table < 0, axis=1))
