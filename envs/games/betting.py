"""Rounds of betting as lookup tables over all sequences of actions."""

import dataclasses
from collections.abc import Callable

import numpy as np

Sequence = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """All sequences of actions in a round of betting, shorter ones first.

    Attributes:
        sequences: The N sequences; the first one is empty.
        next: int32 [N, A]. Sequence after one more action, -1 if the action is illegal.
        mover: int32 [N]. Player who acts next; two players alternate.
        over: bool [N]. Whether the round is over: no action is legal.
    """

    sequences: tuple[Sequence, ...]
    next: np.ndarray
    mover: np.ndarray
    over: np.ndarray


def enumerate_round(n_actions: int, legal: Callable[[Sequence], Sequence]) -> Round:
    """Build the table of a round; `legal` maps a sequence to the legal next actions."""
    sequences: list[Sequence] = [()]
    for sequence in sequences:  # grows during the iteration
        sequences += [(*sequence, action) for action in legal(sequence)]
    number = {sequence: i for i, sequence in enumerate(sequences)}
    following = [[number.get((*sequence, a), -1) for a in range(n_actions)] for sequence in sequences]
    table = np.array(following, np.int32)
    mover = np.array([len(sequence) % 2 for sequence in sequences], np.int32)
    return Round(tuple(sequences), table, mover, np.all(table < 0, axis=1))


def padded(sequences: tuple[Sequence, ...]) -> np.ndarray:
    """Return the actions of each sequence, padded with -1: int32 [N, longest]."""
    longest = max(map(len, sequences))
    return np.array([(*sequence, *[-1] * (longest - len(sequence))) for sequence in sequences], np.int32)
